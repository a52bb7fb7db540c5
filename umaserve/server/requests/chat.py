"""``messages`` to prompt text: asks the chat child, and ends it where it takes too long.

The model's template runs in a process of its own (`umaserve.chat`), one conversation at a time.
Whatever it does there costs the request that asked an error, and nobody else anything.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio

from umaserve.own_python import run_module
from umaserve.protocol import E_PROTO_003, E_RUNTIME_003, ChatMessage, ProtocolError
from umaserve.server.engines.descriptors import Reserve
from umaserve.server.requests.turns import Line, Turns
from umaserve.wire.messages import Ready

COMMAND = tuple(run_module("umaserve.chat"))
START_S = 1.0  # after the daemon's start, if no conversation comes before
SLOW_S = 0.2  # an honest template takes some milliseconds; what takes longer gives way to others
NICE = 10  # how far
LIMIT_S = 5.0
REAP_S = 0.1
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # 8 Mi characters as JSON escapes, at most six bytes each

Outcome = str | ProtocolError
Done = Callable[[Outcome], None]


@dataclass(eq=False)
class Conversation:
    """One that waits for its text; ``done`` is called in the loop with that or with an error."""

    key: int
    turn: int
    program: Hashable
    messages: Sequence[ChatMessage]
    ready: Ready
    done: Done


class _ChildEnded(Exception):
    """The child has closed its end: it is gone, or goes."""


class ChatRenderer:
    """The front's end of the chat child.  ``run`` is its whole life; the rest never blocks.

    Conversations wait in fair turns by ``program``, interactive ones first.
    """

    def __init__(
        self, log: Callable[..., None], reserve: Reserve | None = None, command: Sequence[str] = ()
    ) -> None:
        self._log = log
        self._reserve = reserve or Reserve(0)
        self._command = tuple(command or COMMAND)
        self._lines = tuple((Line[Conversation](), Turns()) for _ in range(2))  # by lane
        self._count = 0
        self._more = trio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_ready = False  # it has said so
        self._is_slow = False  # it has been told to give way

    def put(
        self,
        messages: Sequence[ChatMessage],
        ready: Ready,
        done: Done,
        *,
        lane: int = 0,
        program: Hashable = None,
    ) -> Callable[[], None]:
        """Have a conversation rendered; returns what to call when nobody wants the text any more.

        ``done`` gets the text, or ``ProtocolError``: ``E_PROTO_003`` where the template refuses
        the conversation, ``E_RUNTIME_003`` where it fails or takes too long.
        """
        line, turns = self._lines[lane]
        self._count += 1
        key, turn = self._count, turns.take(program)
        line.add(key, turn, Conversation(key, turn, program, messages, ready, done))
        self._more.set()

        def forget() -> None:
            if key in line:
                line.remove(key)
                turns.leave(program, begun=False)

        return forget

    async def run(self) -> None:
        """Render until cancelled; the child ends with this."""
        try:
            with trio.move_on_after(START_S):
                await self._more.wait()
            with suppress(OSError):  # the first conversation tries again, and is told
                self._start()
            while True:
                await self._more.wait()
                self._more = trio.Event()
                while (conversation := self._next()) is not None:
                    conversation.done(await self._outcome(conversation))
        finally:
            with trio.CancelScope(shield=True):
                await self._end()

    def _next(self) -> Conversation | None:
        for line, turns in self._lines:
            conversation = line.pop_first()
            if conversation is not None:
                turns.begin(conversation.turn)
                turns.leave(conversation.program, begun=True)
                return conversation
        return None

    async def _outcome(self, conversation: Conversation) -> Outcome:
        try:
            with trio.fail_after(LIMIT_S):
                answer = await self._ask(conversation)
        except trio.TooSlowError:
            await self._end()
            return self._failed(f"took more than {LIMIT_S:g} s and was ended")
        except _ChildEnded:
            return self._failed(f"ended its process ({await self._end()})")
        except (OSError, ValueError) as error:
            await self._end()
            return self._failed(f"cannot be run now ({error}); try again later")
        if self._is_slow:  # what gave way once does so for good
            await self._end()
        if "text" in answer:
            return str(answer["text"])
        if "refused" in answer:
            text = f'"messages": the model\'s chat template refuses them: {answer["refused"]}'
            return ProtocolError(E_PROTO_003, text)
        return self._failed(f"failed: {answer.get('failed')}")

    def _failed(self, how: str) -> ProtocolError:
        text = f"the model's chat template {how}"
        self._log("warn", text)
        return ProtocolError(E_RUNTIME_003, text)

    # --- the child --------------------------------------------------------------------------------

    async def _ask(self, conversation: Conversation) -> dict[str, Any]:
        self._start()
        sock, ready = self._socket, conversation.ready
        assert sock is not None and self._process is not None
        question = {
            "template": ready.chat_template,
            "messages": [{"role": m.role, "content": m.content} for m in conversation.messages],
            "bos": ready.bos,
            "eos": ready.eos,
        }
        if not self._is_ready:
            await self._read_frame(sock)
            self._is_ready = True
        body = json.dumps(question).encode()
        await self._send(sock, len(body).to_bytes(4, "little") + body)
        with trio.move_on_after(SLOW_S) as quick:
            await trio.lowlevel.wait_readable(sock)
        if quick.cancelled_caught:
            self._is_slow = True
            pid = self._process.pid
            now = os.getpriority(os.PRIO_PROCESS, pid)  # the daemon may have been started with less
            os.setpriority(os.PRIO_PROCESS, pid, max(now, NICE))
        return json.loads(await self._read_frame(sock))

    async def _read_frame(self, sock: socket.socket) -> bytes:
        size = int.from_bytes(await self._receive(sock, 4), "little")
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"its answer has {size} bytes")
        return await self._receive(sock, size)

    async def _send(self, sock: socket.socket, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[sock.send(view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sock)
            except OSError:
                raise _ChildEnded from None

    async def _receive(self, sock: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            await trio.lowlevel.wait_readable(sock)
            try:
                part = sock.recv(min(size - len(data), 1 << 18))
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            if not part:
                raise _ChildEnded
            data += part
        return bytes(data)

    def _start(self) -> None:
        """Have a child.  Raises ``OSError``."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._socket is not None:
            self._socket.close()
        with self._reserve.lent():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with theirs:
                    self._process = subprocess.Popen(
                        self._command,
                        stdin=theirs.fileno(),
                        stdout=theirs.fileno(),
                        stderr=subprocess.DEVNULL,
                    )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket, self._is_ready, self._is_slow = ours, False, False

    async def _end(self) -> str:
        """Have no child any more; says how it ended."""
        process, self._process = self._process, None
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()
        if process is None:
            return ""
        with trio.move_on_after(REAP_S):
            while process.poll() is None:  # one that ends by itself is to say how
                await trio.sleep(0.01)
        if process.poll() is None:
            process.kill()
            await trio.to_thread.run_sync(process.wait)
        status = process.returncode
        return f"signal {-status}" if status < 0 else f"exit status {status}"
