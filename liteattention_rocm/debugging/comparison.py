"""One call that runs HIP, Triton and float64 on the same input and says where they part."""

import math
from dataclasses import asdict, dataclass

import torch

from .. import arguments
from . import observed, stages

MAX_SCORES = 1 << 22  # batch · heads · seqlen_q · seqlen_kv: float64 copies of several stages have to fit
KERNELS = {"hip": observed.hip, "triton": observed.triton}


@dataclass(frozen=True)
class Parting:
    """The first element at which a pair differs by more than rounding explains.

    Attributes:
        pair: what is compared.
        stage: one of `stages.STAGES`.
        tile: KV tile after which the value holds; None for LSE and O, which exist at the end alone.
        batch, head, row: of the query.
        column: kv row of S and P, head dim of O; None for the others.
        values: of the two, in the pair's order.
        tolerance: what rounding explains.
        ulps: units in the last place of the stage's type between the values.
    """

    pair: tuple[str, str]
    stage: str
    tile: int | None
    batch: int
    head: int
    row: int
    column: int | None
    values: tuple[float, float]
    tolerance: float
    ulps: int

    def __str__(self):
        where = [f"batch {self.batch}", f"head {self.head}", f"row {self.row}"]
        if self.tile is not None:
            where.insert(0, f"tile {self.tile}")
        if self.column is not None:
            where.append(f"{'dim' if self.stage == 'O' else 'kv row'} {self.column}")
        return (
            f"{' and '.join(self.pair)} part at {self.stage}, {', '.join(where)}: {self.values[0]:.9g} and "
            f"{self.values[1]:.9g}, {self.ulps} ULP; rounding explains {self.tolerance:.3g}"
        )


@dataclass(frozen=True)
class Agreement:
    """One stage of one pair: elements beyond the tolerance, the largest share of it that is used, the largest
    distance in units in the last place."""

    pair: tuple[str, str]
    stage: str
    beyond: int
    share: float
    ulps: int


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        ran: how each implementation ran.
        absent: implementations that could not run, and why.
        agreements: of every pair and stage.
        partings: the first element of each pair that parts.
    """

    ran: dict[str, str]
    absent: dict[str, str]
    agreements: list[Agreement]
    partings: list[Parting]

    @property
    def first(self) -> Parting | None:
        """The earliest parting: by tile, then by stage."""
        return min(self.partings, key=_order, default=None)

    def json(self) -> dict:
        return asdict(self)

    def text(self) -> str:
        lines = [f"{name:9}{how}" for name, how in self.ran.items()]
        lines += [f"{name:9}absent: {why}" for name, why in self.absent.items()]
        lines.append(f"\n{'pair':20}{'stage':14}{'beyond':>8}{'share of tolerance':>20}{'ULP':>10}")
        for one in self.agreements:
            ulps = f"≥{one.ulps}" if one.ulps == stages.MAX_ULPS else str(one.ulps)
            lines.append(f"{'–'.join(one.pair):20}{one.stage:14}{one.beyond:8}{one.share:20.3g}{ulps:>10}")
        lines += ["", *map(str, self.partings)] if self.partings else ["", "no pair parts"]
        return "\n".join(lines)


def _order(parting: Parting):
    tile = math.inf if parting.tile is None else parting.tile
    return tile, stages.STAGES.index(parting.stage), parting.batch, parting.head, parting.row


def compare(q, k, v, *, scale=None, layout="bshd", rounding="rtne", kernels=("hip", "triton")) -> Comparison:
    """Runs HIP, Triton and float64 on the same input and reports where they part, stage by stage.

    hip: the forward kernel of csrc/device/attention.hip in the gfx942 simulator, compiled with stores behind
    S, the row maximum, P, packed P and the row sum. triton: the Triton kernel with the same stores, on the
    tensors' GPU or, for CPU tensors, in Triton's interpreter. float64: the formulas. launched: what
    `liteattention_rocm.attention` gives, of which only LSE and O are known. A pair parts where it differs by
    more than the rounding of float32 explains; `stages` has the formulas, the units and the bounds. O in
    float64 is computed from the packed P of the implementation that it stands beside.

    Args:
        q, k, v, scale, layout, rounding: as `liteattention_rocm.attention` takes them; finite, and
            batch · heads · seqlen_q · seqlen_kv at most 4194304.
        kernels: which of "hip" and "triton" run.

    Raises:
        TypeError, ValueError: an argument's type or value.
        RuntimeError: the simulator found a fault.
    """
    arguments.check_tensor_types(q=q, k=k, v=v)
    rounding, scale = arguments.check_options(layout, rounding, scale)
    sizes = arguments.check_inputs(q, k, v, layout)
    for name in kernels:
        if name not in KERNELS:
            raise ValueError(f"kernels must be among {', '.join(KERNELS)}, got {name!r}")
    if sizes.empty:
        raise ValueError(f"q must have rows, got shape {tuple(q.shape)}")
    scores = sizes.batch * sizes.heads * sizes.seqlen_q * sizes.seqlen_kv
    if scores > MAX_SCORES:
        raise ValueError(
            f"q and k must have at most {MAX_SCORES} scores (batch · heads · seqlen_q · seqlen_kv), "
            f"got {scores}"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not tensor.isfinite().all():
            raise ValueError(f"{name} must be finite to be compared stage by stage")
    options = {"scale": scale, "layout": layout, "rounding": rounding}
    made, ran, absent = {}, {}, {}
    for name in kernels:
        try:
            made[name] = KERNELS[name](q, k, v, sizes, **options)
        except RuntimeError as error:
            if name == "hip":
                raise
            absent[name] = str(error)
            continue
        ran[name] = _how(name, q)
    made["launched"], ran["launched"] = _launched(q, k, v, options)
    ran["float64"] = "PyTorch on the CPU"
    of = stages.expected(q.cpu(), k.cpu(), v.cpu(), **options)
    pairs = [(name, "float64") for name in made]
    if "hip" in made and "triton" in made:
        pairs.append(("hip", "triton"))
    agreements, partings = [], []
    for pair in pairs:
        found = _compare_pair(pair, made, of)
        agreements += found[0]
        partings += sorted(found[1], key=_order)[:1]
    return Comparison(ran, absent, agreements, partings)


def _how(name: str, q) -> str:
    if name == "hip":
        return "attention.hip with stores, gfx942, simulated"
    where = "interpreter" if q.device.type == "cpu" else torch.cuda.get_device_name(q.device)
    return f"triton/kernels.py with stores, {where}"


def _launched(q, k, v, options) -> tuple[dict, str]:
    from .. import dispatch, ops

    out, lse = ops.attention(q, k, v, return_lse=True, **options)
    out = out.transpose(1, 2) if options["layout"] == "bshd" else out
    kernel = dispatch.serving(q.device).name
    return {"LSE": lse.cpu(), "O": out.cpu()}, f"liteattention_rocm.attention: {kernel} on {q.device}"


def _compare_pair(pair, made: dict, of: stages.Expected):
    agreements, partings = [], []
    for stage in stages.STAGES:
        a, b, tolerance = _sides(pair, stage, made, of)
        if a is None:
            continue
        difference = torch.where(a == b, 0.0, (a.double() - b.double()).abs())
        same_nan = a.isnan() & b.isnan()
        difference = difference.masked_fill(same_nan, 0.0).nan_to_num(nan=math.inf)
        beyond = difference > tolerance
        if stage == "packed P":
            for name in pair:
                if name in made:
                    own = made[name]
                    beyond |= ~stages.packing_is_exact(own["P"], own["packed P"], of.rounding)
        ulps = stages.ulps(a, b, stage).masked_fill(same_nan, 0)
        share = (difference / tolerance.clamp_min(stages.TINY)).max().item()
        agreements.append(Agreement(pair, stage, int(beyond.sum()), share, int(ulps.max())))
        if beyond.any():
            partings.append(_parting(pair, stage, beyond, a, b, tolerance, ulps))
    return agreements, partings


def _sides(pair, stage: str, made: dict, of: stages.Expected):
    """The two tensors of a stage and the tolerance between them; Nones where one side lacks the stage."""
    outputs = {}
    for name in pair:
        if stage == "O" and name in made:
            packed = made[name].get("packed P", of.values["packed P"])
            outputs[name] = stages.expected_output(of, packed, exact="packed P" in made[name])
    sides, tolerance = [], 0.0
    for name in pair:
        if name != "float64":
            if stage not in made[name]:
                return None, None, None
            sides.append(made[name][stage])
            tolerance = tolerance + (outputs[name][1] if stage == "O" else of.tolerances[stage])
        else:
            sides.append(outputs[pair[0]][0] if stage == "O" else of.values[stage])
    if stage == "O" and len(outputs) == 2:
        tolerance = tolerance + (outputs[pair[0]][0] - outputs[pair[1]][0]).abs()
    return *sides, tolerance


def _parting(pair, stage: str, beyond, a, b, tolerance, ulps) -> Parting:
    places = beyond.nonzero()
    if stage in stages.PER_TILE:
        tiles = places[:, 3] // (stages.TILE if stage in stages.WIDE else 1)
        places = places[tiles == tiles.min()]
    place = tuple(places[0].tolist())
    batch, head, row = place[:3]
    last = place[3] if len(place) > 3 else None
    tile = None
    if stage in stages.PER_TILE:
        tile = last // stages.TILE if stage in stages.WIDE else last
    return Parting(
        pair, stage, tile, batch, head, row, last if stage in (*stages.WIDE, "O") else None,
        (a[place].item(), b[place].item()), tolerance[place].item(), int(ulps[place]),
    )  # fmt: skip
