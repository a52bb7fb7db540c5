"""Events of a client's requests, as frames in its outbox."""

from __future__ import annotations

import abc
from typing import Any

import trio

from umaserve.protocol import (
    Beginning,
    Ending,
    Rated,
    Timings,
    TokenEncoder,
    Usage,
    begin_event,
    delta_event,
    echo_event,
    eos_event,
    error_event,
    progress_event,
    prompt_logprobs_event,
)
from umaserve.server.engines.outbox import Outbox
from umaserve.server.requests.request import LANE_NAMES, Request


class EventFrames(abc.ABC):
    """Sink of requests that makes frames; none once the connection closes.

    ``requests`` are those that did not end, by their ids.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.requests: dict[str, Request] = {}
        self._outbox = outbox
        self._closing = trio.Event()  # the last frame is in the outbox
        self._encoders: dict[int, TokenEncoder] = {}  # by serial
        self._active_s = trio.current_time()

    @abc.abstractmethod
    def flush(self) -> None:
        """Send what waits in the outbox."""

    def begin(self, request: Request) -> None:
        """Take a new request, before its first event."""
        self.requests[request.id] = request
        self._encoders[request.serial] = TokenEncoder(request.id)

    def send(self, frame: bytes) -> None:
        """Queue one frame and send it; nothing once the connection closes."""
        if not self._closing.is_set():
            self._outbox.put(frame)
            self.flush()

    def token(self, request: Request, text: str, token: int, rated: Rated | None) -> None:
        if not self._closing.is_set():
            self._outbox.put(self._encoders[request.serial](text, token, rated))

    def _put(self, frame: bytes) -> None:
        if not self._closing.is_set():
            self._outbox.put(frame)

    def delta(self, request: Request, delta: dict[str, Any]) -> None:
        self._put(delta_event(request.id, delta))

    def begun(self, request: Request) -> None:
        lane, why = request.lane_now()
        ready, usage = request.engine and request.engine.ready, request.usage()
        beginning = Beginning(
            lane=LANE_NAMES[lane],
            lane_reason=why,
            deltas=request.reply is not None,
            model=ready.model_name if ready else "",
            usage={name: getattr(usage, name) for name in ("prompt_tokens", "cached_tokens")},
            open_parts=request.open_parts or None,
            unread=request.message.chat.unread or None,
        )
        self._put(begin_event(request.id, beginning))

    def progress(self, request: Request, processed: int) -> None:
        self._put(progress_event(request.id, processed))

    def echo(self, request: Request, text: str) -> None:
        self._put(echo_event(request.id, text, request.prompt_ids or ()))

    def prompt_logprobs(self, request: Request, logprobs: list[dict[str, Any]]) -> None:
        self._put(prompt_logprobs_event(request.id, logprobs))

    def end(
        self, request: Request, reason: str, usage: Usage, timings: Timings, message: Any = None
    ) -> None:
        self._forget(request)
        asked = request.message
        is_said = reason in ("stop", "tool_calls")
        stop = request.stop if is_said else None
        ending = Ending(
            reason=reason,
            stop=stop,
            stop_token=request.end_token if is_said and stop is None else None,
            text=None if asked.stream else "".join(request.parts),
            tokens=request.tokens if asked.return_tokens and not asked.stream else None,
            logprobs=None if asked.stream or request.sampling.logprobs < 0 else request.logprobs,
            message=message,
            dropped_tokens=request.dropped or None,
            unread=asked.chat.unread or None,
            open_parts=request.open_parts or None,
            usage=usage,
            timings=timings,
            metadata=asked.metadata,
        )
        self._put(eos_event(request.id, ending))

    def error(self, request: Request, code: str, message: str, *, final: bool) -> None:
        if final:
            self._forget(request)
        self._put(error_event(request.id, code, message, request.overflow))

    def _forget(self, request: Request) -> None:
        if self.requests.get(request.id) is request:
            del self.requests[request.id]
        self._encoders.pop(request.serial, None)
        self._active_s = trio.current_time()
