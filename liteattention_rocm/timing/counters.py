"""What rocprofv3 would read for a launch, modelled, under the hardware counters' own names.

Definitions: ROCm documentation, "MI300 and MI200 series performance counters and metrics".
"""

from .steady import Steady

_CLOCKS_PER_SLOT = 4


def _executed(*categories):
    return lambda answer: sum(answer["executed"][category] for category in categories)


def _field(*names):
    return lambda answer: sum(answer[name] for name in names)


_COUNTERS = {
    "SQ_INSTS_VALU": _executed("vector", "transcendental", "matrix"),  # includes MFMA
    "SQ_INSTS_MFMA": _executed("matrix"),
    "SQ_INSTS_SALU": _executed("scalar"),
    "SQ_INSTS_SMEM": _executed("scalar_memory"),
    "SQ_INSTS_LDS": _executed("lds"),
    "SQ_INSTS_VMEM_RD": _field("loads"),
    "SQ_INSTS_VMEM_WR": _field("stores"),
    "SQ_INSTS_FLAT": _field("flat"),
    "SQ_INSTS_BRANCH": _field("branches"),
    "SQ_LDS_BANK_CONFLICT": _field("lds_conflict_clocks"),
    "SQ_LDS_IDX_ACTIVE": _field("lds_clocks"),
    "SQ_VALU_MFMA_BUSY_CYCLES": lambda answer: answer["matrix_slots"] * _CLOCKS_PER_SLOT,
    "TCP_TOTAL_CACHE_ACCESSES_sum": _field("l1_lines"),
    "TCP_TCC_READ_REQ_sum": _field("l1_misses"),
    "TCP_TCC_WRITE_REQ_sum": _field("stored_lines"),
    "TCC_REQ_sum": _field("l1_misses", "stored_lines"),
    "TCC_MISS_sum": _field("hbm_lines"),
}


def counters(steady: Steady, residents: int, workgroups: int, waves_per_workgroup: int) -> dict[str, int]:
    """Totals of a launch from those of one CU's residents."""
    totals = {"SQ_WAVES": workgroups * waves_per_workgroup}
    for name, read in _COUNTERS.items():
        totals[name] = round(steady.total(read) / residents * workgroups)
    return totals


def names() -> list[str]:
    """The counters, as rocprofv3 calls them."""
    return ["SQ_WAVES", *_COUNTERS]
