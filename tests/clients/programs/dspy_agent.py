"""DSPy's `ReAct` and a typed answer through its JSON adapter, which asks for a format."""

import json
import sys
from pathlib import Path

import dspy
from given import lm
from pydantic import BaseModel

task, wrote = sys.argv[1:]


class Door(BaseModel):
    """What became of a door."""

    colour: str
    painted: bool


class Painting(dspy.Signature):
    """Paint a door."""

    task: str = dspy.InputField()
    door: Door = dspy.OutputField()


class Choosing(dspy.Signature):
    """Choose what to call."""

    task: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    outputs: dspy.ToolCalls = dspy.OutputField()


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def write_file(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return wrote


adapter = dspy.JSONAdapter(use_native_function_calling=True)
dspy.configure(lm=lm, adapter=adapter)
tools = [dspy.Tool(read_file), dspy.Tool(write_file)]
chosen = dspy.Predict(Choosing)(task=task, tools=tools).outputs.tool_calls
assert [call.name for call in chosen] == ["read_file"], chosen
print(json.dumps(dspy.Predict(Painting)(task=wrote).door.model_dump()))
