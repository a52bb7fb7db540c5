"""Requests that go on where their context is full, through the whole daemon."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.chat_questions import templates
from tests.support.gateway import post, sse
from tests.support.http_client import port_of
from tests.support.oracle import Oracle
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, RawClient
from tests.support.small_models import write_model

SIZE = 256  # tokens of a context
PROMPT = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, "
MOST = 2000
SHIFTED = {"context_shift": True, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    with real(folder, n_ctx=SIZE, max_tokens=MOST, http="127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client
    daemon.idle()
    assert daemon.metrics()["kv_cells_used"] == 0


def ids_of(client: RawClient, text: str) -> list[int]:
    client.send(type="tokenize", text=text, add_special=True)
    found: list[int] = client.answer("tokens")["tokens"]
    return found


def start_tokens(oracle: Oracle) -> int:
    """Of the model, which stay in front of what `n_keep` names."""
    return int(oracle.model.adds_bos)


def test_an_answer_is_longer_than_its_context(client: RawClient, oracle: Oracle) -> None:
    result = client.generate(PROMPT, max_tokens=700, **SHIFTED)
    prompt, eos = ids_of(client, PROMPT), result.eos
    assert eos is not None and eos["reason"] == "length" and len(result.tokens) == 700
    assert eos["usage"]["prompt_tokens"] == len(prompt)
    assert eos["usage"]["completion_tokens"] == 700
    assert eos["dropped_tokens"] > len(prompt) + 700 - SIZE
    kept = start_tokens(oracle)
    oracle.assert_near(oracle.shifted_gaps(prompt, result.tokens, SIZE, kept))


@pytest.mark.parametrize("n_keep", [-1, 10, 10**6])
def test_the_beginning_of_the_prompt_stays(
    client: RawClient, oracle: Oracle, n_keep: int
) -> None:
    result = client.generate(PROMPT, max_tokens=500, n_keep=n_keep, **SHIFTED)
    prompt = ids_of(client, PROMPT)
    kept = 10 + start_tokens(oracle) if n_keep == 10 else len(prompt)
    oracle.assert_near(oracle.shifted_gaps(prompt, result.tokens, SIZE, kept))


def test_without_it_a_full_context_ends_the_answer(client: RawClient) -> None:
    fields = {**SHIFTED, "context_shift": False}
    result = client.generate(PROMPT, n_keep=5, **fields)
    assert result.eos is not None and result.eos["reason"] == "length"
    assert len(ids_of(client, PROMPT)) + len(result.tokens) == SIZE
    assert "dropped_tokens" not in result.eos
    named = client.generate(PROMPT, "b", max_tokens=700, **fields)
    assert named.error is not None and named.error["code"] == "E_LIMIT_003"


def test_without_a_number_the_daemons_limit_holds(client: RawClient) -> None:
    result = client.generate(PROMPT, **SHIFTED)
    assert result.eos is not None and result.eos["reason"] == "length"
    assert len(result.tokens) == MOST


def test_a_prompt_has_to_fit_all_the_same(client: RawClient) -> None:
    result = client.generate(PROMPT * 20, max_tokens=5, **SHIFTED)
    assert result.error is not None and result.error["code"] == "E_LIMIT_003"


def test_log_probabilities_and_stop_strings_go_over_a_shift(client: RawClient) -> None:
    whole = client.generate(PROMPT, "a", max_tokens=400, stream=False, logprobs=8, **SHIFTED)
    assert whole.eos is not None
    told, text = whole.eos["logprobs"], whole.eos["text"]
    assert len(told) == 400
    for each in told:  # greedy: it is the most likely one, but for tokens that would end the text
        top = {other["token_id"]: other["logprob"] for other in each["top_logprobs"]}
        assert top[each["token_id"]] == each["logprob"]
    # one that first comes behind the shift
    ids = ids_of(client, PROMPT)
    before = len("".join(each["text"] for each in told[: SIZE - len(ids)]))
    at = next(i for i in range(before - 8, len(text)) if text.index(text[i : i + 16]) == i)
    stop = text[at : at + 16]
    cut = client.generate(PROMPT, "b", max_tokens=400, stop=stop, **SHIFTED)
    assert cut.eos is not None and cut.eos["reason"] == "stop" and cut.text == text[:at]


def test_several_with_cancels(client: RawClient) -> None:
    for i in range(6):
        client.ask(f"r{i}", f"{PROMPT}a{i}", max_tokens=600, priority="background", **SHIFTED)
    client.wait_tokens("r0", SIZE + 20)
    client.send(type="cancel", id="r0")
    client.send(type="cancel", id="r5")
    client.finish()
    reasons = [result.eos["reason"] for result in client.results.values() if result.eos]
    assert reasons == ["cancel", *["length"] * 4, "cancel"]
    assert all(len(client.results[f"r{i}"].tokens) == 600 for i in range(1, 5))


def test_it_goes_on_in_another_engine(
    daemon: DaemonProcess, client: RawClient, oracle: Oracle
) -> None:
    """What is left of its tokens is computed again there, and shifted again later."""
    pid, prompt = daemon.engine_pid(), ids_of(client, PROMPT)
    kept = 12 + start_tokens(oracle)
    more = (SIZE - kept) // 2
    first = SIZE - len(prompt)  # tokens of the answer in front of the first shift
    client.ask("a", PROMPT, max_tokens=900, n_keep=12, **SHIFTED)
    client.wait_tokens("a", first + more // 3)
    os.kill(pid, signal.SIGKILL)
    (result,) = client.finish("a")
    assert result.eos is not None and result.eos["reason"] == "length"
    assert len(result.tokens) == result.eos["usage"]["completion_tokens"] == 900
    shifts = -(-(900 - first) // more)
    assert result.eos["dropped_tokens"] == shifts * more
    # up to its death by cells that had moved, then by cells of the tokens that were left
    everything, tokens = prompt + result.tokens, result.tokens[: first + more]
    left = everything[:kept] + everything[kept + more : SIZE]
    moved = oracle.shifted_gaps(prompt, tokens, SIZE, kept)[first:]
    oracle.assert_near(np.minimum(moved, oracle.greedy_gaps(left, tokens[first:])))


def test_random_numbers_go_on_in_another_engine(daemon: DaemonProcess, client: RawClient) -> None:
    """A draw depends on seed and index alone; few tokens are steered to, since the logits differ:
    these are of cells that moved, or of cells that were computed again."""
    bias = [[token, 900] for token in range(500, 504)]
    options: dict[str, Any] = {
        "max_tokens": 500, "temperature": 10.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "ignore_eos": True, "logit_bias": bias, "seed": 7, "context_shift": True,
    }  # fmt: skip
    first = client.generate("seeded", "a", **options)
    client.ask("b", "seeded", **options)
    client.wait_tokens("b", SIZE + 50)
    os.kill(daemon.engine_pid(), signal.SIGKILL)
    (second,) = client.finish("b")
    assert len(first.tokens) == len(second.tokens) == 500
    late = slice(SIZE + 150, 500)
    same = sum(a == b for a, b in zip(first.tokens[late], second.tokens[late], strict=True))
    assert same >= 0.6 * len(first.tokens[late])
    period = SIZE // 2
    assert first.tokens[period : 2 * period] != first.tokens[2 * period : 3 * period]


BLANK = ["\n", "\n\n", "\t", *(" " * n for n in range(1, 17))]
BLOCK, BLOCKS = "[0-9]{30}x[a-z]{30}y", 20
GRAMMAR = f"root ::= {'block ' * BLOCKS}\nblock ::= {'[0-9] ' * 30} \"x\" {'[a-z] ' * 30} \"y\""
BINDING = [{"regex": f"({BLOCK}){{{BLOCKS}}}"}, {"grammar": GRAMMAR}]


@pytest.mark.parametrize("binding", BINDING, ids=["regex", "grammar"])
@pytest.mark.parametrize("n_keep", [0, -1])
@pytest.mark.parametrize("dies", [False, True])
def test_a_constraint_binds_over_a_shift(
    daemon: DaemonProcess, client: RawClient, binding: dict[str, str], n_keep: int, dies: bool
) -> None:
    """What follows the answer knows all of it, in another engine too."""
    client.ask("a", PROMPT, temperature=0.8, seed=3, context_shift=True, n_keep=n_keep, **binding)
    if dies:
        client.wait_tokens("a", SIZE + 120)
        os.kill(daemon.engine_pid(), signal.SIGKILL)
    (result,) = client.finish("a")
    assert result.eos is not None and result.eos["reason"] == "stop", result.error
    assert result.eos["dropped_tokens"] > 0
    assert re.fullmatch(f"({BLOCK}){{{BLOCKS}}}", result.text)


def test_a_tool_is_called_over_a_shift(tmp_path: Path) -> None:
    """Random weights with Qwen3's template; the call is read from the whole answer."""
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
    model = write_model(
        tmp_path / "model.gguf", "micro-151k", n_layer=1, template=template.read_text("utf-8"),
        vocab="gpt-2", n_vocab=50304, end_of_turn="<|endoftext|>",
    )  # fmt: skip
    text = " ".join(f"{i}x" for i in range(60))
    parameters = {"type": "object", "properties": {"x": {"enum": [text]}}, "required": ["x"]}
    function = {"name": "f", "parameters": parameters}
    settings = {"n_ctx": 512, "max_tokens": MOST}
    with real(tmp_path, model=model, **settings) as daemon, daemon.client() as client:
        client.send(type="tokenize", text="<tool_call>\n")
        words = client.answer("tokens")["tokens"]
        # a call is to begin, whose grammar lets white space go on for ever
        bias = {token: -100 for text in BLANK for token in ids_of(client, text)}
        bias |= {token: 900 - 50 * i for i, token in enumerate(words)}
        client.send(
            id="a", messages=[{"role": "user", "content": "x"}], context_shift=True, stream=False,
            logit_bias=[*bias.items()], temperature=0.0, repeat_penalty=10.0,
            penalty_last_n=len(words) - 1,  # a token that was just used counts a tenth
            tools=[{"type": "function", "function": function}], tool_choice="required",
            chat_template_kwargs={"enable_thinking": False}, max_tokens=800,
        )  # fmt: skip
        answer = client.answer("eos")
    assert answer["dropped_tokens"] > 0
    *calls, _ = answer["message"]["tool_calls"]  # the last one is cut off
    assert len(calls) >= 2
    assert all(json.loads(call["function"]["arguments"]) == {"x": text} for call in calls)


@pytest.mark.parametrize("shape", ["gemma3-micro", "jamba-micro"])
def test_a_model_that_cannot_be_shifted_refuses_it(tmp_path: Path, shape: str) -> None:
    model = write_model(tmp_path / "model.gguf", shape)
    with real(tmp_path, model=model, n_ctx=512) as daemon, daemon.client() as client:
        result = client.generate("x", **SHIFTED)
        assert result.error is not None and result.error["code"] == "E_PROTO_003"
        assert "leave it out, and a full context ends the answer" in result.error["message"]
        assert client.generate("x", "b", max_tokens=3, n_keep=2).eos is not None


def test_over_http(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    body = {"prompt": PROMPT, "n_predict": 400, "n_keep": 4, **SHIFTED}
    answer = post(port, "/completion", body).json
    assert answer["truncated"] is True and answer["tokens_predicted"] == 400
    assert answer["generation_settings"]["n_keep"] == 4
    assert post(port, "/completion", {**body, "n_predict": 4}).json["truncated"] is False
    streamed = sse(post(port, "/completion", {**body, "stream": True}).body)
    assert streamed[-1]["truncated"] is True
    assert "".join(part["content"] for part in streamed) == answer["content"]
    for path, said in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
    ):
        told = post(port, path, {"model": "m", "max_tokens": 400, **said, **SHIFTED})
        assert told.json["usage"]["completion_tokens"] == 400
    schema = {"type": "array", "items": {"enum": [True, 1]}, "minItems": 150, "maxItems": 150}
    bound = post(port, "/completion", {**body, "n_predict": 2000, "json_schema": schema}).json
    assert bound["truncated"] is True and len(json.loads(bound["content"])) == 150
