"""One worker of SGLang's that serves a thousand requests: its memory stays what it was."""

import json

import numpy as np
import pytest

from e2e import tiny_wan
from sglang_host import python, tiny_model

REQUESTS, WARM, EVERY = 1000, 200, 20
# Megabytes that the processes may gain in the 800 requests behind the warm-up, by a straight line through
# their sizes. One leaked key of a request's cross-attention would be 200.
ALLOWED_MB = 8

# Workers are spawned: they import this file again, and with it what SGLang lacks on a CPU.
SCRIPT = """
import json, os, sys
from e2e import cpu_host
cpu_host.prepare()

def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def children(pid):
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            for child in file.read().split():
                found += [int(child), *children(int(child))]
    return found

if __name__ == "__main__":
    from sglang.multimodal_gen import DiffGenerator

    model, out, arguments, requests, every = sys.argv[1:]
    generator = DiffGenerator.from_pretrained(
        model_path=model, component_precisions={"vae": "fp32"}, log_level="warning", **json.loads(arguments)
    )
    sizes = []
    try:
        for number in range(int(requests)):
            # Lengths differ from request to request, and so do their lists.
            width = 32 + 16 * (number % 3)
            result = generator.generate(sampling_params_kwargs=dict(
                prompt="A kite", height=32, width=width, num_frames=1, num_inference_steps=2,
                guidance_scale=1.0, seed=number, save_output=False, return_frames=True))
            assert result is not None
            if number % int(every) == 0:
                sizes.append([resident(pid) for pid in [os.getpid(), *children(os.getpid())]])
                print("SERVED", number, [size >> 20 for size in sizes[-1]], flush=True)
    finally:
        generator.shutdown()
    with open(out, "w") as file:
        json.dump(sizes, file)
"""


@pytest.mark.full
@pytest.mark.parametrize("threshold", [None, -10], ids=["dense", "skipping"])
def test_a_thousand_requests_leave_memory_flat(tmp_path, tmp_path_factory, threshold):
    model = tiny_model(tmp_path_factory)
    script, out = tmp_path / "serve.py", tmp_path / "sizes.json"
    script.write_text(SCRIPT)
    config = {} if threshold is None else {"threshold": threshold, "exact_first_steps": 1}
    arguments = {
        "model_id": tiny_wan.MODEL_ID,
        "num_gpus": 1,
        "attention_backend": "liteattention_rocm",
        **({"attention_backend_config": json.dumps(config)} if config else {}),
    }
    words = (str(model), str(out), json.dumps(arguments), str(REQUESTS), str(EVERY))
    finished = python(str(script), *words, HF_HUB_OFFLINE="1")
    assert finished.returncode == 0 and out.is_file(), finished.stdout[-2000:] + finished.stderr[-4000:]
    sizes = np.array([sum(one) for one in json.loads(out.read_text())]) / 1e6
    numbers = np.arange(len(sizes)) * EVERY
    late = numbers >= WARM
    slope, _ = np.polyfit(numbers[late], sizes[late], 1)
    print(
        f"{slope * 1000:.2f} MB per thousand requests, {sizes[late].min():.0f} to {sizes[late].max():.0f} MB"
    )
    assert slope * (REQUESTS - WARM) <= ALLOWED_MB
