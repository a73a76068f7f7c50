"""The class that carries skip lists from one denoising step to the next."""

import logging

import torch

from .. import arguments
from ..ops import attention as dense_attention
from ..rounding import rounding_name
from . import lists, ops

logger = logging.getLogger("liteattention_rocm")

DEFAULT_THRESHOLD = -10.0  # log2 units; the default of the CUDA implementation


class LiteAttention:
    """Attention that drops KV tiles no query looks at, step by step of a denoising run.

    An instance owns the lists of one attention layer, one CFG branch and one run; batch entries and heads
    have lists of their own. Each call reads the tiles to visit and writes those for the next call: a tile is
    dropped once, for all 128 query rows of a query tile, its largest score lies by more than the threshold
    below the largest score visited before it. Calls alternate the direction of the walk. A dropped tile does
    not come back before `reset_skip_state()` or a revival. Votes never change the output of the call that
    takes them: the first call is exact.

    Args:
        enable_skipping: False makes every call dense.
        threshold: log2 units, below 0, or ±inf; the more negative, the more is kept.
        layout: of q, k, v: "bshd" or "bhsd".
        rounding: a RoundMode or its name.
        exact_first_step: the first call after a reset is dense attention to the bit.
        revive_every: every so many calls the whole list is read again; 0: never.
        max_batch_size: the largest batch a call may have; None: any.

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
    ):
        arguments.check_layout(layout)
        for name, value in (("enable_skipping", enable_skipping), ("exact_first_step", exact_first_step)):
            _check_bool(name, value)
        _check_count("revive_every", revive_every, 0)
        if max_batch_size is not None:
            _check_count("max_batch_size", max_batch_size, 1)
        self.layout, self.rounding = layout, rounding_name(rounding)
        self.exact_first_step, self.revive_every = exact_first_step, revive_every
        self.max_batch_size = max_batch_size
        self.enabled = enable_skipping
        self.set_threshold(threshold)
        self._given = None
        self.reset_skip_state()

    def reset_skip_state(self) -> None:
        """Forgets the lists: the next call visits every tile. Call it at the start of a run."""
        self.step = 0
        self._lists = None  # int32 [2, batch, heads, query tiles, words]
        self._key = None  # what the lists were made for
        self._read = 0  # index of the buffer that the next call reads
        self._phase = 1  # of the next call: 1 forward, 0 backward

    def set_threshold(self, threshold) -> None:
        """Takes effect in the next call; log2 units, below 0, or ±inf."""
        self.threshold = ops.check_threshold(threshold)

    def enable_skip_optimization(self, enable: bool = True) -> None:
        """Switches between skipping and dense calls; the lists are kept."""
        _check_bool("enable", enable)
        self.enabled = enable

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
        if self.max_batch_size is not None and sizes.batch > self.max_batch_size:
            raise ValueError(f"q must have a batch of at most {self.max_batch_size}, got {sizes.batch}")
        must_do = self._tiles("must_do_list", must_do_list, sizes)
        must_skip = self._tiles("must_skip_list", must_skip_list, sizes)
        options = {"scale": scale, "layout": self.layout, "rounding": self.rounding}
        if not self.enabled or sizes.empty:
            return dense_attention(q, k, v, return_lse=return_softmax_lse, **options)
        self._prepare(q, sizes, must_do, must_skip)
        read, write = self._lists[self._read], self._lists[1 - self._read]
        if must_do is None:
            write.zero_()
        else:
            write.copy_(lists.pack(must_do).to(write.device).expand_as(write))
        out, lse = torch.ops.liteattention_rocm.attention_skip(
            q,
            k,
            v,
            read,
            write,
            threshold=self.threshold,
            backward=self._phase == 0,
            return_lse=return_softmax_lse,
            **options,
        )
        self._read, self._phase = 1 - self._read, 1 - self._phase
        self.step += 1
        return (out, lse) if return_softmax_lse else out

    def _tiles(self, name, token_ranges, sizes):
        if token_ranges is None or len(token_ranges) == 0:
            return None
        return lists.tiles_of_tokens(name, token_ranges, sizes.seqlen_kv)

    def _prepare(self, q, sizes, must_do, must_skip) -> None:
        """Makes the lists at the first call and whenever they are for something else."""
        key = (sizes, q.dtype, q.device)
        if key != self._key:
            if self._lists is not None:
                self.reset_skip_state()
            tiles = lists.kv_tiles(sizes.seqlen_kv)
            kept = torch.ones(tiles, dtype=torch.bool)
            if must_skip is not None:
                kept = ~must_skip if must_do is None else ~must_skip | must_do
                if not kept.any():
                    raise ValueError(f"must_skip_list leaves none of the {tiles} KV tiles to visit")
            shape = ops.list_shape(sizes)
            self._lists = torch.empty((2, *shape), dtype=torch.int32, device=q.device)
            self._lists[self._read] = lists.pack(kept).to(q.device)
            self._lists[1 - self._read] = 0
            self._key = key
        elif self.revive_every and self.step % self.revive_every == 0:
            self._lists[self._read] = lists.full((), lists.kv_tiles(sizes.seqlen_kv), q.device)

    @property
    def _kv_tiles(self) -> int:
        return lists.kv_tiles(self._key[0].seqlen_kv)

    @property
    def read_list(self):
        """What the next call visits: int16 [batch, heads, query tiles, 2 + KV tiles], a copy; None before
        the first call."""
        if self._lists is None:
            return None
        return lists.to_ranges(self._lists[self._read], self._kv_tiles, self._phase)

    @property
    def write_list(self):
        """What the last call visited, and the next one overwrites: as `read_list`."""
        if self._lists is None:
            return None
        return lists.to_ranges(self._lists[1 - self._read], self._kv_tiles, 1 - self._phase)

    def calc_percentage(self) -> float:
        """Share of the tiles that the last call skipped, 0 to 1. Waits for the device."""
        if self._lists is None or self.step == 0:
            return 0.0
        visited = lists.count(self._lists[1 - self._read])
        return 1.0 - visited.sum().item() / (visited.numel() * self._kv_tiles)

    def visualize_skips(self, path) -> None:
        """Writes a PNG of what the last call visited; see `picture.draw`."""
        from . import picture

        if self._lists is None or self.step == 0:
            raise ValueError("there is no list to draw before the first call")
        kept = lists.unpack(self._lists[1 - self._read], self._kv_tiles)
        picture.draw(kept, path, title=f"step {self.step}, {100 * self.calc_percentage():.1f} % skipped")


def _check_bool(name, value) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r}")


def _check_count(name, value, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
