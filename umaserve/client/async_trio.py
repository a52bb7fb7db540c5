"""``TrioClient``: the same daemon, for programs that run under trio.

Long: the same methods as `sync` in the same order, so that both can be compared.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import trio

from umaserve.client.connect import CROWDED_S, connect, gone, socket_path
from umaserve.client.events import Completion, ConnectionFailed, Eos, ServerError, Token
from umaserve.client.wire import Router, generate_message, naming, pack

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from umaserve.client.options import Options

CANCEL_WAIT_S = 2.0


class TrioClient:
    """A connection to a daemon, shared by any number of tasks.

        async with TrioClient() as client:
            async with client.generate("def fibonacci(n):") as stream:
                async for event in stream:
                    print(event.text, end="", flush=True)

    A task that waits for an event reads the socket and routes all that comes; there is no task in
    the background.  Raises ``ConnectionFailed`` (``OtherUser`` where the socket is another
    user's), ``ServerError`` and ``ProtocolError``.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = socket_path(path)
        self._router = Router()
        self._stream: trio.SocketStream | None = None
        self._why_closed = "this client is not open; use it in an `async with` block"
        self._send_lock = trio.Lock()
        self._reading = False
        self._waiters = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> TrioClient:
        sock = await trio.to_thread.run_sync(connect, self.path, CROWDED_S, abandon_on_cancel=True)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; the daemon cancels what it still had in flight."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._why_closed = "this client is closed; open a new one"
            await trio.aclose_forcefully(stream)

    def generate(
        self,
        prompt: str | list[dict[str, Any]] | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        id: str | None = None,
        **options: Unpack[Options],
    ) -> TrioStream:
        """A request, sent when its ``async with`` block is entered."""
        id = id or self._router.new_id()
        return TrioStream(self, id, generate_message(id, prompt, messages, options))

    async def complete(
        self,
        prompt: str | list[dict[str, Any]] | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer of one request."""
        options.setdefault("stream", False)
        async with self.generate(prompt, messages=messages, **options) as stream:
            return await stream.completion()

    async def metrics(self) -> dict[str, Any]:
        """The daemon's metrics, once."""
        return (await self._ask({"type": "metrics"}))["metrics"]

    async def watch_metrics(self, interval_ms: float = 250) -> AsyncIterator[dict[str, Any]]:
        """The metrics every ``interval_ms``; goes on until the connection closes."""
        async for answer in self._watch({"interval_ms": interval_ms}):
            yield answer["metrics"]

    async def watch_overview(self, interval_ms: float = 250) -> AsyncIterator[dict[str, Any]]:
        """Yield the events that a dashboard shows, every ``interval_ms``.

        Each has the metrics, the running requests (``sessions``) and the event's other fields.
        Goes on until the connection closes.
        """
        async for answer in self._watch({"interval_ms": interval_ms, "sessions": True}):
            yield answer

    async def _watch(self, options: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        id = self._router.new_id()
        answer = await self._ask({"type": "metrics", "id": id, **options})
        self._router.asked.add(id)
        try:
            while True:
                yield answer
                answer = await self._answer(id, ("metrics",))
        finally:
            self._router.asked.discard(id)

    async def load(
        self, model: str, on_progress: Callable[[float, str], None] | None = None
    ) -> dict[str, Any]:
        """Serve another model; ``on_progress(fraction, stage)`` is called on the way."""
        return await self._ask({"type": "load", "model": model}, on_progress)

    async def unload(self, model: str | None = None) -> None:
        """Free a model, as `Client.unload` does."""
        await self._ask({"type": "unload", "model": model})

    async def priority(self, request: str | int, priority: str) -> None:
        """Move a request to another lane, as `Client.priority` does."""
        await self._ask({"type": "priority", **naming(request), "priority": priority})

    async def cancel(self, request: str | int) -> bool:
        """End a request at its next token; whether it was found.  As `Client.cancel`."""
        answer = await self._ask({"type": "cancel", **naming(request)}, events=("cancelled",))
        return bool(answer.get("found"))

    async def info(self, model: str | None = None) -> dict[str, Any]:
        """Facts about the daemon and a model, as `Client.info` returns them."""
        return (await self._ask({"type": "info", "model": model}))["info"]

    async def models(self) -> list[dict[str, Any]]:
        """The models that can be asked for, the default one first, and their states."""
        found: list[dict[str, Any]] = (await self._ask({"type": "models"}))["models"]
        return found

    async def cache(self) -> dict[str, Any]:
        """Return the contents of the prefix cache, by owner, and where the last prompts left it."""
        return (await self._ask({"type": "cache"}))["cache"]

    async def tokenize(self, text: str, **options: Any) -> list[int]:
        """The model's token ids of ``text``."""
        return (await self._ask({"type": "tokenize", "text": text, **options}))["tokens"]

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids; special tokens are spelled out."""
        return (await self._ask({"type": "detokenize", "tokens": tokens}))["text"]

    async def embed(self, input: str | list[Any], model: str | None = None) -> list[list[float]]:
        """A vector of length 1 for each text, or list of token ids, of ``input``."""
        return (await self._ask({"type": "embed", "input": input, "model": model}))["embeddings"]

    async def rerank(
        self, query: str, documents: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """The scores of the documents, as `Client.rerank` returns them."""
        asked = {"type": "rerank", "query": query, "documents": documents, **options}
        return (await self._ask(asked))["results"]

    async def ping(self) -> float:
        """Milliseconds of one round trip."""
        start = time.perf_counter()
        await self._ask({"type": "ping"})
        return (time.perf_counter() - start) * 1e3

    async def _ask(
        self,
        message: dict[str, Any],
        on_progress: Callable[[float, str], None] | None = None,
        events: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        id = message.setdefault("id", self._router.new_id())
        self._router.asked.add(id)
        try:
            await self._send(message)
            while True:
                answer = await self._answer(id, events)
                if answer.get("event") != "progress":
                    return answer
                if on_progress is not None:
                    on_progress(float(answer.get("fraction", 0)), str(answer.get("stage", "")))
        finally:
            self._router.asked.discard(id)

    async def _answer(self, id: str | None, events: tuple[str, ...]) -> dict[str, Any]:
        while (answer := self._router.answer_to(id, events)) is None:
            await self._receive()
        return answer

    async def _send(self, message: dict[str, Any]) -> None:
        data = pack(message)
        async with self._send_lock:
            if self._stream is None:
                raise ConnectionFailed(self._why_closed)
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise ConnectionFailed(gone(self.path)) from None
            except BaseException:
                # half a frame may be out: nothing sensible can follow it
                await self.aclose()
                raise

    async def _receive(self) -> None:
        """Wait until something was routed, reading the socket if no other task does."""
        if self._reading:
            await self._waiters.park()
            return
        if self._stream is None:
            raise ConnectionFailed(self._why_closed)
        self._reading = True
        try:
            try:
                data = await self._stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                raise ConnectionFailed(gone(self.path))
            self._router.feed(bytes(data))
        except Exception as error:
            await self.aclose()
            self._why_closed = str(error)
            raise
        finally:
            self._reading = False
            self._waiters.unpark_all()


class TrioStream:
    """The events of one request: ``Token`` objects, and one ``Eos`` at the end.

    Leaving its ``async with`` block early, by whatever way, cancels the request on the server.
    """

    def __init__(self, client: TrioClient, id: str, message: dict[str, Any]) -> None:
        self.id = id
        self.eos: Eos | None = None
        self._client = client
        self._message = message
        self._open = False

    async def __aenter__(self) -> TrioStream:
        streams = self._client._router.streams
        if self.id in streams:
            raise ValueError(f"a request with the id {self.id!r} is in flight already")
        streams[self.id] = deque()
        try:
            await self._client._send(self._message)
        except BaseException:
            streams.pop(self.id, None)
            raise
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> TrioStream:
        return self

    async def __anext__(self) -> Token | Eos:
        if not self._open:
            raise StopAsyncIteration
        event = await self._next()
        if isinstance(event, ServerError):
            self._finish()
            raise event
        if isinstance(event, Eos):
            self.eos = event
            self._finish()
        return event

    async def completion(self) -> Completion:
        """Read to the end: the text that was not read yet, and how it ended."""
        parts = [event.text async for event in self]
        if self.eos is None:
            raise ConnectionFailed("the stream was closed before its end")
        return Completion("".join(parts), self.eos.reason, self.eos.usage, self.eos.timings)

    async def aclose(self) -> None:
        """Cancel the request unless it has ended, and wait briefly for the server's word on it."""
        if not self._open:
            return
        try:
            with trio.move_on_after(CANCEL_WAIT_S, shield=True):
                await self._client._send({"type": "cancel", "id": self.id})
                while self._open:
                    event = await self._next()
                    if isinstance(event, Eos):
                        self.eos = event
                    if isinstance(event, (Eos, ServerError)):
                        break
        except (ConnectionFailed, ServerError):
            # the connection is gone, and the request with it
            await self._client.aclose()
        finally:
            self._finish()

    async def _next(self) -> Token | Eos | ServerError:
        events = self._client._router.streams[self.id]
        while not events:
            await self._client._receive()
        return events.popleft()

    def _finish(self) -> None:
        self._open = False
        self._client._router.streams.pop(self.id, None)
