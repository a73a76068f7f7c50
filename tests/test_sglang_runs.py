"""Denoising runs through SGLang's pipeline with skip lists: what each step read, and what is left behind."""

import itertools
import json
import re

import numpy as np
import pytest

from e2e import skipping, tiny_wan
from sglang_host import TOKENS, job, python, tiny_model

# One worker serves all of these requests after one another; what the layers did is dumped per run.
SCRIPT = """
import dataclasses, gc, os, sys
from pathlib import Path
import numpy
from e2e import arms, generate, skipping
from liteattention_rocm.lite import LiteAttention

job = generate.Job.read(Path(sys.argv[1]))
folder = Path(job.folder)
pipeline, server_args = generate.load(job, arms.find(job.arm))

def run(name, steps, seed=3, **sampling):
    request = dataclasses.replace(job, steps=steps, seed=seed)
    output = generate.run(pipeline, server_args, request, **sampling)
    (file,) = (folder / skipping.FOLDER).iterdir()
    file.rename(folder / f"{name}.json")
    numpy.save(folder / f"{name}.npy", output.trajectory_latents[0].float().numpy())
    print("ALIVE", name, sum(isinstance(thing, LiteAttention) for thing in gc.get_objects()))

run("first", 3)
run("one", 1)
run("other", 2, seed=9)
run("again", 3)

from sglang.multimodal_gen.configs.sample.teacache import TeaCacheParams
run("teacache", 6, enable_teacache=True, teacache_params=TeaCacheParams(
    teacache_thresh=1e9, start_skipping=2, end_skipping=-1, coefficients=[0.0, 0.0, 0.0, 1.0, 0.0]))
os.environ.update(SGLANG_CACHE_DIT_ENABLED="1", SGLANG_CACHE_DIT_WARMUP="2", SGLANG_CACHE_DIT_RDT="1e9",
    SGLANG_CACHE_DIT_MC="1")
run("cache_dit", 6)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Name of a run to its calls and latents, and the lists that were alive after it."""
    folder = tmp_path_factory.mktemp("runs")
    model = tiny_model(tmp_path_factory)
    finished = python("-c", SCRIPT, str(job("liteattention_rocm@-10", folder, model)))
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    alive = dict(re.findall(r"ALIVE (\w+) (\d+)", finished.stdout))
    return {
        name: (json.loads((folder / f"{name}.json").read_text())["calls"], np.load(folder / f"{name}.npy"), n)
        for name, n in alive.items()
    }


def actions(calls, layer, branch):
    return [
        (call["step"], call["action"])
        for call in calls
        if (call["layer"], call["branch"]) == (f"blocks.{layer}.attn1", branch)
    ]


def test_nothing_is_left_behind_a_run(runs):
    assert {name: alive for name, (_, _, alive) in runs.items()} == dict.fromkeys(
        ("first", "one", "other", "again", "teacache", "cache_dit"), "0"
    )


@pytest.mark.parametrize(("name", "steps"), [("first", 3), ("one", 1), ("other", 2), ("again", 3)])
def test_every_self_attention_reads_the_list_of_its_last_step(runs, name, steps):
    calls, _, _ = runs[name]
    expected = [(step, "skip" if step else "fresh") for step in range(steps)]
    for layer in range(tiny_wan.LAYERS):
        for branch in ("conditional", "unconditional"):
            assert actions(calls, layer, branch) == expected
    assert len(calls) == steps * tiny_wan.LAYERS * 2
    shape = [1, TOKENS, tiny_wan.HEADS, tiny_wan.HEAD_DIM, TOKENS]
    assert all(call["shape"] == shape and call["threshold"] == -10 for call in calls)


def test_a_repeated_seed_gives_the_same_video_and_lists(runs):
    first, again, other = runs["first"], runs["again"], runs["other"]
    assert np.array_equal(first[1], again[1]) and first[0] == again[0]
    assert not np.array_equal(first[1][0], other[1][0])


def test_steps_that_teacache_answers_refresh_the_lists(runs):
    calls, _, _ = runs["teacache"]
    for layer in range(tiny_wan.LAYERS):
        seen = actions(calls, layer, "conditional")
        assert seen == [(0, "fresh"), (1, "skip"), (5, "fresh")]


def test_blocks_that_cache_dit_answers_refresh_theirs(runs):
    """A layer with nothing to skip turns dense after a while; that needs no list, fresh or not."""
    calls, _, _ = runs["cache_dit"]
    first = actions(calls, 0, "conditional")
    assert [step for step, _ in first] == list(range(6))
    cached = actions(calls, 1, "conditional")
    steps = [step for step, _ in cached]
    assert 1 < len(steps) < 6 and steps[:2] == [0, 1]
    for seen in (first, cached):
        assert seen[:2] == [(0, "fresh"), (1, "skip")]
        for (before, _), (step, action) in itertools.pairwise(seen):
            assert action in (("skip", "dense") if step == before + 1 else ("fresh",))


TWO_EXPERTS = """
import sys
from pathlib import Path
from e2e import arms, generate

job = generate.Job.read(Path(sys.argv[1]))
pipeline, server_args = generate.load(job, arms.find(job.arm))
generate.run(pipeline, server_args, job, boundary_ratio=0.9)
"""


@pytest.mark.full
def test_the_second_expert_starts_over_at_the_boundary(tmp_path):
    """Wan2.2's two transformers, whose layers have the same names, in SGLang's own pipeline."""
    model = tiny_wan.make(tmp_path / "model", experts=2)
    file = job("liteattention_rocm@-10", tmp_path, model, model_id=tiny_wan.TWO_EXPERTS_ID, steps=4)
    finished = python("-c", TWO_EXPERTS, str(file))
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    (dump,) = (tmp_path / skipping.FOLDER).iterdir()
    calls = json.loads(dump.read_text())["calls"]
    for branch in ("conditional", "unconditional"):
        seen = [(call["layer"], call["step"], call["action"]) for call in calls if call["branch"] == branch]
        names = [f"blocks.{layer}.attn1" for layer in range(tiny_wan.LAYERS)]
        assert seen == [
            *((name, step, "skip" if step else "fresh") for step in range(3) for name in names),
            *((f"{name}@2", 3, "fresh") for name in names),
        ]
