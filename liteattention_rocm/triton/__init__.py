"""Attention kernels in Triton: a baseline to compare with, and what serves GPUs without a HIP code object."""
