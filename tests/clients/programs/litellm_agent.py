"""An agent's loop by hand: tools given to LiteLLM, their results given back."""

import json
import sys
from pathlib import Path

import litellm
from given import routes

task, wrote, answer, note, before, after = sys.argv[1:]
TEXT = {"type": "string"}


def function(name: str, **fields: dict[str, str]) -> dict[str, object]:
    parameters = {"type": "object", "properties": fields, "required": [*fields]}
    told = {"name": name, "description": name, "parameters": parameters}
    return {"type": "function", "function": told}


def use(name: str, path: str, text: str = "") -> str:
    if name == "read_file":
        return Path(path).read_text()
    Path(path).write_text(text)
    return wrote


tools = [function("read_file", path=TEXT), function("write_file", path=TEXT, text=TEXT)]


def agent(route: dict[str, str], task: str, streams: bool) -> str:
    """The last answer."""
    messages = [{"role": "user", "content": task}]
    while True:
        asked = {**route, "messages": messages, "tools": tools, "max_tokens": 1000}
        if streams:
            chunks = list(litellm.completion(**asked, stream=True))
            told = litellm.stream_chunk_builder(chunks, messages=messages)
        else:
            told = litellm.completion(**asked)
        message = told.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        assert told.choices[0].finish_reason == "tool_calls", told
        for call in message.tool_calls:
            result = use(call.function.name, **json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


for name, route in routes.items():
    for streams in (False, True):
        Path(note).write_text(before)
        assert agent(route, task, streams) == answer, (name, streams)
        assert Path(note).read_text() == after, (name, streams)
print("done")
