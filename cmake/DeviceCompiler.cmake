# Sets DEVICE_COMPILER: a clang with the AMDGPU target.
#
# The default is the one in the ziglang wheel, called through a script in the build folder that gives it a
# cache of its own and the linker under the name its driver looks for. The environment variable
# LITEATTENTION_ROCM_DEVICE_COMPILER names another clang.
set(DEVICE_COMPILER_PACKAGE ziglang)
set(DEVICE_COMPILER_VERSION 0.16.0)

if(NOT "$ENV{LITEATTENTION_ROCM_DEVICE_COMPILER}" STREQUAL "")
  set(DEVICE_COMPILER "$ENV{LITEATTENTION_ROCM_DEVICE_COMPILER}")
  find_program(device_compiler_path NAMES "${DEVICE_COMPILER}" NO_CACHE)
  if(NOT device_compiler_path)
    message(FATAL_ERROR "LITEATTENTION_ROCM_DEVICE_COMPILER: no program ${DEVICE_COMPILER}")
  endif()
  set(DEVICE_COMPILER "${device_compiler_path}")
else()
  # Asked at every configuration: pip's isolated build environments move.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.metadata as m, importlib.util as u, os; print(m.version('${DEVICE_COMPILER_PACKAGE}')); print(os.path.join(os.path.dirname(u.find_spec('${DEVICE_COMPILER_PACKAGE}').origin), 'zig'))"
    OUTPUT_VARIABLE found RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(advice "install ${DEVICE_COMPILER_PACKAGE}==${DEVICE_COMPILER_VERSION} beside ${Python_EXECUTABLE}, or set LITEATTENTION_ROCM_DEVICE_COMPILER to a clang with the AMDGPU target")
  if(failed)
    message(FATAL_ERROR "No device compiler: ${advice}")
  endif()
  string(REPLACE "\n" ";" found "${found}")
  list(GET found 0 found_version)
  list(GET found 1 ZIG)
  if(NOT found_version STREQUAL DEVICE_COMPILER_VERSION)
    message(FATAL_ERROR "${DEVICE_COMPILER_PACKAGE} is ${found_version}, kernels are built with ${DEVICE_COMPILER_VERSION}: ${advice}")
  endif()
  set(DEVICE_COMPILER_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/device-compiler)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/clang.in ${DEVICE_COMPILER_FOLDER}/clang @ONLY
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/lld.in ${DEVICE_COMPILER_FOLDER}/lld @ONLY
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  set(DEVICE_COMPILER ${DEVICE_COMPILER_FOLDER}/clang)
endif()
message(STATUS "Device compiler: ${DEVICE_COMPILER}")
