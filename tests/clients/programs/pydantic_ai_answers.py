"""Answers of pydantic-ai's agent, whole and as a stream."""

import asyncio

from given import agent
from pydantic_ai import ModelSettings

limits = ModelSettings(temperature=0, max_tokens=12)


async def main() -> None:
    whole = await agent.run("hello", model_settings=limits)
    assert whole.output and 0 < whole.usage.output_tokens <= 12
    async with agent.run_stream("hello", model_settings=limits) as stream:
        parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
        assert stream.usage.total_tokens == whole.usage.total_tokens
    assert "".join(parts) == whole.output and len(parts) > 1
    after = await agent.run("and?", message_history=whole.all_messages(), model_settings=limits)
    assert after.usage.input_tokens > whole.usage.input_tokens


asyncio.run(main())
print("done")
