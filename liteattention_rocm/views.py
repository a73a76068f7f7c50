"""Where the elements of a strided view lie, and whether two views can share one."""

import math


def extent(tensor) -> tuple[int, int]:
    """(address, bytes) of the smallest span of memory that holds every element of a view."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def _dimensions(tensor) -> list[tuple[int, int]]:
    """(stride, size) of the dimensions that move, smallest stride first, in elements."""
    return sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )


def overlaps_itself(tensor) -> bool:
    """Whether two indices of a view may name the same element.

    False only where each dimension steps over all smaller ones, which every slice, transpose and
    permutation of a contiguous tensor does.
    """
    if tensor.numel() == 0:
        return False
    reach = 0
    for stride, size in _dimensions(tensor):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _runs(tensor) -> tuple[int, list[int]]:
    """Length of the contiguous runs that a view is made of, and the strides between runs, in elements."""
    length, strides = 1, []
    for stride, size in _dimensions(tensor):
        if stride == length and not strides:
            length *= size
        else:
            strides.append(stride)
    return length, strides


def share_memory(a, b) -> bool:
    """Whether two views of one element size may share an element.

    False where their spans are apart, and where both consist of runs that repeat with a common period
    and lie apart inside it, as the slices of a fused projection do.
    """
    (a_begin, a_bytes), (b_begin, b_bytes) = extent(a), extent(b)
    if a_begin + a_bytes <= b_begin or b_begin + b_bytes <= a_begin:
        return False
    if a.element_size() != b.element_size() or (b_begin - a_begin) % a.element_size():
        return True
    (a_length, a_strides), (b_length, b_strides) = _runs(a), _runs(b)
    period = math.gcd(*a_strides, *b_strides)
    if period == 0:
        return True
    offset = (b_begin - a_begin) // a.element_size() % period
    return not (a_length <= offset and offset + b_length <= period)


# What the kernel addresses by itself: 16-byte accesses, and kMaxRowStrideBytes of csrc/device/arguments.hpp.
ALIGNMENT_BYTES = 16
MAX_ROW_STRIDE_BYTES = 1 << 24


def runs_as_it_is(tensor, row_dim: int) -> bool:
    """Whether the kernel can address a rank-4 view without a copy."""
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0 and strides_run(tensor, row_dim)


def strides_run(tensor, row_dim: int) -> bool:
    """Whether the kernel can address a rank-4 view of these strides, if its address is aligned."""
    size = tensor.element_size()
    if tensor.stride(3) != 1:
        return False
    strides = kernel_strides(tensor, (0, 1, 2))
    return not any(stride * size % ALIGNMENT_BYTES for stride in strides) and (
        strides[row_dim] * size <= MAX_ROW_STRIDE_BYTES
    )


def addressable(tensor, row_dim: int):
    """The view itself where the kernel can address it, else a contiguous copy."""
    if runs_as_it_is(tensor, row_dim):
        return tensor
    return tensor.new_empty(tensor.shape).copy_(tensor)  # contiguous() returns a misaligned view as it is


def kernel_strides(tensor, dimensions) -> tuple[int, ...]:
    """Strides of the given dimensions in elements; 0 where the size is 1 and torch's stride means nothing."""
    shape, strides = tensor.shape, tensor.stride()
    return tuple([strides[d] if shape[d] > 1 else 0 for d in dimensions])
