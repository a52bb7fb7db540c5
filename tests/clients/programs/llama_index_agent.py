"""LlamaIndex's `FunctionAgent` with tools, and an answer of a type."""

import asyncio
import json
import sys
from pathlib import Path

from given import llm
from llama_index.core.agent.workflow import FunctionAgent
from pydantic import BaseModel

task, wrote, note, before, shape = sys.argv[1:]


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


async def main() -> None:
    for streams in (True, False):
        Path(note).write_text(before)
        agent = FunctionAgent(tools=[read_file, write_file], llm=llm, streaming=streams)
        told = await agent.run(task)
        assert json.loads(str(told))["painted"] is True, told
    structured = llm.as_structured_llm(Door)
    print(structured.complete(wrote).raw.model_dump_json())
    schema = {"name": "door", "schema": json.loads(shape), "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    tools = agent.tools
    answer = await llm.achat_with_tools(tools, user_msg=wrote, response_format=form)
    print(answer.message.content)


asyncio.run(main())
