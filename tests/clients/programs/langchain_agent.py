"""An agent's loop by hand: tools bound to LangChain's chat model, their results given back."""

import sys
from pathlib import Path

from given import model
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

how, task, wrote = sys.argv[1:]


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@tool
def write_file(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return wrote


tools = {each.name: each for each in (read_file, write_file)}
if how == "responses":
    model = model.model_copy(update={"use_responses_api": True})
bound = model.bind_tools(list(tools.values()))
messages = [HumanMessage(task)]
while True:
    if how == "stream":
        first, *others = bound.stream(messages)
        answer = sum(others, first)
    else:
        answer = bound.invoke(messages)
    messages.append(answer)
    if not answer.tool_calls:
        break
    messages += [tools[call["name"]].invoke(call) for call in answer.tool_calls]
print(answer.text)
