"""``Client``: the daemon over a plain blocking socket.

Long: every method of the client, each a few lines.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from umaserve.client.connect import connect, gone, socket_path
from umaserve.client.events import Completion, ConnectionFailed, Eos, ServerError, Token
from umaserve.client.wire import Event, Router, generate_message, naming, pack

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from umaserve.client.options import Options

CANCEL_WAIT_S = 2.0


class Client:
    """A connection to a daemon.

        with Client() as client:
            for event in client.generate("def fibonacci(n):", max_tokens=64):
                print(event.text, end="", flush=True)

    ``path`` is the socket (default: see ``socket_path``); ``timeout`` bounds the connecting and
    every wait for the next byte, in seconds (default: none).  Several requests may be in flight;
    their streams are read in any order.  A client belongs to one thread at a time.
    Raises ``ConnectionFailed`` (``OtherUser`` where the socket is another user's),
    ``ServerError`` and ``ProtocolError``.
    """

    def __init__(self, path: str | None = None, timeout: float | None = None) -> None:
        self.path = socket_path(path)
        self._router = Router()
        self._timeout = timeout
        self._socket: socket.socket | None = connect(self.path, timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the daemon cancels what it still had in flight."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def generate(
        self,
        prompt: str | list[dict[str, Any]] | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        id: str | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Start a request and return its events.

        ``prompt`` or ``messages`` (dicts of role and content), and any option of the protocol:
        ``max_tokens``, ``temperature``, ``stop``, ``priority``, ...
        """
        id = id or self._router.new_id()
        if id in self._router.streams:
            raise ValueError(f"a request with the id {id!r} is in flight already")
        self._send(generate_message(id, prompt, messages, options))
        self._router.streams[id] = deque()
        return Stream(self, id)

    def complete(
        self,
        prompt: str | list[dict[str, Any]] | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer of one request."""
        options.setdefault("stream", False)
        with self.generate(prompt, messages=messages, **options) as stream:
            return stream.completion()

    def metrics(self) -> dict[str, Any]:
        """The daemon's metrics, once."""
        return self._ask({"type": "metrics"})["metrics"]

    def overview(self) -> dict[str, Any]:
        """The metrics with the running requests (``sessions``) and the other fields of such an
        event: what a dashboard shows."""
        return self._ask({"type": "metrics", "sessions": True})

    def watch_metrics(self, interval_ms: float = 250) -> Iterator[dict[str, Any]]:
        """The metrics every ``interval_ms``; goes on until the connection closes."""
        id = self._router.new_id()
        answer = self._ask({"type": "metrics", "interval_ms": interval_ms, "id": id})
        self._router.asked.add(id)
        try:
            while True:
                yield answer["metrics"]
                answer = self._answer(id, ("metrics",))
        finally:
            self._router.asked.discard(id)

    def load(
        self, model: str, on_progress: Callable[[float, str], None] | None = None
    ) -> dict[str, Any]:
        """Serve another model; ``on_progress(fraction, stage)`` is called on the way."""
        return self._ask({"type": "load", "model": model}, on_progress)

    def unload(self, model: str | None = None) -> None:
        """Free a model, by its name or alias, or the default one.  Requests for it are refused with
        ``E_MODEL_001`` until the next ``load``."""
        self._ask({"type": "unload", "model": model})

    def priority(self, request: str | int, priority: str) -> None:
        """Move a request to the lane "interactive" or "background".

        ``request`` is the id of a request of this program, or the ``serial`` that ``sessions``
        gives any request.
        """
        self._ask({"type": "priority", **naming(request), "priority": priority})

    def cancel(self, request: str | int) -> bool:
        """End a request at its next token; whether it was found.

        ``request`` is the id of a request of this program, or the ``serial`` of any request.
        """
        answer = self._ask({"type": "cancel", **naming(request)}, events=("cancelled",))
        return bool(answer.get("found"))

    def info(self, model: str | None = None) -> dict[str, Any]:
        """Version, pid, limits and running sessions of the daemon, and one of its models: that of
        this name, or the default."""
        return self._ask({"type": "info", "model": model})["info"]

    def models(self) -> list[dict[str, Any]]:
        """The models that can be asked for, the default one first, and their states."""
        found: list[dict[str, Any]] = self._ask({"type": "models"})["models"]
        return found

    def cache(self) -> dict[str, Any]:
        """Return the contents of the prefix cache, by owner, and where the last prompts left it."""
        return self._ask({"type": "cache"})["cache"]

    def tokenize(self, text: str, **options: Any) -> list[int]:
        """The model's token ids of ``text``."""
        return self._ask({"type": "tokenize", "text": text, **options})["tokens"]

    def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids; special tokens are spelled out."""
        return self._ask({"type": "detokenize", "tokens": tokens})["text"]

    def embed(self, input: str | list[Any], model: str | None = None) -> list[list[float]]:
        """A vector of length 1 for each text, or list of token ids, of ``input``."""
        return self._ask({"type": "embed", "input": input, "model": model})["embeddings"]

    def rerank(self, query: str, documents: list[str], **options: Any) -> list[dict[str, Any]]:
        """The ``index`` and the ``relevance_score`` of each document, the highest score first.

        Options: ``top_n``, ``truncate``, ``model``.
        """
        asked = {"type": "rerank", "query": query, "documents": documents, **options}
        return self._ask(asked)["results"]

    def ping(self) -> float:
        """Milliseconds of one round trip."""
        start = time.perf_counter()
        self._ask({"type": "ping"})
        return (time.perf_counter() - start) * 1e3

    def _ask(
        self,
        message: dict[str, Any],
        on_progress: Callable[[float, str], None] | None = None,
        events: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        id = message.setdefault("id", self._router.new_id())
        self._router.asked.add(id)
        try:
            self._send(message)
            while True:
                answer = self._answer(id, events)
                if answer.get("event") != "progress":
                    return answer
                if on_progress is not None:
                    on_progress(float(answer.get("fraction", 0)), str(answer.get("stage", "")))
        finally:
            self._router.asked.discard(id)

    def _answer(self, id: str | None, events: tuple[str, ...]) -> dict[str, Any]:
        while (answer := self._router.answer_to(id, events)) is None:
            self._receive()
        return answer

    def _send(self, message: dict[str, Any]) -> None:
        data = pack(message)
        if self._socket is None:
            raise ConnectionFailed("this client is closed; open a new one")
        try:
            self._socket.sendall(data)
        except OSError:
            self._last_words()
            raise ConnectionFailed(gone(self.path)) from None
        except BaseException:
            self.close()  # half a frame may be out: nothing sensible can follow it
            raise

    def _last_words(self) -> None:
        """Read what a daemon that closed on us said before: it tells more than a broken pipe."""
        try:
            while self._socket is not None:
                data = self._socket.recv(65536)
                if not data:
                    break
                self._router.feed(data)
        except OSError:
            return  # nothing was said; the caller reports the broken connection
        finally:
            self.close()

    def _receive(self) -> None:
        """Wait for bytes and route them."""
        if self._socket is None:
            raise ConnectionFailed("this client is closed; open a new one")
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            raise ConnectionFailed(
                f"no answer from {self.path} within {self._timeout} s; is the daemon busy or stuck?"
            ) from None
        except OSError:
            data = b""
        try:
            if not data:
                raise ConnectionFailed(gone(self.path))
            self._router.feed(data)
        except Exception:
            self.close()
            raise


class Stream:
    """The events of one request: an iterator of ``Token``, and one ``Eos`` at the end.

    Leaving it early (``close``, a ``with`` block, Ctrl-C while it waits) cancels the request.
    """

    def __init__(self, client: Client, id: str) -> None:
        self.id = id
        self.eos: Eos | None = None
        self._client = client
        self._events = client._router.streams[id]
        self._open = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Token | Eos:
        if not self._open:
            raise StopIteration
        try:
            event = self._next()
        except BaseException:
            self.close()
            raise
        if isinstance(event, ServerError):
            self._finish()
            raise event
        if isinstance(event, Eos):
            self.eos = event
            self._finish()
        return event

    def completion(self) -> Completion:
        """Read to the end: the text that was not read yet, and how it ended."""
        parts = [event.text for event in self]
        if self.eos is None:
            raise ConnectionFailed("the stream was closed before its end")
        return Completion("".join(parts), self.eos.reason, self.eos.usage, self.eos.timings)

    def close(self) -> None:
        """Cancel the request unless it has ended, and wait briefly for the server's word on it."""
        if not self._open:
            return
        client = self._client
        sock = client._socket
        if sock is None:
            self._finish()
            return
        try:
            client._send({"type": "cancel", "id": self.id})
            limit = time.monotonic() + CANCEL_WAIT_S
            while (left := limit - time.monotonic()) > 0:
                sock.settimeout(left)
                event = self._next()
                if isinstance(event, Eos):
                    self.eos = event
                if isinstance(event, (Eos, ServerError)):
                    break
        except (ConnectionFailed, ServerError):
            # the connection is gone, and the request with it
            client.close()
        finally:
            self._finish()
            if client._socket is not None:
                sock.settimeout(client._timeout)

    def _next(self) -> Event:
        while not self._events:
            self._client._receive()
        return self._events.popleft()

    def _finish(self) -> None:
        self._open = False
        self._client._router.streams.pop(self.id, None)
