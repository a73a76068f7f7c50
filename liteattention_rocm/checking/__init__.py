"""Kernels under the simulator's checks, and mutants of kernels that the checks have to find."""
