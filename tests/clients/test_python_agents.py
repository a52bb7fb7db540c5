"""Loops by hand over `openai`, `anthropic` and `ollama`: a file is read, edited, and told of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import client_programs as c

for package in ("openai", "anthropic", "ollama"):
    pytest.importorskip(package)

pytestmark = pytest.mark.clients
TEXT = {"type": "string"}
PARAMETERS = {
    "read_file": {"type": "object", "properties": {"path": TEXT}, "required": ["path"]},
    "write_file": {"type": "object", "properties": {"path": TEXT, "text": TEXT}},
}
FUNCTIONS: list[Any] = [
    {"name": name, "description": name, "parameters": schema}
    for name, schema in PARAMETERS.items()
]
ASKED: Any = {"role": "user", "content": c.TASK}


class Desk:
    """A folder with the note, and the tools."""

    def __init__(self, folder: Path) -> None:
        self.note = folder / c.NOTE
        self.note.write_text(c.BEFORE)

    def use(self, name: str, arguments: dict[str, str]) -> str:
        """The result of a tool."""
        assert arguments["path"] == c.NOTE
        if name == "read_file":
            return self.note.read_text()
        assert name == "write_file"
        self.note.write_text(arguments["text"])
        return c.WROTE


@pytest.fixture
def desk(tmp_path: Path, scripted_model: c.Scripted) -> Desk:
    scripted_model.says(c.editing())
    return Desk(tmp_path)


def test_openai_chats(desk: Desk, scripted_model: c.Scripted) -> None:
    client = c.sdk_client("openai", scripted_model.url)
    tools = [{"type": "function", "function": each} for each in FUNCTIONS]
    messages = [ASKED]
    while True:
        asked = {"model": "default", "messages": messages, "tools": tools}
        with client.chat.completions.stream(**asked) as stream:
            message = stream.until_done().get_final_completion().choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = desk.use(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert message.content == c.ANSWER and desk.note.read_text() == c.AFTER


def test_openai_responses(desk: Desk, scripted_model: c.Scripted) -> None:
    """The server keeps the conversation; only results are sent."""
    client = c.sdk_client("openai", scripted_model.url)
    asked: dict[str, Any] = {"input": c.TASK}
    tools = [{"type": "function", "strict": False, **each} for each in FUNCTIONS]
    while True:
        with client.responses.stream(model="default", tools=tools, **asked) as stream:
            answer = stream.until_done().get_final_response()
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            break
        results = [
            {"type": "function_call_output", "call_id": call.call_id,
             "output": desk.use(call.name, json.loads(call.arguments))}
            for call in calls
        ]  # fmt: skip
        asked = {"input": results, "previous_response_id": answer.id}
    assert answer.output_text == c.ANSWER and desk.note.read_text() == c.AFTER


def test_anthropic(desk: Desk, scripted_model: c.Scripted) -> None:
    client = c.sdk_client("anthropic", scripted_model.url)
    tools = [{"name": name, "input_schema": schema} for name, schema in PARAMETERS.items()]
    messages = [ASKED]
    asked = {"model": "default", "max_tokens": 1000, "messages": messages, "tools": tools}
    while True:
        with client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        if answer.stop_reason != "tool_use":
            break
        results = [
            {"type": "tool_result", "tool_use_id": block.id,
             "content": desk.use(block.name, block.input)}
            for block in answer.content
            if block.type == "tool_use"
        ]  # fmt: skip
        messages.append({"role": "user", "content": results})
    assert answer.content[0].text == c.ANSWER and desk.note.read_text() == c.AFTER


@pytest.mark.parametrize("streams", [False, True])
def test_ollama(desk: Desk, scripted_model: c.Scripted, streams: bool) -> None:
    client = c.sdk_client("ollama", scripted_model.url)
    tools = [{"type": "function", "function": each} for each in FUNCTIONS]
    messages = [ASKED]
    while True:
        told = client.chat("default", messages, tools=tools, stream=streams)
        parts = [part.message for part in (told if streams else [told])]
        text = "".join(part.content or "" for part in parts)
        calls = [call for part in parts for call in part.tool_calls or ()]
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        if not calls:
            break
        for call in calls:
            result = desk.use(call.function.name, call.function.arguments)
            name = call.function.name
            messages.append({"role": "tool", "tool_name": name, "content": result})
    assert text == c.ANSWER and desk.note.read_text() == c.AFTER
