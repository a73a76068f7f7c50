"""The self-test: fixed inputs through the product path on a device, against what the simulator recorded."""

from .judging import record, run

__all__ = ["record", "run"]
