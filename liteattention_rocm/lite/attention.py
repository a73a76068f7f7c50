"""The class that carries skip lists from one denoising step to the next."""

import torch

from .. import arguments, dispatch, runtime, verdicts
from ..ops import attention as dense_attention
from ..rounding import rounding_name
from . import lists, ops
from .cost import QUERY_TILES_OF, Costs, Listed
from .fallback import TRITON_BREAK_EVEN, Fallback

DEFAULT_THRESHOLD = -10.0  # log2 units; the default of the CUDA implementation


class LiteAttention:
    """Attention that drops KV tiles no query looks at, step by step of a denoising run.

    An instance owns the lists of one attention layer, one CFG branch and one run; batch entries and heads
    have lists of their own. Each call reads the tiles to visit and writes those for the next call: a tile is
    dropped once, for all 128 query rows of a query tile, its largest score lies by more than the threshold
    below the largest score visited before it. Calls alternate the direction of the walk. A dropped tile does
    not come back before `reset_skip_state()` or a revival.

    Args:
        enable_skipping: False makes every call dense.
        threshold: log2 units, below 0, or ±inf; the more negative, the more is kept. A sequence has one for
            each call after a reset, the last for all further ones.
        layout: of q, k, v: "bshd" or "bhsd".
        rounding: a RoundMode or its name.
        exact_first_step: the first call after a reset is dense attention to the bit. False: in every call a
            wave leaves out what is negligible for its own 32 rows, as published implementations do.
        revive_every: every so many calls the whole list is read again; 0: never.
        max_batch_size: the largest batch a call may have; None: any.
        skip_within_call: a wave leaves out what is negligible for its own 32 rows in the very call that finds
            out, where exact_first_step allows. False: votes change later calls alone.
        break_even: share of skipped tiles below which dense attention is faster: below it for some calls, the
            instance falls back to dense calls and tries again now and then. 0: never; None: what the model of
            the device says for each shape.
        name: of the layer, for the log.

    Raises:
        TypeError, ValueError: an argument's type or value.
    """

    def __init__(
        self,
        enable_skipping=True,
        threshold=DEFAULT_THRESHOLD,
        *,
        layout="bshd",
        rounding="rtne",
        exact_first_step=True,
        revive_every=0,
        max_batch_size=None,
        skip_within_call=False,
        break_even=None,
        name="",
    ):
        arguments.check_layout(layout)
        _check_bool("exact_first_step", exact_first_step)
        _check_bool("skip_within_call", skip_within_call)
        _check_count("revive_every", revive_every, 0)
        if max_batch_size is not None:
            _check_count("max_batch_size", max_batch_size, 1)
        if break_even is not None:
            if isinstance(break_even, bool) or not isinstance(break_even, (int, float)):
                raise TypeError(f"break_even must be a number or None, got {break_even!r}")
            if not 0 <= break_even <= 1:
                raise ValueError(f"break_even must be from 0 to 1, got {break_even}")
        self.layout, self.rounding = layout, rounding_name(rounding)
        self.exact_first_step, self.skip_within_call = exact_first_step, skip_within_call
        self.revive_every, self.max_batch_size = revive_every, max_batch_size
        self._modelled = break_even is None
        self._fallback = Fallback(break_even or 0.0, name)
        self.set_threshold(threshold)
        self.enable_skip_optimization(enable_skipping)
        self.reset_skip_state()

    def reset_skip_state(self) -> None:
        """Forgets the lists: the next call visits every tile. Call it at the start of a run."""
        self.step = 0
        self._lists = None  # int32 [2, batch, heads, query tiles, words]
        self._made_for = None
        self._full_row = None  # of a list that keeps everything
        self._pinned = None  # what must be done in the last call: (bool [KV tiles], its words on the device)
        self._given = None  # a list that the caller set: (bits, KV tiles, Listed)
        self._read = 0  # index of the buffer that the next call reads
        self._phase = 1  # of the next call: 1 forward, 0 backward
        self._orders = {}  # by kernel: its workgroups by work, for the list that the next call reads
        self._listed = Listed()  # the latest list of which it is known how much it names
        self._pending = None  # what the list that the next call reads names, perhaps still on its way
        self._costs = None  # for the shape at hand
        self._last_was_dense = True
        self._fallback.reset()

    def set_threshold(self, threshold) -> None:
        """Takes effect in the next call; log2 units, below 0, or ±inf; or a sequence of them, by step."""
        if isinstance(threshold, (list, tuple)):
            if not threshold:
                raise ValueError("threshold must have at least one entry, got an empty sequence")
            self._thresholds = [ops.check_threshold(entry) for entry in threshold]
        else:
            self._thresholds = [ops.check_threshold(threshold)]

    @property
    def threshold(self) -> float:
        """What the next call votes with, log2 units."""
        return self._thresholds[min(self.step, len(self._thresholds) - 1)]

    def enable_skip_optimization(self, enable: bool = True) -> None:
        """Switches between skipping and dense calls; the lists are kept."""
        _check_bool("enable", enable)
        self.enabled = enable

    @property
    def is_dense(self) -> bool:
        """Whether calls are dense now, by choice or because skipping doesn't pay."""
        return not self.enabled or self._fallback.dense

    @property
    def last_was_dense(self) -> bool:
        """Whether the last call used no list; True before the first one."""
        return self._last_was_dense

    def __call__(
        self,
        q,
        k,
        v,
        scale=None,
        return_softmax_lse=False,
        must_do_list=None,
        must_skip_list=None,
    ):
        """Attention over the tiles that are left.

        Args:
            q, k, v, scale: as `liteattention_rocm.attention` takes them, in this instance's layout.
            return_softmax_lse: also return the log-sum-exp, float32 [batch, heads, seqlen_q].
            must_do_list: token ranges [s0, e0, s1, e1, …] of k, ends exclusive, whose tiles stay in every
                list written.
            must_skip_list: token ranges whose tiles are left out of the first list. Starts round down to
                tiles and ends up; what must be done is not skipped.

        Raises:
            TypeError, ValueError: as `liteattention_rocm.attention`, and for the lists, before anything is
                launched.
        """
        arguments.check_tensor_types(q=q, k=k, v=v)
        _check_bool("return_softmax_lse", return_softmax_lse)
        sizes = arguments.check_inputs(q, k, v, self.layout)
        options = {"scale": scale, "layout": self.layout, "rounding": self.rounding}
        arguments.check_options(self.layout, self.rounding, scale)
        if self.max_batch_size is not None and sizes.batch > self.max_batch_size:
            raise ValueError(f"q must have a batch of at most {self.max_batch_size}, got {sizes.batch}")
        must_do = _tiles("must_do_list", must_do_list, sizes)
        must_skip = _tiles("must_skip_list", must_skip_list, sizes)
        if sizes.empty or not self.enabled:
            return self._dense_call(q, k, v, return_softmax_lse, options)
        server = dispatch.serving(q.device)
        self._prepare(q, sizes, must_do, must_skip, server)
        kernels = self._permitted(server)
        self._observe_listed(kernels)
        kind = self._fallback.next_call()
        if kind == "dense":
            return self._dense_call(q, k, v, return_softmax_lse, options)
        if kind == "probe":
            self._revive()
        read, write = self._lists[self._read], self._lists[1 - self._read]
        self._last_was_dense = True  # until the list below is written again
        if must_do is None:
            write.zero_()
        else:
            write.copy_(self._pinned_words(must_do).expand_as(write))
        kernel = self._costs.fastest(self._listed, kernels) if len(kernels) > 1 else kernels[0]
        split = {}
        if self._costs:
            split["pieces"] = runtime.permitted_skip_pieces(server.target, kernel, self.rounding)
            split["visited"] = self._costs.visited(kernel, self._listed)
        out, lse = torch.ops.liteattention_rocm.attention_skip(
            q,
            k,
            v,
            read,
            write,
            threshold=self.threshold,
            backward=self._phase == 0,
            votes_count=self._votes_count,
            order=self._orders.get(kernel),
            kernel=kernel,
            return_lse=return_softmax_lse,
            **split,
            **options,
        )
        counts = {}
        for name, merged in QUERY_TILES_OF.items() if self._costs else [("forward", 1)]:
            counts[name], self._orders[name] = torch.ops.liteattention_rocm.skip_order(write, merged)
        self._pending = _Pending(counts, lists.kv_tiles(sizes.seqlen_kv))
        self._read, self._phase = 1 - self._read, 1 - self._phase
        self._last_was_dense = False
        self.step += 1
        return (out, lse) if return_softmax_lse else out

    @property
    def _votes_count(self) -> bool:
        return not self.exact_first_step or (self.skip_within_call and self.step > 0)

    def _permitted(self, server) -> list[str]:
        """The schedules that this instance may use; other kernels than HIP's have one."""
        if server.name != "hip" or self._votes_count:
            return ["forward"]
        names = [runtime.forced_family] if runtime.forced_family else list(QUERY_TILES_OF)
        refused = verdicts.refused(server.target)
        if not refused:
            return names
        passed = [n for n in names if runtime.kernel_symbol(f"skip_{n}", self.rounding) not in refused]
        return passed or names

    def _dense_call(self, q, k, v, return_lse, options):
        result = dense_attention(q, k, v, return_lse=return_lse, **options)
        self._last_was_dense = True
        self.step += 1
        return result

    def _prepare(self, q, sizes, must_do, must_skip, server) -> None:
        """Makes the lists at the first call and whenever they are for something else; sets what was given."""
        shape, tiles = ops.list_shape(sizes), lists.kv_tiles(sizes.seqlen_kv)
        if self._given is not None and (self._given[0].shape != shape or self._given[1] != tiles):
            raise ValueError(
                f"read_list was set for {(*self._given[0].shape[:3], self._given[1])} [batch, heads, query "
                f"tiles, KV tiles], but this call has {(*shape[:3], tiles)}"
            )
        made_for = (sizes, q.dtype, q.device, server.name)
        if made_for != self._made_for:
            costs = None
            if server.name == "hip":
                costs = Costs(sizes, server.target.compute_units, runtime.planned_pieces())
            kept = torch.ones(tiles, dtype=torch.bool)
            if must_skip is not None:
                kept = ~must_skip if must_do is None else ~must_skip | must_do
                if not kept.any():
                    raise ValueError(f"must_skip_list leaves none of the {tiles} KV tiles to visit")
            given = self._given
            if self._made_for is not None:
                self.reset_skip_state()
            self._given = given
            self._lists = torch.zeros((2, *shape), dtype=torch.int32, device=q.device)
            self._lists[self._read] = lists.pack(kept).to(q.device)
            self._full_row = lists.full((), tiles, q.device)
            self._listed = Listed(*2 * [kept.float().mean().item()])
            self._costs, self._made_for = costs, made_for
            if self._modelled and server.name == "triton":
                self._fallback.break_even = TRITON_BREAK_EVEN
        elif self.revive_every and self.step % self.revive_every == 0:
            self._revive()
        if self._given is not None:
            self._lists[self._read], self._listed = self._given[0].to(q.device), self._given[2]
            self._given, self._orders, self._pending = None, {}, None

    def _revive(self) -> None:
        self._lists[self._read] = self._full_row
        self._orders, self._pending, self._listed = {}, None, Listed()

    def _pinned_words(self, must_do):
        """A row of a list on the device, made once: a copy from the host in every call would wait for it."""
        if self._pinned is None or not torch.equal(self._pinned[0], must_do):
            self._pinned = must_do, lists.pack(must_do).to(self._lists.device)
        return self._pinned[1]

    def _observe_listed(self, kernels) -> None:
        """Tells the fallback what is known about the list that the next call reads, without waiting."""
        if self._pending is None or (listed := self._pending.get()) is None:
            return
        self._listed, self._pending = listed, None
        if not self._modelled or self._costs is None:
            self._fallback.observe(1.0 - listed.tiles)
            return
        kernel = self._costs.fastest(listed, kernels)
        self._fallback.break_even = self._costs.break_even(kernel)
        self._fallback.observe(1.0 - listed.visited(kernel))

    @property
    def _kv_tiles(self) -> int:
        return lists.kv_tiles(self._made_for[0].seqlen_kv)

    @property
    def read_list(self):
        """What the next call visits: int16 [batch, heads, query tiles, 2 + KV tiles], a copy; None before
        the first call. Assigning replaces it, for a call of the shape that the list has.

        Raises:
            TypeError, ValueError: no such list, or a row that visits nothing, or whose ranges are empty,
                overlap, leave the tiles or run against the walk; names the row.
        """
        if self._given is not None:
            return lists.to_ranges(*self._given[:2], self._phase)
        if self._lists is None:
            return None
        return lists.to_ranges(self._lists[self._read], self._kv_tiles, self._phase)

    @read_list.setter
    def read_list(self, ranges) -> None:
        bits, tiles = lists.from_ranges(ranges, self._phase)
        self._given = bits, tiles, _listed_by(bits, tiles)

    @property
    def write_list(self):
        """What the last call visited, and the next one overwrites: as `read_list`."""
        if self._lists is None:
            return None
        return lists.to_ranges(self._lists[1 - self._read], self._kv_tiles, 1 - self._phase)

    def calc_percentage(self) -> float:
        """Share of the tiles that the last call skipped, 0 to 1. Waits for the device."""
        if self._last_was_dense:
            return 0.0
        visited = lists.count(self._lists[1 - self._read])
        return 1.0 - visited.sum().item() / (visited.numel() * self._kv_tiles)

    def visualize_skips(self, path) -> None:
        """Writes a PNG of what the last call visited, a panel per head: see `picture.draw`.

        Raises:
            ValueError: no call has used a list yet.
            RuntimeError: pillow is not installed.
        """
        from . import picture

        if self._lists is None or self.step == 0:
            raise ValueError("there is no list to draw before the first call")
        kept = lists.unpack(self._lists[1 - self._read], self._kv_tiles)
        picture.draw(kept, path, title=f"step {self.step}, {100 * self.calc_percentage():.1f} % skipped")


class _Pending:
    """How much a list names, fetched from the device in the background.

    Args:
        counts: by kernel, the tiles that each of its workgroups visits.
        kv_tiles: of the sequence.
    """

    def __init__(self, counts, kv_tiles: int):
        self._kernels = list(counts)
        self._totals = [count.numel() * kv_tiles for count in counts.values()]
        self._sums, self._ready = torch.stack([count.sum() for count in counts.values()]), None
        self._known = True
        self._device = self._sums.device
        if self._sums.is_cuda:
            self._known = not self._captured()
            if not self._known:
                return
            pinned = torch.empty(self._sums.shape, dtype=self._sums.dtype, pin_memory=True)
            self._sums = pinned.copy_(self._sums, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(self._device))

    def _captured(self) -> bool:
        with torch.cuda.device(self._device):  # may not be the current one
            return torch.cuda.is_current_stream_capturing()

    def get(self) -> Listed | None:
        """None where it isn't known: not yet, or because a graph is being captured."""
        if not self._known:
            return None
        if self._ready is not None:
            if self._captured():  # HIP would end the capture
                return None
            try:
                if not self._ready.query():
                    return None
            except RuntimeError:  # another thread is capturing
                return None
        shares = [n / total for n, total in zip(self._sums.tolist(), self._totals, strict=True)]
        by_kernel = dict(zip(self._kernels, shares, strict=True))
        tiles = by_kernel.get("forward", 1.0)
        return Listed(tiles, by_kernel.get("pingpong", tiles))


def _listed_by(bits, kv_tiles: int) -> Listed:
    """How much a list names: int32 [..., query tiles, words]. Waits for the device."""
    tiles, unions = (
        lists.count(lists.union(bits, merged)).double().mean().item() / kv_tiles
        for merged in QUERY_TILES_OF.values()
    )
    return Listed(tiles, unions)


def _tiles(name, token_ranges, sizes):
    if token_ranges is None:
        return None
    tiles = lists.tiles_of_tokens(name, token_ranges, sizes.seqlen_kv)
    return tiles if tiles.any() else None


def _check_bool(name, value) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r}")


def _check_count(name, value, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
