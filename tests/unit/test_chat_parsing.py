"""Texts of models to messages, by uma-chat: whatever comes, the deltas make the message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.chat_questions import Asked, conversation, joined, model_of, templates
from umaserve.chat import questions

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
ASK = [{"role": "user", "content": "What does a.txt say?"}]
THOUGHT = "<think>\nA file, then.\n</think>\n\n"
TEXTS = (
    "Hello there, größer 😀 world.",
    THOUGHT + '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>',
    "<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n"
    "</tool_call>",
    '[TOOL_CALLS]read_file[ARGS]{"path": "a"}',
    '<function=read_file>{"path": "a"}</function> and on',
    '{"name": "read_file", "parameters": {"path": "a"}}',
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.read_file <|constrain|>json<|message|>{"path": "a"}',
    "<tool_call></tool_call><tool_call>{{{</think><think>[TOOL_CALLS][",
)


def syntax_of(chat: Asked, template: str, **options: Any) -> msgspec.Raw:
    chat.ask(model_of(template).question())
    answer = chat.ask(conversation(options.pop("messages", ASK), **options))
    assert answer is not None and "syntax" in answer, answer
    return msgspec.Raw(json.dumps(answer["syntax"]).encode())


def parsed(chat: Asked, syntax: msgspec.Raw, text: str, step: int) -> dict[str, Any]:
    """The message, told in deltas after every ``step`` characters."""
    former, told = None, []
    for end in (*range(1, len(text), step), len(text)):
        partial = end < len(text)
        answer = chat.ask(questions.parse(text[:end], syntax, former, partial=partial))
        assert answer is not None and "message" in answer, answer
        former = msgspec.Raw(json.dumps(answer["message"]).encode())
        told += answer["deltas"]
    message = answer["message"]
    cut = [call.pop("incomplete", False) for call in message.get("tool_calls", ())]
    assert joined(told) == message
    assert answer["calls"] == cut.count(False)
    return dict(message)


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
def test_whatever_a_model_says_the_deltas_make_the_message(template: Path) -> None:
    with Asked() as chat:
        syntax = syntax_of(chat, template.read_text("utf-8"), tools=[TOOL])
        for text in TEXTS:
            parsed(chat, syntax, text, 5)


@pytest.mark.parametrize(
    ("name", "text"), [("Qwen-Qwen3-0.6B", TEXTS[1]), ("Qwen3-Coder", TEXTS[2])]
)
@pytest.mark.parametrize("step", [1, 4, 1000])
def test_a_call_is_read_however_it_is_cut(name: str, text: str, step: int) -> None:
    template = next(path for path in templates() if path.stem == name)
    with Asked() as chat:
        syntax = syntax_of(chat, template.read_text("utf-8"), tools=[TOOL])
        message = parsed(chat, syntax, text, step)
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "read_file" and len(call["id"]) == 32
        assert json.loads(call["function"]["arguments"]) == {"path": "a"}
        if text.startswith(THOUGHT):
            assert message["reasoning_content"].strip() == "A file, then."


def test_two_calls_have_ids_of_their_own() -> None:
    template = next(path for path in templates() if path.stem == "Qwen-Qwen3-0.6B")
    with Asked() as chat:
        options = {"tools": [TOOL], "parallel_tool_calls": True}
        syntax = syntax_of(chat, template.read_text("utf-8"), **options)
        call = TEXTS[1].removeprefix(THOUGHT)
        first, second = parsed(chat, syntax, f"{call}\n{call}", 3)["tool_calls"]
        assert first["id"] != second["id"]


def test_the_message_that_goes_on_begins_with_what_was_there() -> None:
    messages = [*ASK, {"role": "assistant", "content": "It says 4"}]
    with Asked() as chat:
        syntax = syntax_of(
            chat, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
            messages=messages, continue_final_message=True,
        )  # fmt: skip
        answer = chat.ask(questions.parse("2.", syntax, None, partial=False))
        assert answer is not None and answer["message"]["content"] == "It says 42."
        assert joined(answer["deltas"])["content"] == "2."
