"""Items of ``/v1/responses`` as messages and tools of a chat."""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.gateway.daemon.event import decode_any
from umaserve.gateway.daemon.refusal import Refusal, encode, wrong
from umaserve.gateway.families.openai.kept import Kept
from umaserve.gateway.translate.answers.parts import Call
from umaserve.gateway.translate.body import object_of, objects_of
from umaserve.gateway.translate.messages import (
    TEXT_PARTS,
    Content,
    content_of,
    parts_of,
    unread_part,
)
from umaserve.gateway.translate.schemas import OBJECT, TEXT

BETWEEN = "__"  # a namespace and the name of a tool in it
MORE_TOOLS = "additional_tools"  # an item that is no part of what is said
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_OF_CLIENT = ("_output", "_response")  # of the types of items that no assistant makes
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_CONTENT = {"type": ["string", "array"], "items": {"type": "object", "properties": {
    "type": {"enum": [*TEXT_PARTS]}, "text": TEXT}, "required": ["type", "text"]}}  # fmt: skip
# what the OpenAPI document says of an item and of a tool
ITEM = {
    "type": "object",
    "properties": {
        "type": {"enum": ["message", "reasoning", "function_call", "custom_tool_call", *_OUTPUTS]},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": _CONTENT,
        "output": _CONTENT,
        **{name: TEXT for name in ("call_id", "name", "namespace", "arguments", "input")},
    },
}
TOOL = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function", "custom", "namespace", "web_search"]},
        "name": TEXT,
        "description": TEXT,
        "parameters": OBJECT,
        "tools": {"type": "array", "items": OBJECT},
    },
    "required": ["type"],
}
MAX_NAMED, MAX_ID_CHARS = 10, 100  # unknown ids that an error names, and of each


def resolved(body: dict[str, Any], kept: Kept, owner: str, most_bytes: int) -> dict[str, Any]:
    """The body with the items in the place of references to them.  Raises ``Refusal``.

    The items may have ``most_bytes``, each as often as it is referred to.
    """
    given = body.get("input")
    if not isinstance(given, list):
        return body
    if not all(isinstance(item.get("id") or "", str) for item in objects_of(body, "input")):
        raise wrong("input[].id", "be a string")
    ids = [str(item.get("id")) for item in given if _is_reference(item)]
    if not ids:
        return body
    known = kept.items(set(ids), owner)
    missing = [id for id in ids if id not in known]
    if missing:
        names = ", ".join(f"'{id[:MAX_ID_CHARS]}'" for id in missing[:MAX_NAMED])
        text = f"Item with id {names} not found: no item of this id is kept"
        raise Refusal(404, "item_not_found", f"{text}; send the item, or keep it (store: true)")
    if sum(len(known[id]) for id in ids) > most_bytes:
        text = f"the items that are referred to have more than {most_bytes} bytes"
        raise Refusal(413, "body_too_large", text)
    items = {id: decode_any(item) for id, item in known.items()}
    given = [items[str(item.get("id"))] if _is_reference(item) else item for item in given]
    return {**body, "input": given}


def _is_reference(item: dict[str, Any]) -> bool:
    """``type`` may be left out, and the id is all there is then."""
    return item.get("type") == "item_reference" or item.keys() - {"type"} == {"id"}


def messages_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return ``input`` as the messages of a chat.  Raises ``Refusal``."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[dict[str, Any]] = []
    for item in objects_of(body, "input"):
        _add(item, found)
    return found


def _add(item: dict[str, Any], found: list[dict[str, Any]]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        content = content_of(item.get("content"), "input[].content")
        if item.get("role") == "assistant":
            _say(found, content)
        else:
            found.append({"role": item.get("role"), "content": content})
    elif kind == "reasoning":
        texts = [str(p.get("text") or "") for p in objects_of(item, "content")]
        found.append({"role": "assistant", "content": "", "reasoning_content": "".join(texts)})
    elif kind in ("function_call", "custom_tool_call"):
        calls = _of_assistant(found).setdefault("tool_calls", [])
        calls.append(_call(item, kind))
    elif kind in _OUTPUTS:
        output = content_of(item.get("output"), "input[].output")
        called = str(item.get("call_id"))
        found.append({"role": "tool", "tool_call_id": called, "content": output})
    elif str(kind).endswith(_OF_CLIENT):
        found.append({"role": "user", "content": [unread_part(kind)]})
    elif kind != MORE_TOOLS:
        _say(found, [unread_part(kind)])


def _say(found: list[dict[str, Any]], content: Content) -> None:
    """More of the assistant's text, behind what this turn of it has said."""
    message = _of_assistant(found)
    said = message["content"]
    message["content"] = [*parts_of(said), *parts_of(content)] if said else content


def _of_assistant(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that these parts of one turn belong to."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _call(item: dict[str, Any], kind: str) -> dict[str, Any]:
    name, space = str(item.get("name")), item.get("namespace")
    arguments = item.get("arguments")
    if kind == "custom_tool_call":
        arguments = encode({"input": item.get("input")}).decode()
    function = {"name": f"{space}{BETWEEN}{name}" if space else name, "arguments": arguments or ""}
    return {"id": str(item.get("call_id")), "type": "function", "function": function}


class Tools:
    """Tools in a chat's words, and the way back from a call to an item.

    A custom tool becomes a function with one text, a namespace's tools get its name before theirs.
    Tools that OpenAI's servers run themselves are left out: the model is not told of them.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self.functions: list[dict[str, Any]] = []
        self._custom: set[str] = set()
        self._spaces: dict[str, tuple[str, str]] = {}
        for tool in [*objects_of(body, "tools"), *_more_tools(body)]:
            if tool.get("type") == "namespace":
                for inner in objects_of(tool, "tools"):
                    self._take(inner, str(tool.get("name")))
            else:
                self._take(tool, "")

    def _take(self, tool: dict[str, Any], space: str) -> None:
        kind, name = tool.get("type"), str(tool.get("name"))
        if kind not in ("function", "custom"):
            return
        full = f"{space}{BETWEEN}{name}" if space else name
        if space:
            self._spaces[full] = (space, name)
        function = {"name": full, "parameters": tool.get("parameters") or {"type": "object"}}
        if kind == "custom":
            self._custom.add(full)
            function["parameters"] = _INPUT
        if tool.get("description"):
            function["description"] = tool["description"]
        self.functions.append({"type": "function", "function": function})

    def fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """The socket's fields."""
        choice = body.get("tool_choice")
        if not self.functions or choice == "none":
            return {}
        fields: dict[str, Any] = {"tools": self.functions}
        if isinstance(choice, dict) and choice.get("name"):
            fields["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        elif choice in ("auto", "required"):
            fields["tool_choice"] = choice
        elif choice is not None and not isinstance(choice, dict):
            raise wrong("tool_choice", "be auto, none, required or a tool")
        if body.get("parallel_tool_calls") is False:
            fields["parallel_tool_calls"] = False
        return fields

    def is_custom(self, name: str) -> bool:
        """Whether calls of this tool have a text for arguments."""
        return name in self._custom

    def item(self, id: str, call: Call, status: str) -> dict[str, Any]:
        """A call as an item."""
        space, name = self._spaces.get(call.name, ("", call.name))
        item: dict[str, Any] = {"id": id, "call_id": call.id, "name": name, "status": status}
        if space:
            item["namespace"] = space
        if self.is_custom(call.name):
            return {"type": "custom_tool_call", **item, "input": text_of_call(call.arguments)}
        return {"type": "function_call", **item, "arguments": call.arguments}


def text_of_call(arguments: str) -> str:
    """The text that a custom tool is called with."""
    try:
        value = decode_any(arguments or "{}")
    except msgspec.DecodeError:
        return arguments
    text = value.get("input", "") if isinstance(value, dict) else value
    return text if isinstance(text, str) else arguments


def _more_tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Tools that stand in the input, as Codex sends them for the models that it knows."""
    if isinstance(body.get("input"), str):
        return []
    items = [item for item in objects_of(body, "input") if item.get("type") == MORE_TOOLS]
    return [tool for item in items for tool in objects_of(item, "tools")]


def effort_of(body: dict[str, Any]) -> Any:
    """``reasoning.effort``; ``None`` where it is not said."""
    return object_of(body, "reasoning").get("effort")
