"""One product of a matrix instruction in each wave: its code object, the layout of operands, the launch."""

import contextlib
import functools
import re
import struct
from dataclasses import dataclass

import numpy as np

import device_compiler
from liteattention_rocm import simulator

LANES = 64
POISON = 0x7FC0DEAD
WIDTHS = {"f64": 64, "f32": 32, "xf32": 32, "f16": 16, "bf16": 16, "fp8": 8, "bf8": 8, "i8": 8}

# MODE flushes subnormal float32 numbers and rounds toward zero, and no lane is active: neither may matter.
KERNEL = """
.text
.globl product
.p2align 8
.type product,@function
product:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v0, 2, v0
  s_mul_i32 s8, s2, {input_bytes}
  s_mul_i32 s9, s2, {output_bytes}
  s_waitcnt lgkmcnt(0)
  s_add_u32 s4, s4, s8
  s_addc_u32 s5, s5, 0
  s_add_u32 s6, s6, s9
  s_addc_u32 s7, s7, 0
{loads}
  s_waitcnt vmcnt(0)
  s_mov_b64 s[12:13], exec
  s_mov_b64 exec, 0
  s_nop 4
  v_mfma_{mnemonic} {d}, {a}, {b}, {c}
  s_mov_b64 exec, s[12:13]
  s_nop 15
  s_nop 15
{stores}
  s_endpgm
.size product, .-product
.rodata
.p2align 6
.amdhsa_kernel product
  .amdhsa_kernarg_size 16
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_float_denorm_mode_32 0
  .amdhsa_float_round_mode_32 3
  .amdhsa_next_free_vgpr 128
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 128
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: product
    .symbol: product.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: 128
    .max_flat_workgroup_size: 64
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
.end_amdgpu_metadata
"""
A, B, C, D = 4, 8, 16, 48  # first registers


def span(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


@dataclass(frozen=True)
class Instruction:
    """A matrix instruction, from its mnemonic without `v_mfma_`."""

    mnemonic: str

    @functools.cached_property
    def _parsed(self):
        return re.fullmatch(
            r"(f32|f64|i32)_(\d+)x\d+x(\d+)(?:_(\d+)b)?_([a-z]+\d+)(?:_([a-z]+\d+))?", self.mnemonic
        )

    @property
    def result(self) -> str:
        return self._parsed[1]

    @property
    def size(self) -> int:
        return int(self._parsed[2])

    @property
    def depth(self) -> int:
        return int(self._parsed[3])

    @property
    def blocks(self) -> int:
        return int(self._parsed[4] or 1)

    @property
    def formats(self) -> tuple[str, str]:
        """Of A and B."""
        return self._parsed[5], self._parsed[6] or self._parsed[5]

    @property
    def per_lane(self) -> int:
        """Consecutive k that a lane holds."""
        return self.depth * self.size * self.blocks // LANES

    @property
    def operand_registers(self) -> int:
        return self.per_lane * WIDTHS[self.formats[0]] // 32

    @property
    def dwords(self) -> int:
        """Registers that an element of C or D takes."""
        return 2 if self.result == "f64" else 1

    @property
    def result_registers(self) -> int:
        return self.size**2 * self.blocks // LANES * self.dwords


def assemble(instruction: Instruction, *, d: int = D, c: str | None = None) -> bytes:
    """The code object of one product a wave; C in v[16:...] unless `c` says otherwise, D from v`d` on."""
    operands, results = instruction.operand_registers, instruction.result_registers

    def rows(line, registers, base):
        text = f"  {line}\n  s_add_u32 s{base}, s{base}, 256\n  s_addc_u32 s{base + 1}, s{base + 1}, 0"
        return "\n".join(text.format(register) for register in registers)

    inputs = [first + i for first, n in ((A, operands), (B, operands), (C, results)) for i in range(n)]
    return device_compiler.assemble(
        KERNEL.format(
            mnemonic=instruction.mnemonic,
            a=span(A, operands),
            b=span(B, operands),
            c=c or span(C, results),
            d=span(d, results),
            input_bytes=256 * len(inputs),
            output_bytes=256 * results,
            loads=rows("global_load_dword v{}, v0, s[4:5]", inputs, 4),
            stores=rows("global_store_dword v0, v{}, s[6:7]", range(d, d + results), 6),
        )
    )


def operand_rows(instruction: Instruction, values) -> np.ndarray:
    """[waves, blocks, row or column, k] to the registers of A or B, uint32 [waves, registers, 64]."""
    waves, blocks, size, _ = values.shape
    # Lanes count the rows, then the blocks, then the groups of k.
    groups = values.reshape(waves, blocks, size, -1, instruction.per_lane).transpose(0, 3, 1, 2, 4)
    lanes = np.ascontiguousarray(groups).reshape(waves, LANES, -1).view(np.uint32)
    return np.ascontiguousarray(lanes.transpose(0, 2, 1))


def positions(instruction: Instruction):
    """Block, row and column of the elements of C and D: [registers / dwords, 64] each."""
    size = instruction.size
    register, lane = np.meshgrid(
        np.arange(instruction.result_registers // instruction.dwords), np.arange(LANES), indexing="ij"
    )
    if size == 4 and instruction.result == "f64":
        return lane // 16, lane // 4 % 4, lane % 4
    if size == 4:
        return lane // 4, register, lane % 4
    if instruction.result == "f64":
        return register * 0, 4 * register + lane // 16, lane % 16
    if size == 16:
        return register // 4, 4 * (lane // 16) + register % 4, lane % 16
    return (
        register // 16,
        8 * (register % 16 // 4) + 4 * (lane // 32) + register % 4,
        lane % 32,
    )


def result_rows(instruction: Instruction, c) -> np.ndarray:
    """C[wave, block, row, column] to registers, uint32 [waves, registers, 64]."""
    elements = np.ascontiguousarray(c[(slice(None), *positions(instruction))])
    rows = elements.view(np.uint32).reshape(len(c), -1, LANES, instruction.dwords)
    return np.ascontiguousarray(rows.transpose(0, 1, 3, 2)).reshape(len(c), -1, LANES)


def simulate(instruction: Instruction, image: bytes, a, b, c) -> np.ndarray:
    """D[wave, block, row, column], of c's dtype, of a launch with one wave a workgroup."""
    rows = [operand_rows(instruction, a), operand_rows(instruction, b), result_rows(instruction, c)]
    inputs = np.ascontiguousarray(np.concatenate(rows, axis=1))
    d = np.full_like(rows[2], POISON)
    module = simulator.Module(image)
    with contextlib.ExitStack() as stack:
        for array in (inputs, d):
            stack.enter_context(simulator.register(array))
        arguments = struct.pack("<2Q", inputs.ctypes.data, d.ctypes.data)
        module.launch("product", (len(c), 1, 1), (LANES, 1, 1), arguments)
    pairs = d.reshape(len(c), -1, instruction.dwords, LANES).transpose(0, 1, 3, 2)
    elements = np.ascontiguousarray(pairs).reshape(len(c), -1, LANES * instruction.dwords).view(c.dtype)
    result = np.empty_like(c)
    result[(slice(None), *positions(instruction))] = elements
    return result
