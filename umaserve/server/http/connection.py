"""One HTTP client: bytes between its socket and h11, which knows the protocol.

Requests are answered one after the other, and none has a body worth reading.  Where a client sends
one all the same, or garbage, the connection ends with the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus

import h11
import trio

from umaserve.server.http.message import Response, error_response

HEAD_BYTES = 16 * 1024  # of a request's line and headers
HEAD_S = 10.0  # from its first byte to its last
SEND_S = 10.0  # for one answer
READ_BYTES = 16 * 1024
GOODBYE_S = 2.0  # until the client has read the last answer
LINGER_BYTES = 1024 * 1024  # of a refused client's input, read and thrown away meanwhile

_CODES = {400: "bad_request", 408: "request_timeout", 431: "headers_too_large"}


class HttpConnection:
    """``scope`` ends it at once; ``active_s`` is when it came or was last answered (trio's clock).

    ``answer`` must not raise.  ``idle_s`` is how long the client may be silent between requests,
    ``last`` says whether the answer that is about to go out should be the connection's last, and
    ``turn`` returns when the next one may be made.
    """

    def __init__(
        self,
        stream: trio.abc.HalfCloseableStream,
        answer: Callable[[h11.Request], Response],
        idle_s: float,
        last: Callable[[], bool],
        turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self.scope = trio.CancelScope()
        self.active_s = trio.current_time()
        self._stream = stream
        self._answer = answer
        self._idle_s = idle_s
        self._last = last
        self._turn = turn
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)

    async def run(self) -> None:
        """The whole life of the connection; closes its stream."""
        with self.scope:
            async with self._stream:
                try:
                    while await self._exchange():
                        self.active_s = trio.current_time()
                    await self._goodbye()
                except (trio.BrokenResourceError, trio.TooSlowError):
                    pass  # it is gone, or does not read

    async def _exchange(self) -> bool:
        """One request and its answer; whether there may be another."""
        try:
            request = await self._request()
            if request is None:
                return False
            whole = isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            why = str(error).partition(": bytearray")[0]  # without the client's own bytes
            text = f"this cannot be read as an HTTP/1.1 request: {why}"
            await self._refuse(error.error_status_hint, text)
            return False
        except trio.TooSlowError:
            await self._refuse(408, f"the request was not complete after {HEAD_S:g} s")
            return False
        await self._turn()
        response = self._answer(request)
        await self._send(response, request.method != b"HEAD", close=not whole or self._last())
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _request(self) -> h11.Request | None:
        """``None`` when the client has left or was silent for too long.

        Raises ``RemoteProtocolError``, and ``TooSlowError`` for a request that does not end.
        """
        begun = False
        with trio.CancelScope() as waiting:
            if self._idle_s:
                waiting.deadline = trio.current_time() + self._idle_s
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    return event
                if isinstance(event, h11.ConnectionClosed):
                    return None
                if not begun and self._http.trailing_data[0]:
                    begun = True
                    waiting.deadline = trio.current_time() + HEAD_S
                self._http.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
        if begun:
            raise trio.TooSlowError
        return None

    async def _refuse(self, status: int, text: str) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            code = _CODES.get(status, "bad_request")
            await self._send(error_response(status, text, code), body=True, close=True)

    async def _send(self, response: Response, body: bool, close: bool) -> None:
        """Raises what a stream does, and ``TooSlowError``."""
        headers = [
            ("date", formatdate(usegmt=True)),
            ("server", "umaserve"),
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
            ("x-content-type-options", "nosniff"),
            *response.headers,
        ]
        if close:
            headers.append(("connection", "close"))
        http = self._http
        reason = HTTPStatus(response.status).phrase
        data = http.send(h11.Response(status_code=response.status, headers=headers, reason=reason))
        if body:
            data += http.send(h11.Data(data=response.body))
        data += http.send(h11.EndOfMessage())
        with trio.fail_after(SEND_S):
            await self._stream.send_all(data)

    async def _goodbye(self) -> None:
        """Let the client read the last answer: bytes of its own that nobody read would turn that
        into a reset."""
        with trio.move_on_after(GOODBYE_S):
            await self._stream.send_eof()
            left = LINGER_BYTES
            while left > 0:
                data = await self._stream.receive_some(READ_BYTES)
                if not data:
                    return
                left -= len(data)
