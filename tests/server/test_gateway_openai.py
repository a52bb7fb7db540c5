"""OpenAI's routes of a real daemon with the bundled model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Posted, post, sse
from tests.support.http_client import ask, port_of
from tests.support.real_daemon import real, steering
from tests.support.server_harness import DaemonProcess

HELLO = [{"role": "user", "content": "hello"}]
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        yield daemon


def chat(daemon: DaemonProcess, **body: Any) -> Posted:
    return post(port_of(daemon), CHAT, {"messages": HELLO, "temperature": 0, **body})


def complete(daemon: DaemonProcess, **body: Any) -> Posted:
    return post(port_of(daemon), TEXT, {"prompt": "def f(", "temperature": 0, **body})


def by_socket(daemon: DaemonProcess, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Text and end of a request without HTTP."""
    with daemon.client() as client:
        client.send(id="x", stream=False, temperature=0, **fields)
        end = client.answer("eos")
        return end["text"], end


# --- whole answers -------------------------------------------------------------------------------


def test_chat_is_what_the_socket_says(daemon: DaemonProcess) -> None:
    text, eos = by_socket(daemon, messages=HELLO, max_tokens=12)
    reply = chat(daemon, model="any", max_completion_tokens=12)
    answer = reply.json
    assert (answer["object"], answer["model"]) == ("chat.completion", "any")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": text}
    assert choice["finish_reason"] == eos["reason"]
    usage, known = eos["usage"], eos["usage"]["prompt_tokens"] - 1  # the socket asked before
    assert answer["usage"] == {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
        "prompt_tokens_details": {"cached_tokens": known},
    }
    assert reply.headers["x-uma-cache"] == f"{known}/{usage['prompt_tokens']}"
    assert reply.headers["x-uma-lane"] == "interactive; nobody named a lane"


def test_contents_in_parts_and_none(daemon: DaemonProcess) -> None:
    plain = chat(daemon, max_tokens=6).json["choices"]
    parts = [{"type": "text", "text": "hello"}]
    whole = [{"role": "user", "content": parts}]
    assert chat(daemon, messages=whole, max_tokens=6).json["choices"] == plain
    several = [{"role": "user", "content": [*parts, *parts]}]
    assert chat(daemon, messages=several, max_tokens=2).status == 200
    empty = [*HELLO, {"role": "assistant", "content": None}, *HELLO]
    assert chat(daemon, messages=empty, max_tokens=2).status == 200


def test_completions_of_several_prompts(daemon: DaemonProcess) -> None:
    # No near tie in so many tokens: others in the batch change the last bits of the logits.
    prompts, count = ["if __name__", "class A"], 6
    alone = [by_socket(daemon, prompt=prompt, max_tokens=count)[0] for prompt in prompts]
    answer = complete(daemon, prompt=prompts, n=2, echo=True, max_tokens=count).json
    texts = [choice["text"] for choice in answer["choices"]]
    whole = [prompt + text for prompt, text in zip(prompts, alone, strict=True)]
    assert texts == [whole[0], whole[0], whole[1], whole[1]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    tokens = answer["usage"]["completion_tokens"]
    assert tokens == 4 * count


def test_choices_differ_and_a_seed_repeats_them(daemon: DaemonProcess) -> None:
    flat = {"temperature": 3, "top_k": 0, "top_p": 1, "min_p": 0}

    def said(n: int) -> list[str]:
        settings: dict[str, Any] = {"n": n, "seed": 7, "max_tokens": 12, **flat}
        choices = chat(daemon, **settings).json["choices"]
        return [choice["message"]["content"] for choice in choices]

    # alone: with others in the batch, logits differ in their last bits
    assert said(1) == said(1)
    assert len(set(said(3))) > 1


def test_sampling_goes_through(daemon: DaemonProcess) -> None:
    ids = [token for token, _ in steering(3)["logit_bias"]]
    fields = steering(3) | {"max_tokens": 5}
    del fields["temperature"]
    text, _ = by_socket(daemon, prompt="x", **fields)
    assert complete(daemon, prompt="x", **fields).json["choices"][0]["text"] == text
    banned = {str(token): -100 for token in ids}
    assert complete(daemon, prompt="x", logit_bias=banned).status == 200
    stopped = complete(daemon, prompt="x", **fields, stop=[text[2:4]]).json["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (text[:2], "stop")


def test_logprobs(daemon: DaemonProcess) -> None:
    (choice,) = chat(daemon, max_tokens=4, logprobs=True, top_logprobs=3).json["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == choice["message"]["content"]
    for token in content:
        assert len(token["top_logprobs"]) == 3 and token["logprob"] <= 0
        assert token["top_logprobs"][0]["logprob"] == token["logprob"]  # greedy
        assert bytes(token["bytes"]).decode() == token["token"]
    (choice,) = complete(daemon, max_tokens=4, logprobs=2).json["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"][0] == 0 and len(logprobs["token_logprobs"]) == 4
    assert chat(daemon, top_logprobs=3).status == 400


def test_more_tokens_than_there_can_be_are_no_mistake(daemon: DaemonProcess) -> None:
    prompt = [300] * 2000  # of 2048 cells
    reply = complete(daemon, prompt=prompt, max_tokens=10**6, ignore_eos=True, stop=["zzqq"])
    assert reply.status == 200
    assert reply.json["choices"][0]["finish_reason"] == "length"


# --- streams -------------------------------------------------------------------------------------


def test_streamed_chat_is_the_whole_one(daemon: DaemonProcess) -> None:
    whole = chat(daemon, max_tokens=10, n=2).json
    reply = chat(daemon, max_tokens=10, n=2, stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"] == "text/event-stream"
    chunks, done = sse(reply.body)[:-1], sse(reply.body)[-1]
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    for number in range(2):
        own = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == number]
        assert own[0]["delta"]["role"] == "assistant"
        text = "".join(c["delta"].get("content") or "" for c in own)
        assert text == whole["choices"][number]["message"]["content"]
        reasons = [c["finish_reason"] for c in own]
        assert reasons == [None] * (len(own) - 1) + [whole["choices"][number]["finish_reason"]]


def test_streamed_logprobs(daemon: DaemonProcess) -> None:
    whole = chat(daemon, max_tokens=5, logprobs=True, top_logprobs=1).json["choices"][0]
    reply = chat(daemon, max_tokens=5, logprobs=True, top_logprobs=1, stream=True)
    own = [chunk["choices"][0] for chunk in sse(reply.body)[:-1]]
    told = [entry for c in own if "logprobs" in c for entry in c["logprobs"]["content"]]
    assert told == whole["logprobs"]["content"]


def test_streamed_completion_is_the_whole_one(daemon: DaemonProcess) -> None:
    whole = complete(daemon, echo=True).json["choices"][0]
    chunks = sse(complete(daemon, echo=True, stream=True).body)
    assert chunks.pop() == "[DONE]"
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    logprobs = complete(daemon, logprobs=1).json["choices"][0]["logprobs"]
    chunks = sse(complete(daemon, logprobs=1, stream=True).body)[:-1]
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    for name, values in logprobs.items():
        assert [value for part in parts for value in part[name]] == values


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        (CHAT, {}, 400, "messages"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"messages": "x"}, 400, "messages"),
        (CHAT, {"messages": [{"role": 5, "content": "x"}]}, 400, "role"),
        (CHAT, {"messages": HELLO, "temperature": 11}, 400, "temperature"),
        (CHAT, {"messages": HELLO, "stream": "yes"}, 400, "stream"),
        (CHAT, {"messages": HELLO, "n": 0}, 400, '"n"'),
        (CHAT, {"messages": HELLO, "priority": "first"}, 400, "priority"),
        (CHAT, {"messages": [{"role": "user", "content": [5]}]}, 400, "parts"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "xml"}}, 400, "json_object"),
        (CHAT, {"messages": HELLO, "response_format": "json"}, 400, "response_format"),
        (CHAT, {"messages": HELLO, "regex": "a", "grammar": "b"}, 400, "both"),
        (CHAT, {"messages": HELLO, "functions": [{}]}, 501, "tools"),
        (TEXT, {}, 400, "prompt"),
        (TEXT, {"prompt": {}}, 400, "prompt"),
        (TEXT, {"prompt": [[]]}, 400, "prompt"),
        (TEXT, {"prompt": "x", "echo": True, "logprobs": 21}, 400, "logprobs"),
        (TEXT, {"prompt": "x", "best_of": 3}, 501, "best_of"),
        (EMBED, {}, 400, "input"),
        (EMBED, {"input": [""]}, 400, "Input content cannot be empty"),
        (EMBED, {"input": ["x", None]}, 400, "must be a string, a list of token ids"),
        (EMBED, {"input": [[10**6]]}, 400, "vocabulary"),
        (EMBED, {"input": "a b " * 3000}, 400, "tokens"),
        (EMBED, {"input": "x", "dimensions": 10**5}, 400, "dimensions"),
        (EMBED, {"input": "x", "encoding_format": "hex"}, 400, "Can be either float or base64"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(
    daemon: DaemonProcess, path: str, body: dict[str, Any], status: int, word: str, stream: bool
) -> None:
    reply = post(port_of(daemon), path, {"stream": stream, **body})
    error = reply.json["error"]
    assert reply.status == status and word in error["message"], reply.body
    assert set(error) >= {"message", "type", "param", "code"}
    assert reply.headers["content-type"] == "application/json"


def test_prompt_that_is_too_long(daemon: DaemonProcess) -> None:
    for text in ("a b " * 3000, "x" * 70_000):
        reply = complete(daemon, prompt=text, stream=True)
        error = reply.json["error"]
        assert (reply.status, error["code"]) == (400, "context_length_exceeded")
        assert error["uma_code"].startswith("E_LIMIT")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_object(daemon: DaemonProcess, data: bytes) -> None:
    reply = post(port_of(daemon), CHAT, data)
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_json")


def test_models(daemon: DaemonProcess) -> None:
    info = daemon.info()["model"]
    (model,) = json.loads(ask(daemon, "/v1/models").body)["data"]
    assert model["id"] == info["name"]
    assert model["context_length"] == min(info["n_ctx"], info["n_ctx_train"])
    named = ask(daemon, "/v1/models/" + model["id"].replace(" ", "%20"))
    assert json.loads(named.body) == model
    assert ask(daemon, "/v1/models/other").status == 404


def test_no_model(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        with daemon.client() as client:
            client.send(type="unload")
            client.answer("unloaded")
        for stream in (False, True):
            reply = chat(daemon, stream=stream)
            assert (reply.status, reply.json["error"]["code"]) == (503, "E_MODEL_001")
            assert reply.headers["retry-after"] == "1"
        assert json.loads(ask(daemon, "/v1/models").body)["data"] == []
