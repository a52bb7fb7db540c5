"""A real model with sliding windows: its words, what an edited history copies, and its drafts."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import LlamaServer
from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.real_model import model_path
from tests.support.server_harness import DaemonProcess

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]
WORDS = (ROOT / "docs" / "HTTP.md").read_text("utf-8").split()
NEAR = 0.5  # nats: the batch's shape alone moves log-probabilities of this model by up to 0.4
N = 24  # tokens of an answer
PROMPTS = [
    "The capital of France is", "Water boils at", "def fibonacci(n):\n", "Once upon a time",
    "The three primary colours are", "In 1969,", "SELECT name FROM", "Dear Sir or Madam,",
    "1, 2, 3, 4,", "The opposite of hot is", "import os\n", "Le chat est", "E = m", "Recipe:\n\n1.",
    "To be, or not to be,", "The sun rises in the", "Q: What is 2+2?\nA:", "# Introduction\n\n",
    "Der Hund", "Roses are red,",
]  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    with real(folder, model=str(model_path()), http="127.0.0.1:0", n_ctx=8192) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with LlamaServer(str(model_path()), n_ctx=8192, parallel=2, threads=1) as server:
        yield server


def words(at: int, count: int) -> str:
    return " ".join(WORDS[at * 300 : at * 300 + count])


def complete(port: int, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": N, "temperature": 0, **fields}
    answered = post(port, "/v1/completions", body)
    assert answered.status == 200, answered.body
    found: dict[str, Any] = answered.json
    return found


def test_greedy_words_are_those_of_llama_server(daemon: DaemonProcess, server: LlamaServer) -> None:
    """Token by token, up to the first place where two tokens are about as likely."""
    compared = 0
    for prompt in PROMPTS:
        body = {"prompt": prompt, "n_predict": N, "temperature": 0, "n_probs": 5}
        asked = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/completion", json.dumps(body).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(asked, timeout=120) as response:
            theirs = json.load(response)["completion_probabilities"]
        ours = complete(port_of(daemon), prompt, logprobs=5)["choices"][0]["logprobs"]
        for n, entry in enumerate(theirs[: len(ours["tokens"])]):
            if entry["token"] == ours["tokens"][n]:
                compared += 1
                continue
            ranked = {each["token"]: each["logprob"] for each in entry["top_logprobs"]}
            gap = entry["logprob"] - ranked.get(ours["tokens"][n], float("-inf"))
            assert gap < NEAR, (prompt, n, entry["token"], ours["tokens"][n])
            break
    assert compared >= len(PROMPTS) * N // 2


def test_turns_and_edits_go_on_at_ends_of_messages(daemon: DaemonProcess) -> None:
    port, text = port_of(daemon), words(0, 160)
    for turn in range(1, 4):
        answer = complete(port, text)
        usage = answer["usage"]
        if turn > 1:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= 0.5 * usage["prompt_tokens"], turn
        text += answer["choices"][0]["text"] + f"\n\n{words(turn, 160)}\n\n"
    history = [words(n, 160) for n in range(10, 15)]
    complete(port, "\n<end_of_turn>\n".join(history))
    for edited in (4, 3):
        history[edited] = "Something else. " + words(20 + edited, 150)
        usage = complete(port, "\n<end_of_turn>\n".join(history))["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached >= 0.4 * usage["prompt_tokens"], edited


def test_drafts_of_a_text_that_repeats_are_taken(daemon: DaemonProcess) -> None:
    code = (ROOT / "umaserve" / "budget.py").read_text("utf-8")
    prompt = f"Here is a file:\n{code}\nHere is the same file again:\n{code[:400]}"
    before = daemon.metrics()
    complete(port_of(daemon), prompt, max_tokens=120)
    after = daemon.metrics()
    taken = after["draft_accepted_total"] - before["draft_accepted_total"]
    assert taken > 0
    off = daemon.info()["model"]["off"]
    assert "drafts" not in off and "sliding-window" in off
