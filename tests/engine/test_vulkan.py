"""One real generation through libllama's Vulkan backend, on a software device if need be.

Mesa's software driver counts as a processor, which ggml leaves out unless it is named by
``GGML_VK_VISIBLE_DEVICES``. It is slow, but the same code runs as on a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import build_llama
from umaserve.llama.building import backends
from umaserve.llama.building.progress import Reporter

ROOT = Path(__file__).parents[2]
PROMPT = "def fibonacci(n):\n"
TOKENS = 8

# A process of its own: this one may run another build of libllama.
PROGRAM = """
import json, sys
import numpy as np
from umaserve import llama
from umaserve.assets import demo_model_path

def generate(library, layers, offload):
    lib, ffi = library.lib, library.ffi
    model = llama.Model.open(library, demo_model_path(), n_gpu_layers=layers)
    context = llama.Context.open(
        model, n_ctx=128, n_batch=128, n_threads=2, offload_kqv=offload, op_offload=offload
    )
    feed, tokens, rows = model.tokenize(sys.argv[1]), [], []
    for _ in range(int(sys.argv[2])):
        held = ffi.new("llama_token[]", feed)
        batch = ffi.new("struct llama_batch *")
        batch.n_tokens, batch.token = len(feed), held
        assert lib.uma_decode(context.pointer, batch) == 0
        row = lib.llama_get_logits_ith(context.pointer, -1)
        rows.append(np.frombuffer(ffi.buffer(row, 4 * model.n_vocab), np.float32).copy())
        feed = [int(rows[-1].argmax())]
        tokens += feed
    text = b"".join(model.token_to_piece_bytes(t) for t in tokens).decode("utf-8", "replace")
    context.close(); model.close()
    return tokens, rows, text

library = llama.load("vulkan")
answer = {"devices": [d for d in llama.devices(library) if d["type"] in ("gpu", "igpu")]}
if answer["devices"]:
    mark = library.log_position()
    tokens, rows, answer["text"] = generate(library, -1, True)
    answer["log"] = library.log_lines(mark)
    expected, cpu_rows, _ = generate(library, 0, False)
    answer["tokens"], answer["expected"] = tokens, expected
    answer["difference"] = float(np.abs(rows[0] - cpu_rows[0]).max())
    answer["spread"] = float(np.ptp(cpu_rows[0]))
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def vulkan_build() -> Iterator[build_llama.Build]:
    """The machine's own Vulkan build, else one in a cache of the tests'.

    There, because ``auto`` prefers a Vulkan build: running the tests must not change what the next
    daemon loads.
    """
    with pytest.MonkeyPatch.context() as patch:
        if build_llama.select("vulkan") is None:
            patch.setenv("UMA_CACHE_DIR", str(build_llama.builds.cache_root() / "for-tests"))
        yield make_vulkan_build()


def make_vulkan_build() -> build_llama.Build:
    built = build_llama.select("vulkan")
    if built is None:
        pieces = backends.find_vulkan()
        if pieces.missing == ("vulkan headers",) and shutil.which("dpkg-deb"):
            build_llama.fetch_vulkan_headers(Reporter())
            pieces = backends.find_vulkan()
        if not pieces.complete:
            pytest.skip(f"a Vulkan build cannot be made on this machine: {pieces.advice()}")
        built = build_llama.ensure("vulkan")
    build_llama.ensure_binding(built)
    return built


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_generation_runs_on_a_vulkan_device(vulkan_build: build_llama.Build) -> None:
    environment = {**os.environ, build_llama.builds.BUILD_VARIABLE: vulkan_build.key}
    answer = run(environment)
    if not answer["devices"]:
        answer = run({**environment, "GGML_VK_VISIBLE_DEVICES": "0"})
    if not answer["devices"]:
        pytest.skip("no Vulkan device, not even a software one (Debian: mesa-vulkan-drivers)")
    log = "\n".join(answer["log"])
    assert "Vulkan0 model buffer" in log, "the weights are not on the Vulkan device"
    assert "Vulkan0 KV buffer" in log, "the KV cells are not on the Vulkan device"
    assert answer["difference"] < 0.05 * answer["spread"]
    assert answer["tokens"][0] == answer["expected"][0]
    assert len(answer["tokens"]) == TOKENS
    assert answer["text"].isprintable() or "\n" in answer["text"]


def run(environment: dict[str, str]) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, PROMPT, str(TOKENS)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
