"""pydantic-ai's agent with tools and with a typed answer, over each of its models."""

import asyncio
import sys
from pathlib import Path

from given import model, provider
from pydantic import BaseModel
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider

task, wrote, answer, note, before, after = sys.argv[1:]
url = provider.base_url.partition("/v1")[0]
by_anthropic = AnthropicProvider(base_url=url, api_key="none")
models = {
    "chat": model,
    "responses": OpenAIResponsesModel("default", provider=provider),
    "anthropic": AnthropicModel("default", provider=by_anthropic),
}


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def write_file(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return wrote


class Colour(BaseModel):
    """A colour."""

    name: str
    dark: bool


async def edits(agent: Agent, streams: bool) -> None:
    Path(note).write_text(before)
    if streams:
        parts: list[str] = []
        async with agent.run_stream_events(task) as events:
            async for event in events:
                delta = getattr(event, "delta", None)
                parts.append(getattr(delta, "content_delta", None) or "")
        assert answer[-5:] in "".join(parts)
        assert event.result.output == answer, event
    else:
        assert (await agent.run(task)).output == answer
    assert Path(note).read_text() == after


async def main() -> None:
    for name, each in models.items():
        for streams in (False, True):
            print(name, streams)
            await edits(Agent(each, tools=[read_file, write_file]), streams)
        typed = Agent(each, output_type=ToolOutput(Colour, name="colour"))
        assert (await typed.run("Which colour?")).output == Colour(name="navy", dark=True)


asyncio.run(main())
print("done")
