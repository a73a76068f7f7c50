"""How far two attention results agree: bits, bf16 ulps, special values, log-sum-exps.

The peer is AITER's own code object. Inputs are of several kinds, drawn from a seed and nothing else.
"""

from dataclasses import dataclass, fields

import torch

from . import aiter_kernel, ops
from .rounding import ROUNDINGS

HEAD_DIM = 128
_LSE_TOLERANCE = 1e-5
_LSE_ROUNDING = 2.0**-21  # relative: some ulps of float32, for the scores' own sums of large products
_EXPONENT = 0x7F80  # of bf16: all ones in infinities and NaN


def _scaled(factor):
    def make(q, k, v):
        return q * factor, k * factor, v * factor

    return make


def _spiky(q, k, v):
    q[:, ::7] *= 30
    k[:, ::11] *= 20
    return q, k, v


def _low_logits(q, k, v):
    """Of about -1e6 at scale 1/sqrt(128), which differ by thousands."""
    return q + 100, k - 800, v


def _subnormal(q, k, v):
    """Scores that are float32 subnormals, and outputs that are bf16 subnormals."""
    return q * 2.0**-66, k * 2.0**-66, v * 2.0**-126


def _subnormal_inputs(q, k, v):
    return q * 2.0**-128, k, v * 2.0**-129


def _special_q_and_v(q, k, v):
    """An infinity of either sign and a NaN in single elements of Q and of V."""
    for row, value in ((3, torch.inf), (38, -torch.inf), (69, torch.nan)):
        q[0, row % q.shape[1], 0, row] = v[0, row % v.shape[1], 0, row] = value
    return q, k, v


def _special_k(q, k, v):
    """The same in K, one for each head; the last of several has none."""
    for head, value in enumerate((torch.inf, torch.nan, -torch.inf)[: max(1, k.shape[2] - 1)]):
        k[0, 40 % k.shape[1], head, 5] = value
    return q, k, v


KINDS = {
    "N(0,1)": lambda q, k, v: (q, k, v),
    "x4": _scaled(4),
    "x16": _scaled(16),
    "spiky rows": _spiky,
    "constant V": lambda q, k, v: (q, k, torch.ones_like(v)),
    "low logits": _low_logits,
    "subnormal": _subnormal,
    "subnormal inputs": _subnormal_inputs,
    "special Q and V": _special_q_and_v,
    "special K": _special_k,
}


@dataclass(frozen=True)
class Case:
    """One attention problem in layout "bshd". kind: of KINDS."""

    kind: str
    rounding: str
    seqlen_q: int
    seqlen_kv: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    scale: float | None = None
    seed: int = 0

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v, bfloat16."""
        generator = torch.Generator().manual_seed(self.seed)
        q, k, v = (
            torch.randn(self.batch, rows, heads, HEAD_DIM, generator=generator)
            for rows, heads in (
                (self.seqlen_q, self.heads),
                (self.seqlen_kv, self.kv_heads),
                (self.seqlen_kv, self.kv_heads),
            )
        )
        return tuple(tensor.bfloat16() for tensor in KINDS[self.kind](q, k, v))


@dataclass
class Agreement:
    """Counts of elements of `out`, and of rows of `lse`; addition merges parts.

    Attributes:
        elements: of out.
        identical: with the same bits.
        special: infinite or NaN in the peer.
        misplaced: infinite or NaN in one of the two, and other bits in the other.
        beyond_one_ulp: finite in both, and more than one bf16 ulp apart.
        rows: of lse.
        identical_rows: with the same bits.
        lse_excess: largest difference of finite lse over `lse_allowance`.
    """

    elements: int = 0
    identical: int = 0
    special: int = 0
    misplaced: int = 0
    beyond_one_ulp: int = 0
    rows: int = 0
    identical_rows: int = 0
    lse_excess: float = 0.0

    def __add__(self, other: "Agreement") -> "Agreement":
        merged = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Agreement(**merged | {"lse_excess": max(self.lse_excess, other.lse_excess)})

    def keeps_bars(self) -> bool:
        """Whether the variant "aiter_exact" may answer so."""
        return not self.misplaced and not self.beyond_one_ulp and self.share >= 0.999 and self.lse_excess <= 1

    @property
    def share(self) -> float:
        """Of bit-identical elements."""
        return self.identical / self.elements if self.elements else 1.0


def _patterns(tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF


def ordinal(patterns) -> torch.Tensor:
    """Integers in the order of the bf16 values, neighbours one apart, both zeros 0."""
    magnitude = patterns & 0x7FFF
    return torch.where(patterns >= 0x8000, -magnitude, magnitude)


def _kinds(patterns) -> torch.Tensor:
    """0 for finite values, 1 and 2 for the infinities, 3 for NaN."""
    magnitude = patterns & 0x7FFF
    infinity = torch.where(patterns >= 0x8000, 2, 1)
    return torch.where(magnitude < _EXPONENT, 0, torch.where(magnitude > _EXPONENT, 3, infinity))


def lse_allowance(lse) -> torch.Tensor:
    """How far log-sum-exps may differ: 1e-5, and what float32 rounds off large ones; float64."""
    return _LSE_TOLERANCE + _LSE_ROUNDING * lse.double().abs()


def agreement(out, lse, peer_out, peer_lse) -> Agreement:
    """Counts for two results of one call: out bfloat16, lse float32."""
    ours, theirs = _patterns(out), _patterns(peer_out)
    kinds, peer_kinds = _kinds(ours), _kinds(theirs)
    both_finite = (kinds == 0) & (peer_kinds == 0)
    apart = (ordinal(ours) - ordinal(theirs)).abs()
    known = lse.isfinite() & peer_lse.isfinite()
    difference = (lse.double() - peer_lse.double()).abs()
    allowed = lse_allowance(peer_lse)
    return Agreement(
        elements=ours.numel(),
        identical=int((ours == theirs).sum()),
        special=int((peer_kinds != 0).sum()),
        misplaced=int((~both_finite & (ours != theirs)).sum()),
        beyond_one_ulp=int((both_finite & (apart > 1)).sum()),
        rows=lse.numel(),
        identical_rows=int((lse.view(torch.int32) == peer_lse.view(torch.int32)).sum()),
        lse_excess=float((difference / allowed)[known].max()) if known.any() else 0.0,
    )


def with_aiter(case: Case, variant: str, inputs=None) -> Agreement:
    """One variant against AITER's code object on a case, or on other inputs of the case's options."""
    q, k, v = case.inputs() if inputs is None else inputs
    options = {"rounding": case.rounding, "scale": case.scale, "return_lse": True}
    ours = ops.attention(q, k, v, variant=variant, **options)
    return agreement(*ours, *aiter_kernel.forward(q, k, v, **options))


# Self and cross shapes: Sq below and above a workgroup of either kernel, odd lengths, shared KV heads.
_SHAPES = (
    {"seqlen_q": 256, "seqlen_kv": 256, "heads": 2, "kv_heads": 2},
    {"seqlen_q": 383, "seqlen_kv": 321, "heads": 2, "kv_heads": 1},
    {"seqlen_q": 129, "seqlen_kv": 1027, "heads": 3, "kv_heads": 3},
    {"seqlen_q": 640, "seqlen_kv": 77, "heads": 1, "kv_heads": 1},
)


def part(index: int) -> Case:
    """The cases of a long comparison, by number: kinds and modes in turn, then the next shape and seed."""
    index, rounding = divmod(index, len(ROUNDINGS))
    index, kind = divmod(index, len(KINDS))
    shape = _SHAPES[index % len(_SHAPES)]
    return Case(list(KINDS)[kind], list(ROUNDINGS)[rounding], seed=1000 + index, **shape)
