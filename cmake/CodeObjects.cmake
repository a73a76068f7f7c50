# add_code_objects(<name> SOURCE <file.hip> ARCHITECTURES <arch>...)
#
# Compiles one code object per architecture, checks what its metadata says about registers and LDS, and sets
# <name>_SOURCES: assembler files that embed the code objects under the symbols <name>_<arch>_begin and _end, and
# the table of them, <name>.def, that csrc/host/code_objects.cpp reads.
set(CODE_OBJECTS_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})

function(add_code_objects name)
  cmake_parse_arguments(arg "" "SOURCE" "ARCHITECTURES" ${ARGN})
  get_filename_component(stem ${arg_SOURCE} NAME_WE)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/code-objects)
  file(MAKE_DIRECTORY ${folder})
  set(check ${CODE_OBJECTS_CMAKE_DIR}/check_code_object.py)
  set(reader ${CMAKE_CURRENT_SOURCE_DIR}/liteattention_rocm/code_object.py)
  set(sources "")
  set(entries "")

  foreach(arch IN LISTS arg_ARCHITECTURES)
    set(image ${folder}/${stem}.${arch}.hsaco)
    # The final name appears only after the check, so that a failed check fails again on the next build.
    add_custom_command(
      OUTPUT ${image}
      COMMAND ${DEVICE_COMPILER} -x hip --offload-arch=${arch} --offload-device-only --no-gpu-bundle-output
        -nogpulib -nogpuinc -mcode-object-version=5 -std=c++17 -O3 -Wall -Wextra -Werror
        -Xclang -dependency-file -Xclang ${image}.d -Xclang -MT -Xclang ${image}
        ${arg_SOURCE} -o ${image}.unchecked
      COMMAND ${Python_EXECUTABLE} ${check} --arch ${arch} ${image}.unchecked
      COMMAND ${CMAKE_COMMAND} -E rename ${image}.unchecked ${image}
      DEPENDS ${arg_SOURCE} ${check} ${reader}
      DEPFILE ${image}.d
      COMMENT "Compiling ${stem} for ${arch}"
      VERBATIM)

    set(ARCH ${arch})
    set(NAME ${name})
    set(IMAGE ${image})
    configure_file(${CODE_OBJECTS_CMAKE_DIR}/code_object.S.in ${folder}/${stem}.${arch}.S @ONLY)
    set_source_files_properties(${folder}/${stem}.${arch}.S PROPERTIES OBJECT_DEPENDS ${image})
    list(APPEND sources ${folder}/${stem}.${arch}.S)
    string(APPEND entries "CODE_OBJECT(${arch})\n")
  endforeach()

  file(CONFIGURE OUTPUT ${folder}/${name}.def CONTENT "${entries}")
  set(reader ${CMAKE_CURRENT_SOURCE_DIR}/csrc/host/code_objects.cpp)
  set_property(SOURCE ${reader} PROPERTY INCLUDE_DIRECTORIES ${folder})
  set_property(SOURCE ${reader} APPEND PROPERTY OBJECT_DEPENDS ${folder}/${name}.def)
  set(${name}_SOURCES ${sources} PARENT_SCOPE)
endfunction()
