"""Typed answers through `instructor`: by a tool, by a schema, and as a stream of parts."""

import json
import sys

import instructor
from given import client
from pydantic import BaseModel

by_tool, by_schema = sys.argv[1:]


class Door(BaseModel):
    """What became of a door."""

    colour: str
    painted: bool


modes = {
    instructor.Mode.TOOLS: by_tool,
    instructor.Mode.JSON: by_schema,
    instructor.Mode.JSON_SCHEMA: by_schema,
}
for mode, task in modes.items():
    made = instructor.from_openai(client, mode=mode)
    asked = {"model": "default", "messages": [{"role": "user", "content": task}], "max_retries": 0}
    door = made.chat.completions.create(response_model=Door, **asked)
    *_, last = made.chat.completions.create_partial(response_model=Door, **asked)
    assert last.model_dump() == door.model_dump(), (mode, last)
print(json.dumps(door.model_dump()))
