"""Thoughts that have a budget: they end where it is used, in each dialect, and the answer goes on.

The model has random weights, and never ends its thoughts itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.callers import FORM, HELLO, TOOL, is_call, served, tokens
from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.server_harness import DaemonProcess

BUDGET = 6
LIMITS = {"temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its prompts begin the thoughts."""
    folder = tmp_path_factory.mktemp("thinker")
    with served(folder, "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Its answers begin the thoughts."""
    with served(tmp_path_factory.mktemp("qwen"), "Qwen-Qwen3-0.6B") as daemon:
        yield daemon


def asked(daemon: DaemonProcess, path: str, **fields: Any) -> Any:
    answer = post(port_of(daemon), path, {**LIMITS, **fields})
    assert answer.status == 200, answer.json
    return answer.json


def message_of(daemon: DaemonProcess, **fields: Any) -> dict[str, Any]:
    (choice,) = asked(daemon, "/v1/chat/completions", messages=HELLO, **fields)["choices"]
    return dict(choice["message"])


@pytest.mark.parametrize("budget", [{}, {"thinking_budget": -1}, {"reasoning_budget_tokens": -1}])
def test_without_a_budget_it_thinks_to_the_end(daemon: DaemonProcess, budget: Any) -> None:
    assert not message_of(daemon, **budget)["content"]


@pytest.mark.parametrize("budget", [1, BUDGET])
def test_the_socket_counts_the_tokens(daemon: DaemonProcess, budget: int) -> None:
    end = tokens(daemon, "</think>")
    with daemon.client() as client:
        result = client.generate(None, messages=HELLO, thinking_budget=budget, **LIMITS)
    ids = result.tokens
    assert result.eos is not None, result.error
    assert ids[budget : budget + len(end)] == end
    assert len(ids) == LIMITS["max_tokens"]
    assert result.eos["message"]["reasoning_content"]
    assert result.eos["message"]["content"]


@pytest.mark.parametrize(
    "budget",
    [
        {"thinking_budget": BUDGET},
        {"reasoning_budget_tokens": BUDGET},
        {"thinking_budget_tokens": BUDGET},
        {"reasoning": {"max_tokens": BUDGET}},
        {"reasoning_budget": BUDGET, "tools": [TOOL]},
    ],
)
def test_chat(daemon: DaemonProcess, budget: dict[str, Any]) -> None:
    message = message_of(daemon, **budget)
    assert message["reasoning_content"] and message["content"]


WORDS = " I must answer now.\n"


def test_last_words_come_before_the_end(daemon: DaemonProcess) -> None:
    forced = tokens(daemon, WORDS) + tokens(daemon, "</think>")
    with daemon.client() as client:
        result = client.generate(
            None, messages=HELLO, thinking_budget=BUDGET, thinking_budget_message=WORDS, **LIMITS
        )
    assert result.tokens[BUDGET : BUDGET + len(forced)] == forced
    assert result.eos is not None and result.eos["message"]["content"]
    assert result.eos["message"]["reasoning_content"].rstrip().endswith(WORDS.rstrip())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions",
         {"reasoning_budget_tokens": BUDGET, "reasoning_budget_message": WORDS}),
        ("/v1/chat/completions", {"thinking_budget": BUDGET, "thinking_budget_message": WORDS}),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": BUDGET},
                          "reasoning_budget_message": WORDS}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 40, "thinking_budget": BUDGET,
                           "reasoning_budget_message": WORDS}),
        ("/api/chat", {"options": {"temperature": 0, "num_predict": 40}, "stream": False,
                       "thinking_budget": BUDGET, "reasoning_budget_message": WORDS}),
    ],
)  # fmt: skip
def test_last_words_in_each_dialect(
    daemon: DaemonProcess, path: str, fields: dict[str, Any]
) -> None:
    assert WORDS.strip() in json.dumps(asked(daemon, path, messages=HELLO, **fields))


def test_last_words_without_a_budget_are_none(daemon: DaemonProcess) -> None:
    assert WORDS.strip() not in str(message_of(daemon, reasoning_budget_message=WORDS))


def test_anthropic(daemon: DaemonProcess) -> None:
    thinking = {"type": "enabled", "budget_tokens": BUDGET}
    answer = asked(daemon, "/v1/messages", messages=HELLO, thinking=thinking)
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]


def test_responses(daemon: DaemonProcess) -> None:
    answer = post(
        port_of(daemon), "/v1/responses",
        {"input": "hello", "temperature": 0, "max_output_tokens": 40,
         "reasoning": {"max_tokens": BUDGET}},
    ).json  # fmt: skip
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]


def test_ollama(daemon: DaemonProcess) -> None:
    options = {"temperature": 0, "num_predict": 40}
    body = {"messages": HELLO, "stream": False, "options": options, "thinking_budget": BUDGET}
    message = post(port_of(daemon), "/api/chat", body).json["message"]
    assert message["thinking"] and message["content"]


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget"])
def test_none(daemon: DaemonProcess, name: str) -> None:
    message = message_of(daemon, **{name: 0})
    assert not message.get("reasoning_content") and message["content"]


def test_a_format_binds_behind_them(daemon: DaemonProcess) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": FORM}}
    message = message_of(daemon, response_format=form, reasoning={"max_tokens": BUDGET})
    assert message["reasoning_content"]
    assert set(json.loads(message["content"])) == {"city"}


def test_a_required_call_comes_behind_them(daemon: DaemonProcess) -> None:
    message = message_of(
        daemon, tools=[TOOL], tool_choice="required", thinking_budget=BUDGET, max_tokens=200
    )
    call = message["tool_calls"][0]["function"]
    is_call(call["name"], json.loads(call["arguments"]))


def test_thoughts_that_the_answer_begins(qwen: DaemonProcess) -> None:
    begin, end = tokens(qwen, "<think>"), tokens(qwen, "</think>")
    bias = {str(token): 900 - 50 * i for i, token in enumerate(begin)}
    with qwen.client() as client:
        ids = client.generate(
            None, messages=HELLO, thinking_budget=BUDGET, logit_bias=bias, repeat_penalty=10,
            penalty_last_n=len(begin) - 1, **LIMITS,
        ).tokens  # fmt: skip
    assert ids[: len(begin)] == begin
    at = len(begin) + BUDGET
    assert ids[at : at + len(end)] == end


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"reasoning_budget_tokens": -2}),
        ("/v1/chat/completions", {"reasoning": {"max_tokens": "many"}}),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1.5}}),
    ],
)
def test_what_is_no_budget(daemon: DaemonProcess, path: str, fields: dict[str, Any]) -> None:
    answer = post(port_of(daemon), path, {"messages": HELLO, **LIMITS, **fields})
    assert answer.status == 400
    assert "whole number" in str(answer.json)


@pytest.mark.parametrize("words", ["a" * 4097, 5])
def test_what_are_no_last_words(daemon: DaemonProcess, words: Any) -> None:
    body = {"messages": HELLO, "thinking_budget": BUDGET, "reasoning_budget_message": words}
    answer = post(port_of(daemon), "/v1/chat/completions", {**LIMITS, **body})
    assert answer.status == 400
    assert "thinking_budget_message" in answer.json["error"]["message"]
