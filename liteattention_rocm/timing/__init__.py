"""Modelled time on an MI300X: executed traces, a clock for one compute unit, and the device around it.

Everything here is modelled; no number comes from hardware except the published times that calibrate it.
"""

from .kernels import KERNELS, Kernel, Shape
from .parameters import parameter_sets
from .profiling import profile, ratio

__all__ = ["KERNELS", "Kernel", "Shape", "parameter_sets", "profile", "ratio"]
