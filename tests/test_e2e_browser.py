"""The HTML report in a real browser: a silent console, everything drawn, nothing too wide."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from e2e import amdahl, arms, html_report
from test_e2e_report import TIMES, arm, full_report, run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]
TEN, SIX = "liteattention_rocm@-10", "liteattention_rocm@-6"
WIDTH, HEIGHT = 1280, 4000
# What the page says of itself once it is loaded.
PROBE = """
<script>
addEventListener("load", () => {
  const drawn = (box) => box.width > 100 && box.height > 50;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const page = document.documentElement;
  document.body.dataset.probe = JSON.stringify([
    all("img").length, all("img").filter((image) => image.naturalWidth > 0).length,
    all("svg").length, all("svg").filter((picture) => drawn(picture.getBoundingClientRect())).length,
    page.scrollWidth - page.clientWidth,
  ]).replace(/[^0-9,-]/g, "");
});
</script>
"""


def browse(folder, page, *options):
    """Chromium's standard output and what its console said."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={WIDTH},{HEIGHT}",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )
    return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)


def probe(folder, page):
    """Images, decoded ones, charts, drawn ones, pixels beyond the page's width; and the console."""
    probed = folder / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    dom, console = browse(folder, probed, "--dump-dom")
    return [int(number) for number in re.search(r'data-probe="([^"]*)"', dom)[1].split(",")], dom, console


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report of five arms over two requests, two of which skip."""
    folder = tmp_path_factory.mktemp("report")
    generator = np.random.default_rng(0)
    clip = generator.integers(0, 240, (48, 80, 3), dtype=np.uint8)
    clip = np.kron(clip, np.ones((4, 4, 1), dtype=np.uint8))
    names = [arms.PEER, arms.OURS, arms.PEER_RTNE, TEN, SIX]
    results = {}
    for number, name in enumerate(names):
        frames = folder / name / "frames"
        frames.mkdir(parents=True)
        for index in range(2):
            noisy = clip + generator.integers(0, 1 + 3 * number, clip.shape)
            Image.fromarray(noisy.astype(np.uint8)).save(frames / f"{index:04d}.png")
        skips = {TEN: [0.0, 0.3, 0.4], SIX: [0.0, 0.5, 0.6]}.get(name)
        sparsity = skips and {"per_step": skips, "skipped": np.mean(skips), "calls": []}
        results[name] = arm(sparsity=sparsity, requests={"r": name}, runs=[run(0, "r", TIMES)])
    report = full_report(**results)
    report["arms"]["aiter_sage"] = {"status": "unavailable", "error": "needs <a GPU>"}
    report["skipping"] = {
        "arms": {
            name: {
                "threshold": threshold,
                "skipped": share,
                "per_step": [share] * 3,
                "instructions": 1000,
                "instructions_over_dense": 1 - share,
                "psnr_db": 40 + threshold,
                "ssim": 0.9,
                "identical": False,
            }
            for name, threshold, share in ((TEN, -10.0, 0.3), (SIX, -6.0, 0.5))
        },
        "noise_floor": [arms.PEER, arms.PEER_RTNE],
        "noise_floor_db": 40.5,
        "break_even": 0.03,
        "plot": None,
    }
    interval = {"low": 10.0, "high": 12.0}
    report["modelled"] = {
        "shapes": {"self": "1,12,32760", "cross": "1,12,32760,512"},
        "goals": None,
        "arms": {
            name: {
                "request_ms": interval,
                "self_ms": interval,
                "cross_ms": interval,
                "per_step_ms": [[10.0, 12.0]] * 3,
                "speedup": {"low": 1.1, "high": 1.3, "faster": None, "prediction": True},
                "gains": {f"{share:g}": [1.0, 1.1] for share in amdahl.STATED_SHARES},
            }
            for name in names[:2]
        },
    }
    path = folder / "report.html"
    path.write_text(html_report.render(report, folder))
    return path


def test_everything_is_drawn_and_the_console_is_silent(page, tmp_path):
    (images, decoded, charts, drawn, beyond), dom, console = probe(tmp_path, page)
    assert console == []
    assert images == decoded == 1 + 2 * 4  # the reference, and four arms with their maps
    assert charts == drawn == 5
    assert beyond <= 0
    for element in (
        "answer",
        "checks",
        "gains",
        "gate",
        "arms",
        "modelled",
        "skipping",
        "pairs",
        "stages",
        "choices",
    ):
        assert f'id="{element}"' in dom
    for chart in ("modelled", "steps", "sparsity", "latents", "sweep"):
        assert f'id="chart-{chart}"' in dom
    assert "tiny &lt;model&gt;" in dom and "needs &lt;a GPU&gt;" in dom
    ids = re.findall(r'\bid="([^"]+)"', page.read_text())
    assert len(ids) == len(set(ids))


def test_the_page_is_not_blank(page, tmp_path):
    picture = tmp_path / "page.png"
    _, console = browse(tmp_path, page, f"--screenshot={picture}")
    assert console == []
    pixels = np.asarray(Image.open(picture).convert("L"))
    assert pixels.shape == (HEIGHT, WIDTH)
    for band in np.array_split(pixels[: HEIGHT // 2], 5):
        assert 0.005 < np.mean(band < 200) < 0.9


def test_a_broken_page_is_noticed(page, tmp_path):
    broken = tmp_path / "broken.html"
    text = page.read_text().replace("data:image/jpeg;base64,/9j", "data:image/jpeg;base64,AAAA", 1)
    broken.write_text(text.replace("</body>", "<script>nothing.there()</script></body>"))
    (images, decoded, *_), _, console = probe(tmp_path, broken)
    assert decoded == images - 1
    assert len(console) == 1 and "nothing is not defined" in console[0]
