"""Stop strings that name tokens without text, over the real daemon and the bundled model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, RawClient, Result
from umaserve import llama
from umaserve.assets import demo_model_path

NAMES = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_suffix|>",
    "<|fim_middle|>",
)  # fmt: skip
ENDS = ("<|endoftext|>", "<|im_end|>")


@pytest.fixture(scope="module")
def model() -> Iterator[llama.Model]:
    with llama.Model.open(llama.load("auto"), str(demo_model_path()), vocab_only=True) as model:
        yield model


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


def said(model: llama.Model, texts: list[str], **fields: Any) -> dict[str, Any]:
    """Fields of a request whose answer is made of these tokens, each of them once."""
    ids = [token for text in texts for token in model.tokenize(text, add_special=False)]
    assert len(ids) == len(texts) == len(set(ids)), "not single tokens"
    return {
        "prompt": "x",
        "max_tokens": len(ids),
        "temperature": 0.0,
        "repeat_penalty": 10.0,
        "penalty_last_n": -1,
        "logit_bias": [[token, 1000 - 40 * k] for k, token in enumerate(ids)],
        **fields,
    }


def test_the_end_names_the_token_or_the_stop_string(
    client: RawClient, model: llama.Model
) -> None:
    ((end,),) = [model.tokenize("<|im_end|>", add_special=False)]
    asked = said(model, ["<|im_end|>"])
    result = client.generate(asked.pop("prompt"), "a", **asked)
    assert result.eos is not None and result.eos["stop_token"] == end
    result = client.generate("x", "b", **asked, stop="<|im_end|>")
    assert result.eos is not None and result.eos["stop"] == "<|im_end|>"
    assert "stop_token" not in result.eos


def texts(result: Result) -> str:
    assert result.eos is not None
    return result.text if result.eos.get("text") is None else result.eos["text"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ENDS])
def test_an_answer_stops_at_a_control_token(client, model, name, stream, logprobs) -> None:
    fields = said(model, ["a", name, "b"], stop=[name], stream=stream, logprobs=logprobs)
    result = client.generate(**fields)
    assert result.eos is not None and result.eos["reason"] == "stop"
    assert texts(result) == "a"
    assert result.eos["usage"]["completion_tokens"] == 2
    if stream:
        assert result.tokens[-1] == NAMES.index(name)


STOPS = {
    "text before it": ("a<|im_start|>", "", "stop"),
    "text after it": ("<|im_start|>b", "a", "stop"),
    "text around it": ("a<|im_start|>b", "", "stop"),
    "two of them": ("<|im_start|>b<|fim_prefix|>", "a", "stop"),
    "a part of its name": ("|>", "abc", "length"),
    "its name without the brackets": ("im_start", "abc", "length"),
    "another one": ("<|fim_middle|>", "abc", "length"),
    "text that is not there": ("<|im_start|>c", "abc", "length"),
    "text on both sides without it": ("ab", "", "stop"),
}


@pytest.mark.parametrize("case", STOPS)
def test_stop_strings_with_a_name_in_them(client, model, case) -> None:
    stop, text, reason = STOPS[case]
    fields = said(model, ["a", "<|im_start|>", "b", "<|fim_prefix|>", "c"], stop=stop)
    result = client.generate(**fields)
    assert result.eos is not None
    assert (texts(result), result.eos["reason"]) == (text, reason)


def test_without_stop_strings_control_tokens_have_no_text(client, model) -> None:
    result = client.generate(**said(model, ["a", "<|im_start|>", "b"]))
    assert texts(result) == "ab" and result.tokens[1] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_may_have_the_name_of_the_token_that_ends_the_text(
    client, model, stream
) -> None:
    for end in ENDS:
        fields = said(model, ["a", "b", end], stop="b" + end, stream=stream)
        result = client.generate(**fields)
        assert result.eos is not None and result.eos["reason"] == "stop"
        assert texts(result) == "a"
        other = client.generate(**{**fields, "id": "other", "stop": "b<|im_start|>"})
        assert texts(other) == "ab" and other.eos is not None and other.eos["reason"] == "stop"


def test_a_replacement_goes_on_matching(daemon, client, model) -> None:
    """The answer is long enough for the engine to be killed between the text and the token."""
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "<|im_start|>"]
    fields = said(model, words, stop="i<|im_start|>")
    client.ask("r", fields.pop("prompt"), **fields)
    while len(client.results["r"].tokens) < 3:
        assert client.receive() is not None
    os.kill(daemon.engine_pid(), signal.SIGKILL)
    (result,) = client.finish("r")
    assert texts(result) == "abcdefgh"
    assert result.eos is not None and result.eos["reason"] == "stop"


def test_names_are_those_of_the_vocabulary(model) -> None:
    offsets, data = model.piece_table(hidden=True)
    pieces, _ = model.piece_table()
    found = {
        token: data[offsets[token] : offsets[token + 1]].tobytes().decode()
        for token in np.flatnonzero(np.diff(offsets)).tolist()
    }
    assert found == dict(enumerate(NAMES))
    assert (np.diff(pieces)[list(found)] == 0).all()
