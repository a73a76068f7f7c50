"""Measurements of a real device: what `liteattention-rocm calibrate` does, rehearsed in the simulator."""
