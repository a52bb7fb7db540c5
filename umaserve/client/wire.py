"""The client's half of the protocol without a socket: requests to bytes, bytes to routed events.

Only the standard library, so that a command-line client starts in a blink.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from typing import Any

from umaserve.client.events import (
    Eos,
    InvalidRequest,
    ProtocolError,
    ServerError,
    Timings,
    Token,
    Usage,
)
from umaserve.client.options import check_names

MAX_FRAME_BYTES = 64 * 1024 * 1024

Event = Token | Eos | ServerError


def pack(message: dict[str, Any]) -> bytes:
    """Pack a message into a frame.  Raises ``InvalidRequest`` for values that JSON lacks."""
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        body = text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the request holds text that is not valid Unicode") from None
    except ValueError as error:
        raise InvalidRequest(f"the request cannot be written as JSON: {error}") from None
    return len(body).to_bytes(4, "little") + body


class Router:
    """Tells apart what comes in on one connection.

    Events of a request lie in ``streams[id]`` until its owner takes them.  Answers to the admin
    messages in ``asked`` lie in ``answers`` as dicts.  What nobody waits for, such as the end of a
    request that was given up, is dropped.  ``feed`` raises an error that concerns the connection
    as a whole.
    """

    def __init__(self) -> None:
        self.streams: dict[str, deque[Event]] = {}
        self.answers: deque[dict[str, Any]] = deque()
        self.asked: set[str] = set()  # ids that admin messages now wait for
        self._told: dict[str, dict[str, Any]] = {}  # of a request, before its end
        self._buffer = bytearray()
        self._prefix = os.urandom(4).hex()
        self._count = 0

    def new_id(self) -> str:
        """An id that no other connection is likely to use, so that admin tools can name it."""
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def answer_to(self, id: str | None, events: tuple[str, ...] = ()) -> dict[str, Any] | None:
        """Take the next answer to ``id``, or to no id; ``None`` where none has come.

        With ``events``, it is of a type among these.  Raises ``ServerError`` where it is an error.
        """
        for answer in self.answers:
            kind = answer.get("event")
            if answer.get("id") in (id, None) and (not events or kind in (*events, "error")):
                self.answers.remove(answer)
                if kind == "error":
                    code, message = str(answer.get("code")), str(answer.get("message"))
                    raise ServerError(code, message, answer.get("id"))
                return answer
        return None

    def feed(self, data: bytes) -> None:
        """Take received bytes in; raises ``ProtocolError`` or, for the connection, ServerError."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            size = int.from_bytes(buffer[:4], "little")
            if size > MAX_FRAME_BYTES:
                raise ProtocolError(f"the server announced a frame of {size} bytes")
            if len(buffer) < 4 + size:
                return
            body = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            try:
                event = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"the server sent a frame that is not JSON: {error}") from None
            if not isinstance(event, dict):
                raise ProtocolError("the server sent a frame that is not a JSON object")
            self._route(event)

    def _route(self, event: dict[str, Any]) -> None:
        id, kind = event.get("id"), event.get("event")
        stream = self.streams.get(id) if isinstance(id, str) else None
        try:
            if kind == "error":
                error = ServerError(str(event["code"]), str(event["message"]), id)
                self._told.pop(str(id), None)
                if id in self.asked:
                    self.answers.append(event)
                elif stream is not None:
                    stream.append(error)
                elif id is None:
                    raise error
            elif kind == "token":
                if stream is not None:
                    rated = {name: event[name] for name in _RATED if name in event}
                    stream.append(Token(str(id), event["text"], event["token_id"], **rated))
            elif kind in _BEFORE_END:
                if stream is not None:
                    told = self._told.setdefault(str(id), {})
                    if kind == "prompt_logprobs":
                        told.setdefault(kind, []).extend(event["logprobs"])
                    else:
                        told[kind] = {n: v for n, v in event.items() if n not in ("id", "event")}
            elif kind == "eos":
                told = self._told.pop(str(id), {})
                if stream is not None:
                    stream.append(_eos(event | told))
            elif id is None or id in self.asked:
                self.answers.append(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"the server sent a malformed {kind} event: {error!r}") from None


_AS_TOLD = Eos._fields[Eos._fields.index("text") + 1 :]
_BEFORE_END = ("begin", "echo", "prompt_logprobs")
_RATED = ("logprob", "top_logprobs", "token", "bytes")


def _eos(event: dict[str, Any]) -> Eos:
    counts = event.get("usage") or {}
    return Eos(
        event["id"],
        event["reason"],
        Usage(*(int(counts.get(name, 0)) for name in Usage._fields)),
        Timings(*((event.get("timings") or {}).get(name) for name in Timings._fields)),
        event.get("text") or "",
        **{name: event[name] for name in _AS_TOLD if name in event},
    )


def generate_message(
    id: str,
    prompt: str | list[dict[str, Any]] | None,
    messages: list[dict[str, Any]] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The request; options that are ``None`` are left out, so the server's defaults hold.

    Raises ``TypeError`` for a name that is no option.
    """
    check_names(options)
    message: dict[str, Any] = {"id": id}
    if prompt is not None:
        message["prompt"] = prompt
    if messages is not None:
        message["messages"] = messages
    message.update((key, value) for key, value in options.items() if value is not None)
    return message


def naming(request: str | int) -> dict[str, Any]:
    """The field of an admin message that names a request: by its id, or by the daemon's serial."""
    return {"serial": request} if isinstance(request, int) else {"id": request}
