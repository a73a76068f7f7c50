"""The kernels of the code object, and how each is run on a case through the product path."""

import contextlib
import functools
import hashlib
import os
import re
from dataclasses import dataclass, replace

import torch

from .. import _C, arguments, dispatch, ops, runtime, varlen, verdicts
from ..lite import lists
from ..lite.cost import QUERY_TILES_OF
from .cases import CASES, Case, random_bits

_POISON = 0x7FA5
_DENSE = re.compile(r"attention_(forward|pingpong|aiter_exact)_(rtne|rtna|rtz)")
_SPLIT = re.compile(r"attention_(forward|pingpong)_split_(rtne|rtna|rtz)")
_MERGE = re.compile(r"attention_merge_(rtne|rtna|rtz)")
_PIECES = 3  # in which the splitting kernels take KV
_SKIP = re.compile(r"attention_(skip_(?:forward|pingpong)(?:_split)?|skip_merge)_(rtne|rtna|rtz)")
_VARLEN = re.compile(r"attention_varlen_(rtne|rtna|rtz)")
_ORDER = "attention_skip_order"
_PREPARED = "attention_skip_pieces"
_THRESHOLD = -2.5  # log2 units; scores of exact cases are integers, none is at it
_ORDER_LISTS = (2, 3, 45, 2)  # of the kernel that orders them: batch, heads, query tiles, words


@dataclass(frozen=True)
class Result:
    """What one run gave, on the CPU: out in the case's layout, lse, and what else the kernel wrote."""

    out: torch.Tensor
    lse: torch.Tensor
    others: tuple[torch.Tensor, ...] = ()

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for tensor in (self.out, self.lse, *self.others):
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Variant:
    """One kernel. rounding: None where it has none.

    family: "forward", "pingpong", "forward_split", "pingpong_split", "merge", "aiter_exact", "varlen",
    "skip_forward", "skip_pingpong", "skip_forward_split", "skip_pingpong_split", "skip_merge", "skip_pieces"
    or "order". A splitting kernel runs with the merge behind it, the merge behind the one of 128 rows;
    skipping ones also with the kernel that prepares their lists, which runs with those of rtne.
    """

    name: str
    family: str
    rounding: str | None

    @property
    def cases(self) -> tuple[Case, ...]:
        if self.family == "order":
            return (Case("lists", "exact", 1, 1, 1, 1, 1),)
        if self.family in ("skip_pieces", "skip_merge"):  # all of them run with the kernel of 128 rows
            return CASES[::4]
        if self.family in ("pingpong_split", "skip_pingpong_split"):  # as the others below, in every piece
            return tuple(case.levelled() for case in CASES)
        if "pingpong" in self.family:  # it rounds the running maximum down by an ulp
            return tuple(replace(case, steady=case.kind == "exact") for case in CASES)
        return CASES

    @property
    def skips(self) -> bool:
        return self.family.startswith("skip_")

    def kept(self, case: Case) -> torch.Tensor | None:
        """The KV tiles that a skipping kernel visits, bool [batch, heads, query tiles, KV tiles]; None: all.

        In exact cases every other query tile visits one tile alone, so that row sums stay powers of two:
        the first one where the maxima must be in it.
        """
        if not self.skips:
            return None
        shape = case.batch, case.heads, lists.query_tiles(case.seqlen_q), lists.kv_tiles(case.seqlen_kv)
        if case.kind == "exact":
            index = sum(torch.arange(n).reshape(-1, *[1] * (2 - i)) for i, n in enumerate(shape[:3]))
            only = torch.zeros_like(index) if "pingpong" in self.family else index % shape[3]
            one = torch.nn.functional.one_hot(only, shape[3]).bool()
            return one | (index % 2 == 0).unsqueeze(-1)
        kept = (random_bits(torch.Size(shape).numel(), seed=9) % 5 < 3).reshape(shape)
        kept[..., 0] |= ~kept.any(dim=-1)
        return kept

    def execute(self, case: Case, device: torch.device) -> Result:
        """Runs one case, dense ones onto a poisoned output. Refusals don't count."""
        with verdicts.suspended(), _only(self.family):
            if self.family == "order":
                return _order(device)
            q, k, v = (tensor.to(device) for tensor in case.inputs())
            if case.fused and case.layout == "bshd":  # .to() makes a view contiguous
                k, v = torch.stack((k, v), dim=2).unbind(2)
            options = {
                "scale": case.scale,
                "layout": case.layout,
                "rounding": self.rounding or "rtne",
                "return_lse": True,
            }
            if self.skips:
                read = lists.pack(self.kept(case)).to(device)
                write = torch.zeros_like(read)
                out, lse = torch.ops.liteattention_rocm.attention_skip(
                    q, k, v, read, write, threshold=_THRESHOLD, backward=False,
                    kernel="pingpong" if "pingpong" in self.family else "forward",
                    pieces=1 if self.family in ("skip_forward", "skip_pingpong") else _PIECES, **options,
                )  # fmt: skip
                return Result(out.cpu(), lse.cpu(), (write.cpu(),))
            if self.family == "varlen":
                return _packed(case, q, k, v, options)
            out = torch.full(q.shape, _POISON, dtype=torch.int16, device=device).view(torch.bfloat16)
            variant = self.family if self.family in arguments.VARIANTS else "fast"
            _, lse = ops.attention(q, k, v, out=out, variant=variant, **options)
            return Result(out.cpu(), lse.cpu())


def _packed(case: Case, q, k, v, options) -> Result:
    """A case's batch entries as sequences behind one another, with an empty one after each."""
    by_row = [t if case.layout == "bshd" else t.transpose(1, 2) for t in (q, k, v)]
    lengths = (case.seqlen_q, case.seqlen_kv)
    bounds = [
        [0, *(entry * length for entry in range(1, case.batch + 1) for _ in range(2))] for length in lengths
    ]
    cumulative = [torch.tensor(values, dtype=torch.int32).to(q.device) for values in bounds]
    out, lse = varlen.attention_varlen(
        *(t.flatten(0, 1) for t in by_row),
        *cumulative,
        *lengths,
        scale=options["scale"],
        rounding=options["rounding"],
        return_lse=True,
    )
    out = out.cpu().unflatten(0, (case.batch, case.seqlen_q))
    lse = lse.cpu().unflatten(1, (case.batch, case.seqlen_q)).transpose(0, 1)
    return Result(out if case.layout == "bshd" else out.transpose(1, 2), lse)


def _order(device: torch.device) -> Result:
    count = torch.Size(_ORDER_LISTS).numel()
    words = random_bits(count, 3) & random_bits(count, 4)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).reshape(_ORDER_LISTS)
    results = []
    for merged in QUERY_TILES_OF.values():
        results += torch.ops.liteattention_rocm.skip_order(words.to(device), merged)
    nothing = torch.zeros(0)
    return Result(nothing, nothing, tuple(result.cpu() for result in results))


@contextlib.contextmanager
def _only(family: str):
    """Makes the product launch HIP kernels, and of the dense ones this family, whatever else would serve."""
    before = os.environ.get(dispatch.KERNEL_VARIABLE)
    forced = runtime.forced_family, runtime.forced_pieces
    os.environ[dispatch.KERNEL_VARIABLE] = "hip"
    splits = family == "merge" or family.endswith("_split")
    dense = "forward" if family == "merge" else family.removesuffix("_split")
    if dense in runtime.DENSE_FAMILIES:
        runtime.forced_family, runtime.forced_pieces = dense, _PIECES if splits else 1
    try:
        yield
    finally:
        runtime.forced_family, runtime.forced_pieces = forced
        del os.environ[dispatch.KERNEL_VARIABLE]
        if before is not None:
            os.environ[dispatch.KERNEL_VARIABLE] = before


def variants() -> dict[str, Variant | None]:
    """Every kernel of the code object; None: there is no case for it."""
    return {name: _variant(name) for name in _C.kernel_names()}


@functools.cache
def _variant(name: str) -> Variant | None:
    if match := _DENSE.fullmatch(name):
        return Variant(name, match[1], match[2])
    if match := _VARLEN.fullmatch(name):
        return Variant(name, "varlen", match[1])
    if match := _SPLIT.fullmatch(name):
        return Variant(name, f"{match[1]}_split", match[2])
    if match := _MERGE.fullmatch(name):
        return Variant(name, "merge", match[1])
    if match := _SKIP.fullmatch(name):
        return Variant(name, match[1], match[2])
    if name == _PREPARED:
        return Variant(name, "skip_pieces", None)
    return Variant(name, "order", None) if name == _ORDER else None
