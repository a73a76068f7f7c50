"""Operands of the arithmetic tests: edge values paired with each other, then random ones."""

import numpy as np

from execute_kernels import LANES

RANDOM = np.random.default_rng(7)
SPECIAL = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, -3.4e38, 1.2e-38, 0.5, 2, 1e10, -7.5],
    np.float32,
)
INTEGERS = np.array(
    [0, 1, 2, 31, 32, 63, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF, 0x8000, 0x800000], np.uint32
)


def floats(kind=np.float32):
    """Three operands: pairs of special values, then random ones."""
    special = SPECIAL.astype(kind)
    operands = []
    for repeat in range(3):
        random = (RANDOM.standard_normal(LANES) * 10 ** RANDOM.uniform(-3, 3, LANES)).astype(kind)
        random[:16] = np.roll(special, 3 * repeat)
        random[16:32] = np.roll(special, 7 * repeat + 1)
        operands.append(random)
    return operands


def integers():
    operands = []
    for repeat in range(3):
        random = RANDOM.integers(0, 2**32, LANES, dtype=np.uint32)
        random[:12] = np.roll(INTEGERS, repeat)
        random[12:24] = np.roll(INTEGERS, 5 * repeat + 1)
        operands.append(random)
    return operands


def u64(a):
    return a.astype(np.uint64)


def low_words(values) -> np.ndarray:
    """Integers modulo 2^32."""
    return np.array([int(v) % 2**32 for v in np.asarray(values).tolist()], np.uint32)
