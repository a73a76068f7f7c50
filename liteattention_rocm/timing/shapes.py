"""The problem that a kernel is timed on."""

import re
from dataclasses import dataclass

HEAD_DIM = 128


@dataclass(frozen=True)
class Shape:
    """Attention of [batch, seqlen_q, heads, 128] over seqlen_kv rows; layout "bshd"."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_kv: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """From "batch,heads,seqlen" or "batch,heads,seqlen_q,seqlen_kv".

        Raises:
            ValueError: not three or four positive integers.
        """
        if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9}){2,3}", text):
            raise ValueError(f"shape must be B,H,Sq or B,H,Sq,Skv, got {text!r}")
        numbers = [int(number) for number in text.split(",")]
        if 0 in numbers:
            raise ValueError(f"shape must have positive extents, got {text!r}")
        return cls(*numbers[:3], numbers[-1])

    @property
    def flop(self) -> int:
        return 4 * self.batch * self.heads * self.seqlen_q * self.seqlen_kv * HEAD_DIM

    @property
    def bytes_once(self) -> int:
        """Q, K, V and O in bfloat16, each moved once."""
        return 2 * HEAD_DIM * self.batch * self.heads * 2 * (self.seqlen_q + self.seqlen_kv)
