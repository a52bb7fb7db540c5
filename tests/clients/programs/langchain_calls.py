"""Calls of tools that LangChain asks for: by name, any, several at once; whole and streaming."""

import asyncio
import sys

from given import model
from langchain_core.tools import tool

wanted = [{"path": path} for path in sys.argv[1:]]


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return path


async def main() -> None:
    for choice in ("auto", "any", "read_file"):
        bound = model.bind_tools([read_file], tool_choice=choice, parallel_tool_calls=True)
        whole = await bound.ainvoke("Read both.")
        parts = [part async for part in bound.astream("Read both.")]
        streamed = sum(parts[1:], parts[0])
        for answer in (whole, streamed):
            assert [call["args"] for call in answer.tool_calls] == wanted, answer
            assert {call["name"] for call in answer.tool_calls} == {"read_file"}
            assert len({call["id"] for call in answer.tool_calls}) == len(wanted)
            assert not answer.invalid_tool_calls


asyncio.run(main())
print("done")
