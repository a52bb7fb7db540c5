"""An agent of `openai-agents` with tools and a typed answer, over Responses and chat."""

import asyncio
import json
import sys
from pathlib import Path

from agents import Agent, Runner, function_tool
from given import chat_model, responses_model
from pydantic import BaseModel

task, wrote, note, before = sys.argv[1:]


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@function_tool
def write_file(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return wrote


class Door(BaseModel):
    """What became of a door."""

    colour: str
    painted: bool


async def main() -> None:
    for model in (responses_model, chat_model):
        agent = Agent("painter", model=model, tools=[read_file, write_file], output_type=Door)
        Path(note).write_text(before)
        whole = await Runner.run(agent, task)
        Path(note).write_text(before)
        stream = Runner.run_streamed(agent, task)
        kinds = {event.type async for event in stream.stream_events()}
        assert "raw_response_event" in kinds and stream.final_output == whole.final_output
    print(json.dumps(whole.final_output.model_dump()))


asyncio.run(main())
