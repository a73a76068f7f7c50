"""Findings that are understood, and why they do no harm."""

import re

# (kernel, check, words of the message, explanation)
_EXPLAINED = (
    (
        r"aiter.*fmha_fwd",
        "resources",
        r"but the kernel descriptor allocates \d+ VGPRs",
        "the descriptor allocates 256 registers and lets AGPRs begin at 160; AITER names all 256 as VGPRs "
        "and uses no AGPR, so that no register has two names",
    ),
    (
        r"aiter.*fmha_fwd",
        "wait_states",
        r"M0 was written by the instruction before a transfer into LDS",
        "LLVM keeps one wait state between a write of M0 and a transfer into LDS on all of gfx9; AITER's "
        "kernels, shipped for MI300X, write M0 right before theirs",
    ),
    (
        r"aiter.*fmha_fwd",
        "wait_states",
        r"a VALU instruction reads a lane mask .*\"v_cmp_",
        "LLVM keeps two wait states between a compare and any VALU instruction that reads its mask; AITER's "
        "kernels, shipped for MI300X, select by a mask right behind the compare",
    ),
    (
        r"aiter.*fmha_fwd",
        "bounds",
        r"is the first beyond \"(q|k|v|out)\"",
        "AITER bounds a head's rows by rows x row stride from the head's own first byte, so that the extent "
        "passes the end of the tensor by what lies behind the last row's own 256 bytes; no lane goes there",
    ),
)


def explanation(finding: dict) -> str:
    """Why a finding of `simulator.findings` does no harm; "" where that is not known."""
    for kernel, check, words, text in _EXPLAINED:
        if (
            check == finding["check"]
            and re.search(kernel, finding["kernel"])
            and re.search(words, finding["message"])
        ):
            return text
    return ""
