"""How requests end: each is told once, and none takes another one with it.

Whatever our own code raises while it works on a request ends that request (`Ends.broke`); a
connection that cannot even be told is closed.  The others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from umaserve.chat.questions import Parsed
from umaserve.protocol import E_RUNTIME_001, Ending, ProtocolError, Timings, eos_event, error_event
from umaserve.server.engines.handle import EngineHandle
from umaserve.server.log.lines import trace
from umaserve.server.requests.life import Answer, Stage
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.request import Request, Sink
from umaserve.server.requests.tokens.delivery import tell_rest
from umaserve.wire import messages as m

GRACE_S = 2.0  # from the cancellation of a request to its next token


class Ends:
    """Every way to the end of a request.

    ``live`` are the requests that are not over, by serial, in order of arrival.
    """

    def __init__(self, meters: Meters, log: Callable[..., None]) -> None:
        self.live: dict[int, Request] = {}
        self._changed = trio.Event()
        self._meters = meters
        self._log = log

    def cancel(self, request: Request, *, gone: bool = False) -> None:
        """End a request at its next token; ``gone``: nobody is there to hear about it."""
        was = request.answer
        if gone and not request.told:
            request.answered(Answer.TOLD)
        if was is not Answer.OPEN or request.serial not in self.live:
            return
        if not gone:
            request.answered(Answer.CANCELLED)
        if request.engine is not None:
            request.engine.send(m.Cancel(request.serial))
            return
        request.stop_waiting()
        with self.telling(request):
            self.end(request, "cancel")

    def tell(self, request: Request, reason: str) -> None:
        """The last event of a request, once; where its text makes a message, when that is there."""
        if request.told:
            return
        tell_rest(request)
        request.ended_ns = time.monotonic_ns()
        if request.reply is None or reason == "error":
            self._say(request, reason)
            request.answered(Answer.TOLD)
            return
        request.answered(Answer.PARSING)
        request.reply.end(lambda outcome: self._replied(request, reason, outcome))

    def _replied(self, request: Request, reason: str, outcome: Parsed | ProtocolError) -> None:
        with self.telling(request):
            if isinstance(outcome, ProtocolError):
                self._meters.error(outcome.code, outcome.message, request.id, request.sink)
                _put_error(request, outcome.code, outcome.message)
                self._say(request, "error")
            else:
                calls = reason == "stop" and outcome.calls
                self._say(request, "tool_calls" if calls else reason, outcome.message)
            request.answered(Answer.TOLD)
        if request.stage is Stage.OVER:
            self._remove(request)

    def _say(self, request: Request, reason: str, message: Any = None) -> None:
        timings = request.timings(request.ended_ns)
        self._meters.recent_requests.add(request, reason, timings)
        _put_end(request, reason, timings, message)

    def end(self, request: Request, reason: str) -> None:
        """It has ended, and has no row any more."""
        self.tell(request, reason)
        text = f"request {request.id!r} ended ({reason}) after {len(request.tokens)} tokens"
        self._log("debug", text, request=request.id, connection=request.sink.label)
        request.enter(Stage.OVER)
        if request.answer is not Answer.PARSING:
            self._remove(request)

    def fail(self, request: Request, code: str, message: str) -> None:
        """An error, then the end for a request that had begun."""
        self.tell_failure(request, code, message)
        self.end(request, "error")

    def end_cancelled(self, request: Request) -> None:
        """The end of a request that was cancelled: an error where not its client wanted that."""
        if request.failure is not None and not request.told:
            self.fail(request, *request.failure)
        else:
            self.end(request, "cancel")

    def tell_failure(self, request: Request, code: str, message: str) -> None:
        """The error, once; its end is to follow."""
        self._meters.error(code, message, request.id, request)
        if not request.told:
            tell_rest(request)
            request.sink.over(request)
            _put_error(request, code, message)
            if request.prompt_ids is None:
                request.answered(Answer.TOLD)

    def refuse(self, requests: Iterable[Request], code: str, message: str) -> None:
        """End requests that have no row, with an error; a cancelled one as it wanted."""
        for request in list(requests):
            request.stop_waiting()
            with self.telling(request):
                if request.answer is Answer.OPEN:
                    self.fail(request, code, message)
                else:
                    self.end_cancelled(request)

    async def drain(
        self, engine: EngineHandle | None, limit_s: float, why: tuple[str, str]
    ) -> None:
        """Wait until an engine and its replacement have no request left; None: the whole daemon.

        After ``limit_s`` the rest is ended with the code and the text of ``why``.
        """
        with trio.move_on_after(limit_s):
            await self._until_idle(engine)
            return
        for request in self._of(engine):
            if request.answer is Answer.OPEN and request.engine is None:
                self.refuse([request], *why)
            elif request.answer is Answer.OPEN:
                request.failure = why
                self.cancel(request)
        with trio.move_on_after(GRACE_S):
            await self._until_idle(engine)
            return
        for request in self._of(engine):  # the engine does not even get to the next token
            request.reply = None
            with self.telling(request):
                self.tell_failure(request, *why)
                self.tell(request, "error")

    def _of(self, engine: EngineHandle | None) -> list[Request]:
        """Requests of an engine, or of the engine that replaced it; ``None``: all requests."""
        if engine is None:
            return list(self.live.values())
        newest = engine.newest
        return [*newest.requests.values(), *newest.backlog.values()]

    async def _until_idle(self, engine: EngineHandle | None) -> None:
        while self._of(engine):
            await self._changed.wait()

    @contextmanager
    def telling(self, request: Request) -> Iterator[None]:
        """Send what the context makes for a request, which ends where our own code fails."""
        try:
            yield
        except Exception as error:
            self.broke(request, error)
        self.flush(request.sink)

    def flush(self, sink: Sink) -> None:
        """`Sink.flush`; a sink that fails is given up."""
        try:
            sink.flush()
        except Exception as error:
            self._log("error", f"{sink.label} failed and is closed: {trace(error)}")
            sink.abandon()

    def broke(self, request: Request, error: Exception) -> None:
        """Our own code failed on a request: end it, whatever state it is in.

        A row that it has is given up in the engine, and freed when that has ended it.
        """
        if request.answer is Answer.BROKEN:
            return
        text = f"request {request.id!r} failed inside the daemon and ends: {trace(error)}"
        self._log("error", text, request=request.id, connection=request.sink.label)
        try:
            self._tell_broken(request, error)
        except Exception as second:  # then its client sees the connection close
            text = f"{request.sink.label} cannot be told, and is closed: {trace(second)}"
            self._log("error", text, connection=request.sink.label)
            request.sink.abandon()
        request.answered(Answer.BROKEN)
        request.ended_ns = request.ended_ns or time.monotonic_ns()
        if request.engine is not None:
            request.engine.send(m.Cancel(request.serial))
        else:
            request.stop_waiting()
            if request.stage is not Stage.OVER:
                request.enter(Stage.OVER)
            self._remove(request)

    def _tell_broken(self, request: Request, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        text = f"this request failed inside the daemon ({what}); the daemon's log has the reason"
        self._meters.error(E_RUNTIME_001, text, request.id, request)
        if request.answer is Answer.TOLD:
            return
        if request.reply is not None:
            request.reply.drop()
        request.sink.over(request)
        _put_error(request, E_RUNTIME_001, text)
        if request.prompt_ids is not None:
            _put_end(request, "error", request.timings(time.monotonic_ns()))
        request.sink.flush()

    def _remove(self, request: Request) -> None:
        """A request has had its last event; nothing happens where it is removed already."""
        if request.reply is not None:
            request.reply.drop()
        if self.live.pop(request.serial, None) is not None:
            request.service.over(request)
        self._changed.set()
        self._changed = trio.Event()


def _put_error(request: Request, code: str, message: str) -> None:
    request.sink.put(error_event(request.id, code, message, request.overflow))


def _put_end(request: Request, reason: str, timings: Timings, message: Any = None) -> None:
    """Put the last event; ``message`` is what the text was parsed to, where that is wanted."""
    request.sink.over(request)
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
        usage=request.usage(),
        timings=timings,
        metadata=asked.metadata,
    )
    request.sink.put(eos_event(request.id, ending))
