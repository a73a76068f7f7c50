"""`sglang serve` with our backend, and one video over HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from e2e import tiny_wan
from sglang_host import REQUEST, tiny_model
from test_sglang_commands import BT_601, correlation, decoded, frames_of

# The server's worker is spawned: it imports this file again, and with it what SGLang lacks on a CPU.
SERVER = """
from e2e import cpu_host
cpu_host.prepare()

if __name__ == "__main__":
    from sglang.multimodal_gen.runtime.entrypoints.cli.main import main
    main()
"""
START_S, VIDEO_S = 240, 240


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def server(tmp_path, tmp_path_factory):
    """Base address of a running server, and its log."""
    script, log = tmp_path / "serve.py", tmp_path / "server.log"
    script.write_text(SERVER)
    port = free_port()
    options = {
        "model-path": tiny_model(tmp_path_factory),
        "model-id": tiny_wan.MODEL_ID,
        "num-gpus": 1,
        "host": "127.0.0.1",
        "port": port,
        "attention-backend": "liteattention_rocm",
        "warmup-mode": "off",
        "component-precisions.vae": "fp32",
        "output-path": tmp_path / "videos",
    }
    command = [sys.executable, str(script), "serve"]
    command += [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}", log, process
    finally:
        for ending in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, ending)
            except ProcessLookupError:
                break
            time.sleep(2)


def fetch(address: str, body: dict | None = None) -> bytes:
    encoded = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data=encoded, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def wait_for(what, seconds: float, log):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (answer := what()) is not None:
            return answer
        time.sleep(1)
    pytest.fail(f"nothing after {seconds} s; the server's log ends: {log.read_text()[-3000:]}")


@pytest.mark.full
def test_a_video_over_http(server, tmp_path, tmp_path_factory):
    """The video of one process of the harness, but for what H.264 loses."""
    address, log, process = server

    def healthy():
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return fetch(f"{address}/health")
        except (urllib.error.URLError, ConnectionError):
            return None

    wait_for(healthy, START_S, log)
    job = json.loads(
        fetch(
            f"{address}/v1/videos",
            {
                "prompt": tiny_wan.PROMPTS[1],
                "width": REQUEST["width"],
                "height": REQUEST["height"],
                "num_frames": REQUEST["frames"],
                "num_inference_steps": REQUEST["steps"],
                "guidance_scale": REQUEST["guidance"],
                "seed": REQUEST["seed"],
                "generator_device": "cpu",
            },
        )
    )

    def finished():
        state = json.loads(fetch(f"{address}/v1/videos/{job['id']}"))
        assert state["status"] != "failed", state
        return state if state["status"] == "completed" else None

    wait_for(finished, VIDEO_S, log)
    video = tmp_path / "video.mp4"
    video.write_bytes(fetch(f"{address}/v1/videos/{job['id']}/content"))
    assert "Attention backends for transformer: liteattention_rocm" in log.read_text()
    luma = decoded(video) @ BT_601
    model = tiny_model(tmp_path_factory)
    mine, others = (
        frames_of(tmp_path / f"seed-{seed}", model, seed) @ BT_601 for seed in (REQUEST["seed"], 77)
    )
    assert luma.shape == mine.shape
    assert correlation(luma, mine) > 0.99 > correlation(luma, others)
