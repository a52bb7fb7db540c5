"""A `ToolCallingAgent` of smolagents, and an answer of a format beside the same tools."""

import json
import sys
from pathlib import Path

from given import model
from smolagents import ToolCallingAgent, tool

task, wrote, note, before, shape = sys.argv[1:]


@tool
def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: Its name.
    """
    return Path(path).read_text()


@tool
def write_file(path: str, text: str) -> str:
    """Write a file.

    Args:
        path: Its name.
        text: All that it is to hold.
    """
    Path(path).write_text(text)
    return wrote


tools = [read_file, write_file]
for streams in (False, True):
    Path(note).write_text(before)
    agent = ToolCallingAgent(tools=tools, model=model, max_steps=4, stream_outputs=streams)
    told = agent.run(task)
    assert json.loads(told)["painted"] is True, told

schema = {"name": "door", "schema": json.loads(shape), "strict": True}
answer = model.generate(
    [{"role": "user", "content": [{"type": "text", "text": wrote}]}],
    response_format={"type": "json_schema", "json_schema": schema},
    tools_to_call_from=tools,
    tool_choice="auto",
)
print(answer.content)
