"""The output of ``/v1/responses``: items as they grow, and the events that tell of it."""

from __future__ import annotations

import os
from typing import Any

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.families.openai.items import Tools, text_of_call
from umaserve.gateway.translate.answers.parts import Call, Piece

Told = dict[str, Any]


class Output:
    """``items`` are those that are whole.  Each step returns the events that it makes."""

    def __init__(self, tools: Tools) -> None:
        self.items: list[Told] = []
        self._tools = tools
        self._kind = ""  # of the item that grows: reasoning, message, or a call's index
        self._id = ""
        self._text = ""
        self._call = Call("", "", "")

    def take(self, piece: Piece) -> list[Told]:
        """More of the answer."""
        events: list[Told] = []
        if piece.reasoning:
            self._open("reasoning", events)
            events.append(self._more("reasoning_text", piece.reasoning))
        if piece.text:
            self._open("message", events)
            events.append(self._more("output_text", piece.text))
        for call in piece.calls:
            self._take_call(call, events)
        return events

    def finish(self, is_cut: bool, calls: list[Call]) -> list[Told]:
        """There is no more; an answer without anything is an empty message.

        ``is_cut``: the text ended before it was whole.  ``calls`` are those of the answer.
        """
        events: list[Told] = []
        if not self.items and not self._kind:
            self._open("message", events)
        if self._kind.startswith("call"):
            is_cut = calls[-1].is_cut if calls else is_cut
        self._close(events, "incomplete" if is_cut else "completed")
        return events

    def cut_by(self, end: Event) -> str:
        """Return why the answer ended before it was whole; empty where it is whole.

        OpenAI has no word for a stop string in a call.
        """
        if end.reason == "length":
            return "max_output_tokens"
        is_cut = self.items[-1]["status"] == "incomplete"
        return ("stop" if end.stop is not None else "model") if is_cut else ""

    def _take_call(self, call: Told, events: list[Told]) -> None:
        kind = f"call {call.get('index', 0)}"
        if kind != self._kind:
            self._close(events)
            self._call = Call(call.get("id") or _new("call"), call.get("name") or "", "")
            self._begin(kind, "fc", events)
        more = call.get("arguments") or ""
        self._call.arguments += more
        if more and not self._tools.is_custom(self._call.name):
            told = {"type": "response.function_call_arguments.delta", "delta": more}
            events.append({**told, "item_id": self._id, "output_index": len(self.items)})

    def _open(self, kind: str, events: list[Told]) -> None:
        if kind == self._kind:
            return
        self._close(events)
        self._text = ""
        self._begin(kind, "msg" if kind == "message" else "rs", events)
        events.append(self._part("response.content_part.added"))

    def _begin(self, kind: str, prefix: str, events: list[Told]) -> None:
        self._kind, self._id = kind, _new(prefix)
        item = self._item("in_progress")
        if "content" in item:
            item["content"] = []
        added = {"type": "response.output_item.added", "output_index": len(self.items)}
        events.append({**added, "item": item})

    def _close(self, events: list[Told], status: str = "completed") -> None:
        if not self._kind:
            return
        item, index = self._item(status), len(self.items)
        where: Told = {"item_id": self._id, "output_index": index}
        if self._kind.startswith("call"):
            events += self._call_done(where) if status == "completed" else []
        else:
            name = "output_text" if self._kind == "message" else "reasoning_text"
            done = {"type": f"response.{name}.done", "text": self._text, "content_index": 0}
            events.append({**done, **where, **({"logprobs": []} if name == "output_text" else {})})
            events.append(self._part("response.content_part.done"))
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        self.items.append(item)
        self._kind = ""

    def _call_done(self, where: Told) -> list[Told]:
        if not self._tools.is_custom(self._call.name):
            done = {"type": "response.function_call_arguments.done", "name": self._call.name}
            return [{**done, "arguments": self._call.arguments, **where}]
        text = text_of_call(self._call.arguments)
        return [
            {"type": "response.custom_tool_call_input.delta", "delta": text, **where},
            {"type": "response.custom_tool_call_input.done", "input": text, **where},
        ]

    def _more(self, name: str, text: str) -> Told:
        self._text += text
        told: Told = {"type": f"response.{name}.delta", "delta": text, "content_index": 0}
        told |= {"item_id": self._id, "output_index": len(self.items)}
        return told | ({"logprobs": []} if name == "output_text" else {})

    def _part(self, kind: str) -> Told:
        part = self._content()
        where = {"item_id": self._id, "output_index": len(self.items), "content_index": 0}
        return {"type": kind, **where, "part": part}

    def _content(self) -> Told:
        if self._kind == "reasoning":
            return {"type": "reasoning_text", "text": self._text}
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}

    def _item(self, status: str) -> Told:
        if self._kind.startswith("call"):
            return self._tools.item(self._id, self._call, status)
        item: Told = {"type": self._kind, "id": self._id, "status": status}
        if self._kind == "message":
            item["role"] = "assistant"
        else:
            item["summary"] = []
        return {**item, "content": [self._content()]}


def message_of(output: Output) -> list[Told]:
    """The items as a message of a chat, to be kept; a cut call is none of it."""
    said = [item["content"][0]["text"] for item in output.items if item["type"] == "message"]
    called = (item for item in output.items if item["type"] not in ("message", "reasoning"))
    calls = [item for item in called if item["status"] == "completed"]
    return [{"type": "message", "role": "assistant", "content": "".join(said)}, *calls]


def _new(prefix: str) -> str:
    return f"{prefix}_{os.urandom(12).hex()}"
