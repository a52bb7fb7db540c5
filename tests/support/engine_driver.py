"""A real engine process without a front: what the engine tests hold it by."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.support.forks import ENGINE, Forked, may_fork
from tests.support.leftovers import CORE_DUMPS
from tests.support.patches.engine import command as patched
from tests.support.patches.engine import described
from tests.support.patches.engine import environment as with_tests
from tests.support.stuck import START_S, not_started
from umaserve.assets import demo_model_path
from umaserve.wire import messages as m
from umaserve.wire import table as t

N_SLOTS = 16


class DrivenEngine:
    """Starts ``python -m umaserve.engine``, speaks its control protocol, reads its table."""

    def __init__(
        self, *, model: str | None = None, expect_failure: bool = False,
        patch: Callable[..., None] | None = None,
        spawn: Callable[[list[str]], Any] | None = None, fresh: bool = False, **start: Any,
    ):  # fmt: skip
        """``patch`` is a function of `tests.support.patches`, or a ``partial`` of one.

        ``spawn`` makes the process from the engine's arguments instead, and either outcome of a
        load is fine then.  ``fresh``: a program that starts by itself, for what a process has of
        its own, such as memory and threads, or for a patch of what is read at a start.  Others are
        forked.
        """
        start.setdefault("n_slots", N_SLOTS)
        start.setdefault("n_ctx", 2048)
        start.setdefault("n_seq", 8)
        start.setdefault("n_threads", 1)  # steady on a busy machine
        start.setdefault("core_dumps", CORE_DUMPS)
        self.start = m.Start(model_path=str(model or demo_model_path()), **start)
        self.table, table_fd = t.SessionTable.create(
            t.TableSpec(self.start.n_slots, self.start.positions + 1)
        )
        pieces_fd = t.shared_file(t.PIECE_BYTES)
        self._socket, theirs = socket.socketpair()
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        fds = {"control": theirs.fileno(), "wake": wake_write, "table": table_fd,
               "pieces": pieces_fd}  # fmt: skip
        command = patched(patch) if patch else [sys.executable, "-m", "umaserve.engine"]
        words = [word for name, fd in fds.items() for word in (f"--{name}", str(fd))]
        self.process: Any
        if spawn is not None:
            self.process = spawn(words)
        elif fresh or not may_fork(self.start.backend, self.start.policy):
            self.process = subprocess.Popen(
                [*command, *words], pass_fds=list(fds.values()),
                env=with_tests() if patch else None,
            )  # fmt: skip
        else:
            environment = dict(os.environ)
            what = {"patch": described(patch) if patch else None}
            self.process = Forked(what, None, environment, module=ENGINE, fds=list(fds.values()))
        theirs.close()
        os.close(wake_write)
        os.close(table_fd)
        self._channel = m.Channel("front")
        self._inbox: list[m.ToFront] = []
        self._serial = 0
        self._free = list(range(self.start.n_slots))
        self.slots: dict[int, int] = {}
        self._socket.sendall(m.encode(self.start))
        self.progress: list[m.LoadProgress] = []
        answer = self._started()
        self.failure = answer.message if isinstance(answer, m.LoadFailed) else ""
        if isinstance(answer, m.Ready):
            self.ready = answer
            self.pieces = t.PieceTable(pieces_fd, answer.n_vocab)
        os.close(pieces_fd)
        if spawn is None and bool(self.failure) != expect_failure:
            self.close()
            raise AssertionError(self.failure or "the engine loaded what it should refuse")

    def _started(self) -> m.Ready | m.LoadFailed:
        """Wait until the model is loaded or refused; a process that does neither is ended."""
        try:
            return self.expect(m.Ready, m.LoadFailed, timeout=START_S)
        except AssertionError as error:
            if self.process.poll() is not None:
                raise
            told = [each.stage for each in self.progress]
            failure = not_started(f"no engine in {START_S} s; {told}; {error}", self.process.pid)
            self.process.kill()
            raise failure from None

    def __enter__(self) -> DrivenEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> int:
        """Close the control socket, which ends the engine; returns its exit status."""
        self._socket.close()
        try:
            status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self._wake_read >= 0:
            os.close(self._wake_read)
            self._wake_read = -1
        return status

    def send(self, message: m.ToEngine) -> None:
        self._socket.sendall(m.encode(message))

    def nudge(self) -> None:
        self._socket.sendall(m.NUDGE)

    def submit(self, prompt: str | None = None, **fields: Any) -> int:
        """Submit a request in a free row; returns its serial."""
        return self.submit_together([prompt], **fields)[0]

    def submit_together(self, prompts: list[str | None], **fields: Any) -> list[int]:
        """Submit a request for each prompt, so that the engine gets all of them at once."""
        fields.setdefault("sampling", m.Sampling(temperature=0.0))
        serials, data = [], b""
        for prompt in prompts:
            self._serial += 1
            slot = self._free.pop(0)
            self.slots[self._serial] = slot
            serials.append(self._serial)
            data += m.encode(m.Submit(self._serial, slot, prompt=prompt, **fields))
        self._socket.sendall(data)
        return serials

    def expect(self, *kinds: type, timeout: float = 60) -> Any:
        """The next message of one of ``kinds``; progress is kept aside, others stay queued."""
        end = time.monotonic() + timeout
        while True:
            for i, message in enumerate(self._inbox):
                if isinstance(message, kinds):
                    return self._inbox.pop(i)
            if not select.select([self._socket], [], [], max(end - time.monotonic(), 0))[0]:
                raise AssertionError(f"no {kinds} within {timeout} s; have {self._inbox}")
            data = self._socket.recv(1 << 20)
            if not data:
                raise AssertionError(f"the engine is gone: {self.process.wait()}")
            for message in self._channel.feed(data):
                if isinstance(message, m.LoadProgress):
                    self.progress.append(message)
                else:
                    self._inbox.append(message)

    def wait(self, serial: int, timeout: float = 60, n_tokens: int | None = None) -> None:
        """Wait until the request is DONE, or has generated ``n_tokens``."""
        slot, end = self.slots[serial], time.monotonic() + timeout
        while True:
            if self.table.serial[slot] == serial:
                if self.table.state[slot] == t.DONE:
                    return
                if n_tokens is not None and len(self.generated(serial)) >= n_tokens:
                    return
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"request {serial} did not finish within {timeout} s")
            # the timeout covers a change that was announced before we looked
            select.select([self._wake_read], [], [], min(left, 0.05))
            woken = b""  # also where the engine has closed the pipe
            with contextlib.suppress(BlockingIOError):
                woken = os.read(self._wake_read, 4096)
            assert woken or self.process.poll() is None, "the engine is gone"

    def ended(self, serial: int, timeout: float = 60) -> m.Rejected | None:
        """Wait until the request is DONE, or was refused: then its row is free."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if select.select([self._socket], [], [], 0)[0]:
                self._inbox += self._channel.feed(self._socket.recv(1 << 20))  # type: ignore[arg-type]
            for message in self._inbox:
                if isinstance(message, m.Rejected) and message.serial == serial:
                    self._inbox.remove(message)
                    self._free.append(self.slots.pop(serial))
                    return message
            slot = self.slots[serial]
            if self.table.serial[slot] == serial and self.table.state[slot] == t.DONE:
                return None
            select.select([self._wake_read, self._socket], [], [], 0.05)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        raise AssertionError(f"request {serial} did not finish within {timeout} s")

    def generated(self, serial: int) -> list[int]:
        slot = self.slots[serial]
        n_prompt, n = int(self.table.n_prompt[slot]), int(self.table.n_tokens[slot])
        return self.table.tokens[slot, n_prompt:n].tolist()

    def ids(self, text: str) -> list[int]:
        """Tokens of a text."""
        self.send(m.Tokenize(77, text))
        return list(self.expect(m.Tokens).tokens)

    def prompt_tokens(self, serial: int) -> list[int]:
        slot = self.slots[serial]
        return self.table.tokens[slot, : int(self.table.n_prompt[slot])].tolist()

    def reason(self, serial: int) -> int:
        return int(self.table.reason[self.slots[serial]])

    def text(self, serial: int) -> str:
        return b"".join(map(self.pieces.piece, self.generated(serial))).decode("utf-8", "replace")

    def release(self, serial: int) -> None:
        slot = self.slots.pop(serial)
        self.send(m.Release(serial, slot))
        self._free.append(slot)

    def run(self, prompt: str | None = None, **fields: Any) -> list[int]:
        """Submit, wait, release; the generated ids."""
        serial = self.submit(prompt, **fields)
        self.wait(serial)
        tokens = self.generated(serial)
        self.release(serial)
        return tokens
