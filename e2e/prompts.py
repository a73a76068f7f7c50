"""Prompts of a comparison: scenes that move much, little, and differently from place to place."""

from __future__ import annotations

from pathlib import Path

from e2e import tiny_wan

PROMPTS = (
    *tiny_wan.PROMPTS,
    "A chef slices vegetables on a wooden board in a busy kitchen, steam rising behind her.",
    "Close-up of rain drops running down a window at night, blurred city lights beyond.",
    "A tram turns a corner in an old town while pedestrians cross the square.",
    "An orange cat stretches on a sunlit sofa and slowly falls asleep.",
    "Waves break over black rocks under a cloudy sky, spray drifting to the left.",
)


def choose(text: str) -> list[str]:
    """The first so many of :data:`PROMPTS`, or the lines of a text file.

    Raises:
        ValueError: a number out of range, a file that can't be read, or one without a prompt.
    """
    if text.lstrip("-").isdecimal():
        if not 1 <= int(text) <= len(PROMPTS):
            raise ValueError(f"--prompts {text} (allowed: 1 to {len(PROMPTS)}, or a text file)")
        return list(PROMPTS[: int(text)])
    try:
        lines = [line.strip() for line in Path(text).read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--prompts {text}: {error} (allowed: 1 to {len(PROMPTS)}, or a text file)"
        ) from None
    if not any(lines):
        raise ValueError(f"--prompts {text} holds no prompt")
    return [line for line in lines if line]
