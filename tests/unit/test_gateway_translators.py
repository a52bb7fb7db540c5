"""The gateway's streams, event by event: thinking and tool calls in each family's words."""

from __future__ import annotations

import json
from typing import Any

from umaserve.gateway.daemon.event import Event, decode_event
from umaserve.gateway.daemon.refusal import (
    anthropic_error,
    llama_error,
    not_there,
    of_daemon,
    ollama_error,
    openai_error,
)
from umaserve.gateway.families.anthropic.messages import _Events
from umaserve.gateway.families.ollama.chat import _Lines
from umaserve.gateway.families.openai.chat import _ChatChunks
from umaserve.gateway.translate.answers.answering import Translator

USAGE = {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 7}
CALL = {"index": 0, "id": "call_1", "name": "read"}
DELTAS: list[dict[str, Any]] = [
    {"event": "token", "text": "<think>", "token_id": 1},
    {"event": "delta", "reasoning": "hm"},
    {"event": "delta", "reasoning": "m"},
    {"event": "token", "text": "raw", "token_id": 2},
    {"event": "delta", "content": "I "},
    {"event": "delta", "content": "look"},
    {"event": "delta", "tool_calls": [{**CALL, "arguments": ""}]},
    {"event": "delta", "tool_calls": [{"index": 0, "arguments": '{"path":'}]},
    {"event": "delta", "tool_calls": [{"index": 0, "arguments": '"a"}'}]},
    {"event": "delta", "tool_calls": [{"index": 1, "id": "call_2", "name": "ls", "arguments": ""}]},
]
MESSAGE = {
    "role": "assistant",
    "content": "I look",
    "reasoning": "hmm",
    "tool_calls": [
        {"id": "call_1", "name": "read", "arguments": '{"path":"a"}'},
        {"id": "call_2", "name": "ls", "arguments": ""},
    ],
}
EOS = {"event": "eos", "reason": "tool_calls", "usage": USAGE, "message": MESSAGE}


def event(told: dict[str, Any]) -> Event:
    return decode_event(json.dumps({"id": "a", **told}).encode())


def chat_chunks() -> _ChatChunks:
    return _ChatChunks({"model": "m"}, 1, with_logprobs=False)


def fed(translator: Translator, told: list[dict[str, Any]], deltas: bool = True) -> bytes:
    out = translator.begin()
    translator.begun(0, event({"event": "begin", "deltas": deltas}))
    for each in told:
        out += translator.feed(0, event(each))
    return out + translator.end()


def data(out: bytes) -> list[Any]:
    lines = [line[6:] for line in out.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# --- OpenAI --------------------------------------------------------------------------------------


def test_openai_deltas() -> None:
    chunks = data(fed(chat_chunks(), [*DELTAS, EOS]))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:5] == [
        {"reasoning_content": "hm"}, {"reasoning_content": "m"}, {"content": "I "},
        {"content": "look"},
    ]  # fmt: skip
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls == [
        {"index": 0, "id": "call_1", "type": "function",
         "function": {"name": "read", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"path":'}},
        {"index": 0, "function": {"arguments": '"a"}'}},
        {"index": 1, "id": "call_2", "type": "function",
         "function": {"name": "ls", "arguments": ""}},
    ]  # fmt: skip
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_openai_whole_message() -> None:
    choice = chat_chunks().choice(0, event(EOS))
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("I look", "hmm")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "read", "arguments": '{"path":"a"}'}, {"name": "ls", "arguments": ""},
    ]  # fmt: skip


def test_message_that_comes_with_the_end_alone_is_told() -> None:
    told = [{"event": "token", "text": "Hel"}, {"event": "token", "text": "lo"}]
    chunks = data(fed(chat_chunks(), [*told, EOS]))
    delta = chunks[1]["choices"][0]["delta"]
    assert delta["content"] == "I look" and len(delta["tool_calls"]) == 2


# --- Anthropic -----------------------------------------------------------------------------------


def test_anthropic_blocks() -> None:
    told = data(fed(_Events("m"), [*DELTAS, EOS]))
    kinds = [each["type"] for each in told]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [each["content_block"] for each in told if each["type"] == "content_block_start"]
    assert [block["type"] for block in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert starts[2] == {"type": "tool_use", "id": "call_1", "name": "read", "input": {}}
    stops = [each["index"] for each in told if each["type"] == "content_block_stop"]
    assert stops == [0, 1, 2, 3]
    deltas = [each["delta"] for each in told if each["type"] == "content_block_delta"]
    assert "".join(d.get("thinking", "") for d in deltas) == "hmm"
    assert "".join(d.get("text", "") for d in deltas) == "I look"
    assert "".join(d.get("partial_json", "") for d in deltas) == '{"path":"a"}'
    end = told[-2]
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["usage"] == {
        "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
        "output_tokens": 7,
    }  # fmt: skip


def test_anthropic_answer_without_text() -> None:
    told = data(fed(_Events("m"), [{"event": "eos", "reason": "length"}], deltas=False))
    assert [each["type"] for each in told] == [
        "message_start", "ping", "content_block_start", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert told[-2]["delta"]["stop_reason"] == "max_tokens"


def test_anthropic_ping_is_a_comment_until_the_message_begins() -> None:
    events = _Events("m")
    assert events.ping.startswith(b":")
    events.feed(0, event({"event": "token", "text": "x"}))
    assert events.ping == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_stop_string_that_the_daemon_names() -> None:
    end = {"event": "eos", "reason": "stop", "stop": "END", "usage": USAGE}
    told = data(fed(_Events("m"), [end], deltas=False))
    assert told[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


# --- Ollama --------------------------------------------------------------------------------------


def test_ollama_lines() -> None:
    out = fed(_Lines("m", "message"), [*DELTAS, EOS]).decode()
    lines = [json.loads(line) for line in out.splitlines()]
    messages = [line["message"] for line in lines]
    assert "".join(m.get("thinking", "") for m in messages) == "hmm"
    assert "".join(m["content"] for m in messages) == "I look"
    (calls,) = [m["tool_calls"] for m in messages if "tool_calls" in m]
    assert [call["function"] for call in calls] == [
        {"name": "read", "arguments": {"path": "a"}}, {"name": "ls", "arguments": {}},
    ]  # fmt: skip
    last = lines[-1]
    assert (last["done"], last["prompt_eval_count"], last["eval_count"]) == (True, 9, 7)
    assert [line["done"] for line in lines[:-1]] == [False] * (len(lines) - 1)


# --- what fails ----------------------------------------------------------------------------------


def failed(code: str, message: str, **fields: int) -> Event:
    return Event(event="error", code=code, message=message, **fields)


def test_streams_that_fail_say_so_in_their_words() -> None:
    refusal = of_daemon(failed("E_RUNTIME_001", "it failed"))
    (openai,) = data(chat_chunks().fail(refusal))
    assert openai["error"]["message"] == "it failed"
    (anthropic,) = data(_Events("m").fail(refusal))
    assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "api_error")
    assert json.loads(_Lines("m", "message").fail(refusal))["error"] == "it failed"


def test_what_is_not_there_is_not_to_be_asked_again() -> None:
    assert not_there("this").headers == (("x-should-retry", "false"),)
    assert dict(of_daemon(failed("E_LIMIT_002", "full")).headers) == {"retry-after": "1"}


def test_prompts_that_are_too_long_are_told_in_words_that_agents_look_for() -> None:
    for code in ("E_LIMIT_001", "E_LIMIT_003"):
        refusal = of_daemon(failed(code, "it is long", n_prompt_tokens=9, n_ctx=5))
        openai = openai_error(refusal)["error"]
        assert (refusal.status, openai["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 5 tokens" in openai["message"]
        assert "reduce the length of the messages" in openai["message"]
        anthropic = anthropic_error(refusal)["error"]
        assert anthropic["message"] == "prompt is too long: 9 tokens > 5 maximum (it is long)"
        ollama = ollama_error(refusal)
        assert ollama["error"] == "the input length exceeds the context length: it is long"
        llama = llama_error(refusal)["error"]
        assert (llama["code"], llama["type"]) == (400, "exceed_context_size_error")
        assert "request (9 tokens) exceeds the available context size (5" in llama["message"]
        for told in (openai, anthropic, ollama, llama):
            assert (told["n_prompt_tokens"], told["n_ctx"]) == (9, 5)
    for shape in (openai_error, anthropic_error, llama_error):
        told = shape(of_daemon(failed("E_PROTO_003", "no")))["error"]
        assert told["message"] == "no" and "n_ctx" not in told


def test_what_is_too_long_while_no_model_is_there_may_be_asked_again() -> None:
    refusal = of_daemon(failed("E_LIMIT_001", "it is long", n_prompt_tokens=9, n_ctx=0))
    assert (refusal.status, refusal.code) == (503, "E_MODEL_001")
    assert dict(refusal.headers) == {"retry-after": "1"}
