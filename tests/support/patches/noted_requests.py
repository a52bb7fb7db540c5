"""A daemon that notes what it is asked: ``DaemonProcess(patch=note_requests)``.

Each request that has ended is a line of JSON in the file ``NOTED_REQUESTS``, with the texts of its
prompt and its answer.  `tests.support.record_traces` makes traces without texts of them.
"""

from __future__ import annotations

import json
import os
from typing import Any

from umaserve.server.requests.ends import Ends
from umaserve.server.requests.request import Request


def _text(tokens: list[int]) -> str:
    """Of the fake engine, whose tokens are bytes."""
    return bytes(tokens).decode("utf-8", "replace")


def note(request: Request) -> dict[str, Any]:
    """What the daemon knows of a request; times are ``time.monotonic_ns()``."""
    message, chat = request.message, request.message.chat
    turns, prompt = message.messages or (), message.prompt
    if request.rendered:
        prompt = request.rendered.prompt
    elif message.tokens is not None:
        prompt = _text(message.tokens)
    return {
        "came_ns": request.arrived_ns,
        "ended_ns": request.ended_ns,
        "program": request.app,
        "session": message.session,
        "streams": message.stream,
        "prompt": prompt,
        "answer": _text(request.tokens),
        "max_tokens": message.max_tokens,
        "tools": len(json.loads(bytes(chat.tools))),
        "results": sum(turn.role == "tool" for turn in turns),
        "thinking": chat.thinking,
    }


def note_requests() -> None:
    """For the fake engine."""
    path, remove = os.environ["NOTED_REQUESTS"], Ends._remove

    def removing(self: Ends, request: Request) -> None:
        if request.serial in self.live and request.prompt_ids is not None:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(note(request)) + "\n")
        remove(self, request)

    Ends._remove = removing  # type: ignore[method-assign]
