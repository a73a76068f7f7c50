"""Code objects that the simulator loads, and those that it refuses without crashing."""

import ctypes
import re
import struct
import subprocess
import sys
import textwrap
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest

import device_compiler
import simulated_hip as codes
import simulator_kernels
from liteattention_rocm import simulator
from simulated_hip import Failed, Hip

BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
TRIVIAL = 'extern "C" __global__ void store(u32* out) { out[0] = 77; }'

# Loads a code object, runs its kernel `store` and prints what that stored, and where the heap lies.
LOW_HEAP = r"""
#include <dlfcn.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>
int main(int, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) return std::puts(dlerror()), 1;
  auto function = [&](const char* name) { return reinterpret_cast<int (*)(...)>(dlsym(library, name)); };
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
  void *module, *kernel, *out;
  uint32_t stored = 0;
  int failed = function("hipModuleLoadData")(&module, image.data());
  failed |= function("hipModuleGetFunction")(&kernel, module, "store");
  failed |= function("hipMalloc")(&out, size_t{4});
  void* parameters[] = {&out};
  failed |= function("hipModuleLaunchKernel")(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  failed |= function("hipMemcpy")(&stored, out, size_t{4}, 2);
  std::printf("%d %u %p\n", failed, stored, std::malloc(64));
}
"""


@pytest.fixture(scope="module")
def hip():
    return Hip()


@pytest.fixture(scope="module")
def image():
    return device_compiler.compile_hip(TRIVIAL)


def store_77(hip, image):
    out = hip.malloc(4)
    module = hip.module(image)
    hip.launch(hip.function(module, "store"), (1, 1, 1), (1, 1, 1), struct.pack("<Q", out))
    hip.hipModuleUnload(module)
    return struct.unpack("<I", hip.download(out, 4))[0] == 77


def test_a_heap_below_4_gib(image, tmp_path):
    """That of an interpreter which is no position-independent executable."""
    (tmp_path / "store.hsaco").write_bytes(image)
    source, program = tmp_path / "low_heap.cpp", tmp_path / "low_heap"
    source.write_text(LOW_HEAP)
    subprocess.run(["g++", "-no-pie", str(source), "-o", str(program), "-ldl"], check=True)
    command = [program, simulator.path(), tmp_path / "store.hsaco"]
    failed, stored, heap = subprocess.run(command, capture_output=True, text=True).stdout.split()
    assert int(heap, 16) < 1 << 32
    assert (failed, stored) == ("0", "77")


def bundle(entries):
    """Layout: clang's documentation, "Clang Offload Bundler", bundled binary file."""
    header = BUNDLE_MAGIC + struct.pack("<Q", len(entries))
    offset = len(header) + sum(24 + len(name) for name, _ in entries)
    content = b""
    for name, code_object in entries:
        header += struct.pack("<3Q", offset + len(content), len(code_object), len(name)) + name
        content += code_object
    return header + content


def refused(hip, image, code, message):
    with pytest.raises(Failed, match=message) as failure:
        hip.module(image)
    assert failure.value.code == code


@pytest.mark.parametrize("target", [b"gfx942", b"gfx942:xnack-", b"gfx942:sramecc+:xnack-"])
@pytest.mark.parametrize("kind", [b"hip", b"hipv4"])
def test_bundle(hip, image, kind, target):
    host = (b"host-x86_64-unknown-linux-gnu-", b"")
    other = (b"hipv4-amdgcn-amd-amdhsa--gfx90a", b"\x7fELF nothing for us")
    assert store_77(hip, bundle([host, other, (kind + b"-amdgcn-amd-amdhsa--" + target, image)]))


def test_bundle_without_this_architecture(hip, image):
    refused(
        hip,
        bundle([(b"hipv4-amdgcn-amd-amdhsa--gfx1100", image), (b"hipv4-amdgcn-amd-amdhsa--gfx9420", image)]),
        codes.NO_BINARY,
        r"no code object for gfx942:sramecc\+:xnack-, only for: .*gfx1100, .*gfx9420",
    )


def test_compressed_bundle(hip):
    refused(hip, b"CCOB" + bytes(60), codes.INVALID_IMAGE, "compressed")


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx950", "gfx1100"])
def test_other_architectures(hip, architecture):
    other = device_compiler.compile_hip(TRIVIAL, architecture=architecture)
    refused(hip, other, codes.NO_BINARY, f"is for {architecture}; this device is gfx942")


def test_other_machines(hip, image):
    nvidia = image[:18] + struct.pack("<H", 190) + image[20:]
    refused(hip, nvidia, codes.NO_BINARY, "machine 190 is not AMDGPU; this device is gfx942")
    refused(hip, Path(sys.executable).resolve().read_bytes()[: 1 << 22], codes.NO_BINARY, "is not AMDGPU")


@pytest.mark.parametrize("features", ["", ":xnack-", ":sramecc+", ":sramecc+:xnack-"])
def test_features_that_the_device_has(hip, features):
    assert store_77(hip, device_compiler.compile_hip(TRIVIAL, architecture=f"gfx942{features}"))


@pytest.mark.parametrize("features", [":xnack+", ":sramecc-", ":sramecc+:xnack+"])
def test_features_that_the_device_has_not(hip, features):
    image = device_compiler.compile_hip(TRIVIAL, architecture=f"gfx942{features}")
    refused(hip, image, codes.NO_BINARY, r"e_flags is 0x\w+, which asks for (xnack\+|sramecc-); allowed: ")
    refused(
        hip,
        bundle([(f"hipv4-amdgcn-amd-amdhsa--gfx942{features}".encode(), image)]),
        codes.NO_BINARY,
        "no code object for",
    )


def test_features_that_are_not_stated(hip, image):
    # "Unsupported" in e_flags: the loader takes it as any.
    assert store_77(hip, image[:48] + struct.pack("<I", 0x4C) + image[52:])


def test_load_from_a_file(hip, image, tmp_path):
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(image)
    module = c_void_p()
    hip.hipModuleLoad(byref(module), str(path).encode())
    hip.function(module, "store")
    path.write_bytes(image[: len(image) // 4])
    with pytest.raises(Failed, match=r"truncated|beyond the end") as failure:
        hip.hipModuleLoad(byref(module), str(path).encode())
    assert failure.value.code == codes.INVALID_IMAGE
    with pytest.raises(Failed) as failure:
        hip.hipModuleLoad(byref(module), str(tmp_path / "missing").encode())
    assert failure.value.code == codes.FILE_NOT_FOUND


def data_object(body):
    return device_compiler.assemble(f""".data
.p2align 3
.globl target
{body}
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels: []
.end_amdgpu_metadata
""")


def test_absolute_relocation(hip):
    image = data_object(
        """
        .type target,@object
        .size target, 16
        target: .quad 1, 2
        .globl reference
        .type reference,@object
        .size reference, 8
        reference: .quad target + 8
        """
    )
    module, target, reference = hip.module(image), c_void_p(), c_void_p()
    hip.hipModuleGetGlobal(byref(target), None, module, b"target")
    hip.hipModuleGetGlobal(byref(reference), None, module, b"reference")
    assert struct.unpack("<Q", hip.download(reference.value, 8))[0] == target.value + 8


def test_undefined_symbol(hip):
    # ROCm's loader takes a symbol that resolves to 0 as undefined, a weak one too.
    image = data_object(
        """
        .type target,@object
        .size target, 8
        target: .quad elsewhere
        .weak elsewhere
        """
    )
    strong = bytearray(image)
    for entry in range(0, len(image) - 24, 8):
        name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", image, entry)
        if (info, section, value, size) == (0x20, 0, 0, 0) and name:
            strong[entry + 4] = 0x10
    assert strong != image
    for one in (image, bytes(strong)):
        refused(hip, one, codes.SYMBOL_NOT_FOUND, "symbol 'elsewhere' .* is not defined in it; allowed: ")


def test_generic_target(hip):
    image = device_compiler.compile_hip(TRIVIAL, architecture="gfx9-4-generic", code_object_version=6)
    assert image[48] == 0x5F
    assert store_77(hip, image)
    generic = (b"hipv4-amdgcn-amd-amdhsa--gfx9-4-generic", image)
    assert store_77(hip, bundle([generic]))
    # What is made for the device comes first.
    other = device_compiler.compile_hip('extern "C" __global__ void other() {}')
    module = hip.module(bundle([generic, (b"hipv4-amdgcn-amd-amdhsa-unknown-gfx942", other)]))
    hip.function(module, "other")
    version_5 = image[:8] + b"\3" + image[9:]
    refused(hip, version_5, codes.INVALID_IMAGE, "code object version of gfx9-4-generic is 5; allowed: 6")
    unversioned = image[:51] + b"\0" + image[52:]
    refused(hip, unversioned, codes.INVALID_IMAGE, "generic version in e_flags is 0; allowed: 1 to 255")


@pytest.mark.parametrize(
    "offset, value, message",
    [
        (4, 1, "not a 64-bit"),
        (5, 2, "not a 64-bit little-endian"),
        (6, 0, "EI_VERSION is 0; allowed: 1"),
        (7, 0, "EI_OSABI is 0; allowed: 64"),
        (8, 1, "EI_ABIVERSION is 1; allowed: 2 to 4"),
        (8, 5, "EI_ABIVERSION is 5; allowed: 2 to 4"),
        (16, 1, "e_type is 1; allowed: 3"),
        (20, 2, "e_version is 2; allowed: 1"),
        (52, 52, "e_ehsize is 52; allowed: 64"),
        (54, 32, "e_phentsize is 32; allowed: 56"),
        (58, 40, "e_shentsize is 40; allowed: 64"),
    ],
)
def test_other_elf_files_are_refused(hip, image, offset, value, message):
    refused(hip, image[:offset] + bytes([value]) + image[offset + 1 :], codes.INVALID_IMAGE, message)


def test_kernels_without_metadata_arguments(hip):
    image = device_compiler.assemble(
        re.sub(r"\n    \.args:.*\n.*\n", "\n", simulator_kernels.ASSEMBLY).replace(
            ".reqd_workgroup_size", ".ignored"
        )
    )
    kernel, out = hip.kernel(image, "exactly_64x2"), hip.malloc(4)
    hip.launch(kernel, (1, 1, 1), (64, 1, 1), struct.pack("<Q", out))
    assert hip.download(out, 4) == struct.pack("<I", 7)
    with pytest.raises(Failed, match="has 7 bytes, its arguments take 8"):
        hip.launch(kernel, (1, 1, 1), (64, 1, 1), bytes(7))
    with pytest.raises(Failed, match="doesn't list its arguments"):
        hip.launch_parameters(kernel, (1, 1, 1), (64, 1, 1), [ctypes.c_uint64(out)])


MALFORMED = """
import ctypes, mmap, sys
from ctypes import byref, c_size_t, c_void_p
import numpy as np

sys.path.insert(0, TESTS)
from simulated_hip import Failed, Hip

hip = Hip(LIBRARY)
image = open(sys.argv[1], "rb").read()
libc = ctypes.CDLL(None)
# The image ends where readable memory ends: a read past it is a crash.
room = (len(image) + 8191) // 4096 * 4096
area = mmap.mmap(-1, room + 4096)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
assert libc.mprotect(c_void_p(start + room), c_size_t(4096), 0) == 0

def outcome(content):
    address = start + room - len(content)
    ctypes.memmove(address, bytes(content), len(content))
    module = c_void_p()
    code = hip.library.hipModuleLoadData(byref(module), c_void_p(address))
    if code == 0:
        hip.hipModuleUnload(module)
    elif not hip.library.gfx942sim_last_error():
        raise SystemExit("no message")
    if rng.random() < 0.1:
        hip.library.gfx942sim_disassemble_json(bytes(content), c_size_t(len(content)), None, c_size_t(0))
    return code

# Mostly the headers, the note and the tables, which decide what is read.
def positions(count):
    ends = [(0, min(6144, len(image))), (max(0, len(image) - 3072), len(image)), (0, len(image))]
    return rng.integers(*ends[rng.choice(3, p=[0.5, 0.25, 0.25])], count)

rng = np.random.default_rng(int(sys.argv[2]))
assert outcome(image) == 0
truncations = [outcome(image[:size]) for size in [*range(0, 400), *rng.integers(400, len(image), 300)]]
flips = []
for _ in range(1500):
    content = bytearray(image)
    for position in positions(rng.integers(1, 4)):
        content[position] ^= 1 << rng.integers(8)
    flips.append(outcome(content))
words = []
for _ in range(1500):
    content = bytearray(image)
    position = int(positions(1)[0]) & ~7
    value = [0, 1, 0xFF, 0xFFFFFFFF, 1 << 31, 1 << 63, 2**64 - 1, 2**64 - 4096, 1 << 40][rng.integers(9)]
    content[position:position + 8] = value.to_bytes(8, "little")
    words.append(outcome(content))
noise = [outcome(magic + rng.bytes(200)) for _ in range(100) for magic in (b"", b"\\x7fELF")]
print(truncations.count(0), sum(map(bool, flips)), sum(map(bool, words)), noise.count(0))
print(sorted(set(truncations + flips + words + noise)))
"""


def without_sysv_hash(image):
    """Symbols are then counted through the GNU hash table."""
    (dynamic,) = (
        struct.unpack_from("<Q", image, entry + 8)[0]
        for entry in range(64, 64 + 56 * struct.unpack_from("<H", image, 56)[0], 56)
        if struct.unpack_from("<I", image, entry)[0] == 2
    )
    tag = dynamic + 16 * [image[dynamic + 16 * i] for i in range(10)].index(4)
    return image[:tag] + struct.pack("<Q", 0x6FFFFFF0) + image[tag + 8 :]


@pytest.mark.parametrize("version", [4, 5, 6])
def test_gnu_hash(hip, version):
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, code_object_version=version)
    module = hip.module(without_sysv_hash(image))
    for kernel in hip.text("disassemble", image, c_size_t(len(image)))["kernels"]:
        hip.function(module, kernel["name"])
    for variable in ("counter", "pointer_to_counter", "table"):
        hip.hipModuleGetGlobal(byref(c_void_p()), byref(c_size_t()), module, variable.encode())


@pytest.mark.parametrize("kind", ["v4", "v5", "v6", "gnu_hash", "bundle"])
def test_malformed_images_never_crash(tmp_path, kind):
    version = int(kind[1]) if kind[0] == "v" else 5
    image = device_compiler.compile_hip(simulator_kernels.SOURCE, code_object_version=version)
    if kind == "gnu_hash":
        image = without_sysv_hash(image)
    if kind == "bundle":
        image = bundle([(b"hipv4-amdgcn-amd-amdhsa--gfx942", image)])
    path = tmp_path / "image"
    path.write_bytes(image)
    script = MALFORMED.replace("TESTS", repr(str(Path(__file__).parent))).replace(
        "LIBRARY", repr(str(simulator.path()))
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path), str(version)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    accepted_truncations, refused_flips, refused_words, accepted_noise = map(int, done.stdout.split()[:4])
    assert accepted_truncations == 0 and accepted_noise == 0
    assert refused_flips > 100 and refused_words > 100
    allowed = {0, codes.INVALID_IMAGE, codes.NO_BINARY, codes.OUT_OF_MEMORY, codes.SYMBOL_NOT_FOUND}
    assert set(map(int, re.findall(r"\d+", done.stdout.split("[")[1]))) <= allowed


def test_aiter_code_objects(hip, aiter):
    for path in sorted(Path(aiter.find()).glob("**/fwd_hd128_bf16_*.co")):
        module = hip.module(path.read_bytes())
        listing = hip.text("disassemble", path.read_bytes(), c_size_t(path.stat().st_size))
        for kernel in listing["kernels"]:
            hip.function(module, kernel["name"])
        assert listing["kernels"] and np.mean([row["op"] is None for row in listing["instructions"]]) < 0.01
        hip.hipModuleUnload(module)
