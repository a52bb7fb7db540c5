"""Answers that are held to a form, over the socket and in each family's words over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from tests.support.chat_questions import templates
from tests.support.gateway import post, sse
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, eventually
from tests.support.small_models import write_model
from umaserve.client import Client

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Łódź"]}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
HOT = {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 7}
GRAMMAR = 'root ::= ("yes" | "no") [0-9]{1,3}'
IMPOSSIBLE = {"type": "integer", "minimum": 3, "maximum": 2}
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"enum": ["a.txt", "größe.txt"]}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        yield daemon


def fits(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


# --- the socket -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"json_schema": SCHEMA}, fits),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, fits),
        ({"regex": "[a-c]{2}"}, lambda text: re.fullmatch("[a-c]{2}", text).group()),
        ({"grammar": GRAMMAR}, lambda text: re.fullmatch("(yes|no)[0-9]{1,3}", text).group()),
    ],
    ids=["json_schema", "response_format", "regex", "grammar"],
)
@pytest.mark.parametrize("asked", [{"prompt": "hello"}, {"messages": HELLO}], ids=["text", "chat"])
def test_over_the_socket(
    daemon: DaemonProcess, fields: dict[str, Any], check: Callable[[str], Any], asked: Any
) -> None:
    with daemon.client() as client:
        for stream in (True, False):
            client.send(id="x", **asked, **fields, **HOT, stream=stream)
            text = ""
            while (event := client.receive()) is not None and event["event"] == "token":
                text += event["text"]
            assert event is not None and event["reason"] == "stop", event
            check(text if stream else event["text"])


def test_the_client_takes_constraints(daemon: DaemonProcess) -> None:
    with Client(daemon.path) as client:
        fits(client.complete("hello", json_schema=SCHEMA, **HOT).text)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"json_schema": IMPOSSIBLE}, "minimum"),
        ({"json_schema": {"not": {}}}, "not"),
        ({"regex": "(("}, "regex"),
        ({"grammar": "root ::= nothing"}, "nothing"),
    ],
)
def test_refused_and_the_connection_stays(
    daemon: DaemonProcess, fields: dict[str, Any], word: str
) -> None:
    with daemon.client() as client:
        client.send(id="x", prompt="hello", **fields)
        error = client.receive()
        assert error is not None and error["event"] == "error" and error["id"] == "x"
        assert error["code"] == "E_PROTO_005" and word in error["message"]
        client.ask("y", "hello", max_tokens=2)
        client.finish("y")
        assert len(client.results["y"].tokens) == 2


def test_what_fails_later_ends_with_an_error(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        client.send(type="tokenize", id="t", text="a")
        (token,) = client.answer("tokens")["tokens"]
        client.ask("x", "hello", regex="a", logit_bias=[[token, "-inf"]])
        client.finish("x")
        result = client.results["x"]
        assert result.error is not None and result.error["code"] == "E_RUNTIME_003"


def test_whoever_goes_away_leaves_nothing(daemon: DaemonProcess) -> None:
    fields = {"regex": "(ab)*c", "temperature": 0, "max_tokens": 1000}
    for _ in range(3):
        with daemon.client() as client:
            client.ask("x", "hello", **fields)
            while (event := client.receive()) is not None and event["event"] != "token":
                pass
            client.socket.shutdown(socket.SHUT_RDWR)
    daemon.idle()
    eventually(lambda: daemon.metrics()["kv_cells_used"] == 0)


def test_an_engine_that_dies_changes_nothing(daemon: DaemonProcess) -> None:
    schema = {"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 40, "maxItems": 40}
    fields = {"json_schema": schema, **HOT}
    with daemon.client() as client:
        client.ask("whole", "hello", **fields)
        client.finish("whole")
        client.ask("x", "hello", **fields)
        client.wait_tokens("x", 10)
        os.kill(daemon.engine_pid(), signal.SIGKILL)
        client.finish("x")
        assert client.results["x"].tokens == client.results["whole"].tokens
        jsonschema.validate(json.loads(client.results["x"].text), schema)


# --- HTTP -----------------------------------------------------------------------------------------

OPENAI = {"messages": HELLO, **HOT}
STRICT = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}}
FLAT = {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}
RAW = {"prompt": "hello", **HOT}


def chat_text(reply: Any) -> str:
    return str(reply["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/chat/completions", {**OPENAI, "response_format": STRICT}, chat_text),
        ("/v1/chat/completions", {**OPENAI, "response_format": STRICT, "reasoning_effort": "low"},
         chat_text),
        ("/v1/chat/completions", {**OPENAI, "json_schema": SCHEMA, "logprobs": True}, chat_text),
        ("/v1/completions", {**RAW, "max_tokens": 200, "response_format": STRICT},
         lambda reply: reply["choices"][0]["text"]),
        ("/v1/responses", {"input": "hello", **HOT, "text": {"format": FLAT}},
         lambda reply: reply["output"][0]["content"][0]["text"]),
        ("/v1/messages", {**OPENAI, "model": "m", "max_tokens": 200,
                          "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
         lambda reply: reply["content"][0]["text"]),
        ("/v1/messages", {**OPENAI, "model": "m", "max_tokens": 200,
                          "output_format": {"type": "json_schema", "schema": SCHEMA}},
         lambda reply: reply["content"][0]["text"]),
        ("/api/chat", {"messages": HELLO, "format": SCHEMA, "stream": False, "options": HOT},
         lambda reply: reply["message"]["content"]),
        ("/api/generate", {"prompt": "hello", "format": SCHEMA, "stream": False, "options": HOT},
         lambda reply: reply["response"]),
        ("/completion", {**RAW, "json_schema": SCHEMA}, lambda reply: reply["content"]),
    ],
)  # fmt: skip
def test_every_family(
    daemon: DaemonProcess, path: str, body: dict[str, Any], text: Callable[[Any], str]
) -> None:
    reply = post(port_of(daemon), path, body)
    assert reply.status == 200, reply.body
    fits(text(reply.json))


def test_plain_json(daemon: DaemonProcess) -> None:
    for path, field in (
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}),
        ("/api/chat", {"format": "json", "stream": False}),
    ):
        body = {"messages": HELLO, "temperature": 0, "max_tokens": 300, **field}
        reply = post(port_of(daemon), path, {**body, "options": {"temperature": 0}}).json
        message = reply["message"] if "message" in reply else reply["choices"][0]["message"]
        assert message["content"].startswith("{")


def test_several_choices_and_streams(daemon: DaemonProcess) -> None:
    body = {**OPENAI, "n": 3, "response_format": STRICT}
    choices = post(port_of(daemon), "/v1/chat/completions", body).json["choices"]
    for choice in choices:
        assert choice["finish_reason"] == "stop"
        fits(choice["message"]["content"])
    told = sse(post(port_of(daemon), "/v1/chat/completions", {**body, "stream": True}).body)
    for number in range(3):
        parts = [c["choices"][0] for c in told if isinstance(c, dict) and c["choices"]]
        mine = [part["delta"].get("content", "") for part in parts if part["index"] == number]
        fits("".join(mine))


def test_grammar_over_http(daemon: DaemonProcess) -> None:
    for path, asked in (("/v1/chat/completions", OPENAI), ("/completion", RAW)):
        reply = post(port_of(daemon), path, {**asked, "grammar": GRAMMAR}).json
        text = reply["content"] if "content" in reply else chat_text(reply)
        assert re.fullmatch("(yes|no)[0-9]{1,3}", text)


def test_refusals_over_http(daemon: DaemonProcess) -> None:
    bad = {"type": "json_schema", "json_schema": {"schema": IMPOSSIBLE}}
    for more in ({"response_format": bad}, {"grammar": "root ::= x"}):
        for stream in (False, True):
            body = {**OPENAI, **more, "stream": stream}
            reply = post(port_of(daemon), "/v1/chat/completions", body)
            assert reply.status == 400 and reply.json["error"]["uma_code"] == "E_PROTO_005"


# --- tools ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Random weights, which know nothing of tools, with Qwen3's template."""
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
    path = tmp_path_factory.mktemp("caller")
    model = write_model(
        path / "caller.gguf", "gpt2-micro", template=template.read_text("utf-8"), n_ctx=2048
    )
    with real(path, http="127.0.0.1:0", model=model) as daemon:
        yield daemon


def led(
    daemon: DaemonProcess, text: str = "<tool_call>\n", **end: float
) -> dict[str, Any]:
    """Fields that lead a model to a text (the words that begin a call), and then (``end``) to its
    end."""
    with daemon.client() as client:
        client.send(type="tokenize", id="t", text=text)
        word = client.answer("tokens")["tokens"]
        client.send(type="tokenize", id="t", text="<|endoftext|>")
        (eos,) = client.answer("tokens")["tokens"]
    assert len(set(word)) == len(word)
    steps = {str(token): 900 - 50 * i for i, token in enumerate(word)}
    steps |= {str(eos): value for value in end.values()}
    # a token that was just used counts a tenth
    return {"logit_bias": steps, "repeat_penalty": 10, "penalty_last_n": len(word) - 1}


def is_call(call: dict[str, Any]) -> None:
    parameters: Any = TOOL["function"]["parameters"]  # type: ignore[index]
    assert call["function"]["name"] == "read_file"
    jsonschema.validate(json.loads(call["function"]["arguments"]), parameters)


def called(daemon: DaemonProcess, **fields: Any) -> dict[str, Any]:
    body = {
        "messages": HELLO, "tools": [TOOL], "temperature": 0, "max_tokens": 300,
        "chat_template_kwargs": {"enable_thinking": False}, **fields,
    }  # fmt: skip
    reply = post(port_of(daemon), "/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return dict(reply.json["choices"][0])


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "read_file"}}]
)
def test_a_call_that_is_required_comes(caller: DaemonProcess, choice: Any) -> None:
    """Though nothing is as likely as the end."""
    found = called(caller, tool_choice=choice, **led(caller, end=1000))
    assert found["finish_reason"] == "tool_calls", found
    (call,) = found["message"]["tool_calls"]
    is_call(call)
    free = called(caller, tool_choice="auto", **led(caller, end=1000))
    assert free["finish_reason"] == "stop" and not free["message"].get("tool_calls")


def test_a_call_that_is_begun_is_whole(caller: DaemonProcess) -> None:
    """``auto`` binds from the words on that begin a call."""
    found = called(caller, tool_choice="auto", **led(caller))
    is_call(found["message"]["tool_calls"][0])


# --- thoughts -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Random weights with a template whose prompts begin the thoughts."""
    template = next(path for path in templates() if path.stem.startswith("Apriel-1.6"))
    path = tmp_path_factory.mktemp("thinker")
    model = write_model(
        path / "thinker.gguf", "gpt2-micro", template=template.read_text("utf-8"), n_ctx=2048
    )
    with real(path, http="127.0.0.1:0", model=model) as daemon:
        yield daemon


def test_a_schema_binds_what_follows_the_thoughts(thinker: DaemonProcess) -> None:
    lead = led(thinker, "well hm[BEGIN FINAL RESPONSE]", end=1000)  # the end is the likeliest
    form = {"type": "json_schema", "schema": {"enum": ["Oslo", "Łódź"]}}
    body = {"messages": HELLO, "response_format": form, "temperature": 0, **lead}
    reply = post(port_of(thinker), "/v1/chat/completions", body).json["choices"][0]
    assert reply["finish_reason"] == "stop", reply
    assert reply["message"]["reasoning_content"].endswith("well hm")
    assert json.loads(reply["message"]["content"]) in ("Oslo", "Łódź")
    told = sse(post(port_of(thinker), "/v1/chat/completions", {**body, "stream": True}).body)
    parts = [each["choices"][0]["delta"] for each in told if each != "[DONE]" and each["choices"]]
    assert "".join(part.get("reasoning_content") or "" for part in parts).endswith("well hm")
    said = "".join(part.get("content") or "" for part in parts)
    assert json.loads(said) in ("Oslo", "Łódź")


def test_without_a_wish_for_thoughts_all_is_the_form(thinker: DaemonProcess) -> None:
    with thinker.client() as client:
        client.ask("x", None, messages=HELLO, json_schema=SCHEMA, **HOT)
        client.finish("x")
        fits(client.results["x"].text)
        client.ask("y", None, messages=HELLO, grammar=GRAMMAR, deltas=True, **HOT)
        client.finish("y")
        assert re.fullmatch("(yes|no)[0-9]{1,3}", client.results["y"].text)


def test_a_call_in_thoughts_is_none(thinker: DaemonProcess) -> None:
    """The grammar of the tools binds from the words that begin a call, but not in thoughts."""
    calls = "<tool_calls>["
    body = {"messages": HELLO, "tools": [TOOL], "temperature": 0, "max_tokens": 40}
    reply = post(port_of(thinker), "/v1/chat/completions", {**body, **led(thinker, calls)})
    message = reply.json["choices"][0]["message"]
    assert not message.get("tool_calls") and calls in message["reasoning_content"]
