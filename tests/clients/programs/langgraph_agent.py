"""An agent of LangGraph with tools and a typed answer, by a tool and by a format."""

import json
import sys
from pathlib import Path

from given import model
from langchain_core.messages import HumanMessage
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel

task, wrote, note, before = sys.argv[1:]


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def write_file(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return wrote


class Door(BaseModel):
    """What became of a door."""

    colour: str
    painted: bool


tools = [read_file, write_file]
for over_responses in (False, True):
    each = model.model_copy(update={"use_responses_api": over_responses})
    bound = each.bind_tools(tools, response_format=Door, strict=True)
    agent = create_react_agent(bound, tools=tools, response_format=Door)
    Path(note).write_text(before)
    asked = {"messages": [HumanMessage(task)]}
    told = agent.invoke(asked)
    Path(note).write_text(before)
    *_, last = agent.stream(asked, stream_mode="values")
    assert last["structured_response"] == told["structured_response"], last
print(json.dumps(told["structured_response"].model_dump()))
