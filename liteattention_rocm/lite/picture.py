"""Pictures of skip lists."""

import math

MARGIN, TITLE_HEIGHT, LABEL_HEIGHT = 8, 18, 14
LARGEST_PANEL = 384  # pixels; lists with more tiles are averaged down to it
_VISITED, _SKIPPED, _GROUND = (38, 70, 131), (236, 236, 236), (255, 255, 255)


def draw(kept, path, *, title: str) -> None:
    """Writes a PNG with a panel per batch entry and head: a row per query tile, a column per KV tile, dark
    where the tile is visited.

    Args:
        kept: bool [batch, heads, query tiles, KV tiles].
        path: of the file.
        title: drawn on top.

    Raises:
        RuntimeError: pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise RuntimeError("visualize_skips needs pillow: pip install pillow") from error
    batch, heads, rows, columns = kept.shape
    kept = kept.cpu().float()
    enlarge = max(1, min(8, LARGEST_PANEL // max(rows, columns)))
    height, width = (min(size * enlarge, LARGEST_PANEL) for size in (rows, columns))
    panels = batch * heads
    across = min(panels, max(1, math.ceil(math.sqrt(panels * (height + LABEL_HEIGHT) / width))))
    down = -(-panels // across)
    size = (
        MARGIN + across * (width + MARGIN),
        MARGIN + TITLE_HEIGHT + down * (height + LABEL_HEIGHT + MARGIN),
    )
    picture = Image.new("RGB", (max(size[0], 8 * len(title)), size[1]), _GROUND)
    brush = ImageDraw.Draw(picture)
    brush.text((MARGIN, MARGIN // 2), title, fill=(0, 0, 0))
    for index in range(panels):
        entry, head = divmod(index, heads)
        panel = kept[entry, head].unsqueeze(-1)
        colours = panel * _colour(_VISITED) + (1 - panel) * _colour(_SKIPPED)
        image = Image.fromarray(colours.round().byte().numpy(), "RGB")
        method = Image.Resampling.NEAREST if enlarge > 1 else Image.Resampling.BOX
        place = (
            MARGIN + index % across * (width + MARGIN),
            MARGIN + TITLE_HEIGHT + index // across * (height + LABEL_HEIGHT + MARGIN),
        )
        share = 100 * (1 - kept[entry, head].mean().item())
        label = f"head {head}: {share:.0f} %" if batch == 1 else f"batch {entry} head {head}: {share:.0f} %"
        brush.text(place, label, fill=(0, 0, 0))
        picture.paste(image.resize((width, height), method), (place[0], place[1] + LABEL_HEIGHT))
    picture.save(path, format="PNG")


def _colour(rgb):
    import torch

    return torch.tensor(rgb, dtype=torch.float32)
