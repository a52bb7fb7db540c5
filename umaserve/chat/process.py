"""A process of uma-chat or uma-eyes: frames over a socket pair, and its end.

Nothing here bounds the time of a question: the caller does, and ends the process.
"""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress

import trio

from umaserve.system.own_process import signals_left_to_front

NICE = 10
REAP_S = 0.1
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # a prompt of 8 MiB, as JSON escapes, and its parser
_CHUNK_BYTES = 1 << 18


class ProcessEnded(Exception):
    """It has closed its end: it is gone, or goes."""


class ChatProcess:
    """Asked one question at a time; ``told`` is the caller's, for what it has told the process.

    The constructor starts it, and raises ``OSError`` where it cannot.
    """

    def __init__(self, program: str, *arguments: str, most_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.program = program
        self.first = b""  # the frame by which it has said that it is ready
        self._most_bytes = most_bytes
        self.told: object = None
        self.is_between = True  # no question is under way
        self._is_ready = False  # it has said so
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs, signals_left_to_front():
                self._process = subprocess.Popen(
                    [program, *arguments],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            ours.close()
            raise
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def ask(self, question: bytes) -> bytes:
        """The answer's JSON.  Raises ``ProcessEnded``, or ``ValueError`` for no frame."""
        self.is_between = False
        await self.wait_ready()
        try:
            await self._stream.send_all(len(question).to_bytes(4, "little") + question)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ProcessEnded from None
        answer = await self._read_frame()
        self.is_between = True
        return answer

    async def wait_ready(self) -> None:
        """Return when it has said that it is ready.  Raises as `ask` does."""
        if not self._is_ready:
            self.first = await self._read_frame()
            self._is_ready = True

    def give_way(self, nice: int = NICE) -> None:
        """From now on all others go first."""
        with suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, self.pid)  # the daemon may have less already
            os.setpriority(os.PRIO_PROCESS, self.pid, max(now, nice))

    def close(self) -> None:
        """It leaves by itself where it has nothing to do."""
        self._stream.socket.close()

    async def end(self) -> str:
        """Returns when it is gone, and says how it ended."""
        self.close()
        process = self._process
        with trio.move_on_after(REAP_S):
            while process.poll() is None:  # one that ends by itself is to say how
                await trio.sleep(0.01)
        if process.poll() is None:
            process.kill()
            await trio.to_thread.run_sync(process.wait)
        status = process.returncode
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    async def _read_frame(self) -> bytes:
        size = int.from_bytes(await self._receive(4), "little")
        if size > self._most_bytes:
            raise ValueError(f"its answer has {size} bytes")
        return await self._receive(size)

    async def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = await self._stream.receive_some(min(size - len(data), _CHUNK_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                part = b""
            if not part:
                raise ProcessEnded
            data += part
        return bytes(data)
