"""Engine process, seen from the front: its sockets, its shared tables, its start and its end.

``EngineHandle.run()`` is the whole life: it spawns the process, moves messages, watches for a hang
and returns how it ended.  Whatever happens, the process is reaped and every descriptor is closed
when it returns; when it is cancelled, the process is killed.

Long: one engine's process, from its start to its end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import trio

from umaserve.chat import plain_turns
from umaserve.chat.questions import Abilities, ChatModel
from umaserve.models.identity import ModelIdentity
from umaserve.server.engines import blame
from umaserve.server.engines.asked import EngineQuestions
from umaserve.server.engines.awake import resumed_ns
from umaserve.server.engines.descriptors import RESERVE
from umaserve.server.engines.exit import EngineExit, LastWords
from umaserve.server.engines.loop_lock import LoopLock
from umaserve.server.engines.outbox import Outbox
from umaserve.server.engines.pulse import EnginePulse
from umaserve.server.engines.start.process import read_lines, reap, spawn, wait_exit
from umaserve.server.log.lines import trace
from umaserve.texts import path_of
from umaserve.wire import messages as m
from umaserve.wire import table as t

EOF_GRACE_S = 3.0  # from the end of its control socket to SIGKILL
STOP_GRACE_S, STUCK_GRACE_S = 5.0, 0.5  # from Shutdown to SIGKILL
LOAD_SILENCE_S = 600.0  # a load that says nothing for so long hangs; compiling takes minutes
OPEN_SILENCE_S = 120.0  # the same before it has opened the model's file
BUSY_LOOK_S, LATER_S, IDLE_LOOK_S = 0.1, 0.5, 5.0  # between two looks at an engine
UNKILLABLE_S = 5.0  # from SIGKILL to when nobody waits for its end any more
APPS_KEPT = 256  # of requests that are over


class Callbacks(NamedTuple):
    """Functions that an `EngineHandle` calls with itself; they must not block.

    ``on_message`` gets the engine's messages.  When the table changed, ``on_tokens`` is called by a
    thread of its own that holds ``loop_lock``, and must not touch trio.  If that returned True,
    ``on_wake`` is then called in the loop.  It is also called ten times a second while requests
    run, in case a wake byte was lost.  ``on_log`` gets a level and a line instead of the handle.
    """

    on_message: Callable[[EngineHandle, m.ToFront], None]
    on_tokens: Callable[[EngineHandle], bool]
    on_wake: Callable[[EngineHandle], None]
    on_log: Callable[[str, str], None]


class EngineHandle:
    """A running (or starting, or ended) engine.

    ``service`` is the number of the `Service` whose requests it runs, ``need_bytes`` the memory
    that it is predicted to take.
    """

    def __init__(
        self,
        start: m.Start,
        command: Sequence[str],
        callbacks: Callbacks,
        *,
        loop_lock: LoopLock,
        hang_floor_s: float = 0.0,
        service: int = 0,
    ) -> None:
        self.start = start
        self.service, self.need_bytes = service, 0
        self.ready: m.Ready | None = None
        self.settled = trio.Event()  # ready, or never will be
        self.exited = trio.Event()
        self.progress = m.LoadProgress(0.0, "start")
        self.table: t.SessionTable
        self.pieces: t.PieceTable
        self.chat: ChatModel  # where it is ready
        self.chat_abilities: Abilities | None = None  # of its template, once that was looked at
        self.chat_error = ""  # or why it cannot be used
        # `Request` by serial: those that hold a row, and those that were begun on an engine that
        # died, which go before all others
        self.requests: dict[int, Any] = {}
        self.backlog: dict[int, Any] = {}
        self._apps: OrderedDict[int, str] = OrderedDict()  # of its newest requests, by serial
        self.replaces = False  # started for one that had been serving
        self.identity: ModelIdentity | None = None  # of the model that its backlog began with
        self.deaths = 0.0  # engines in a row, before this one, that died before they were ready
        self.successor: EngineHandle | None = None  # started because this one died
        self.free_slots = list(range(start.n_slots))[::-1]
        self.accepting = True
        self.replaced = False  # another engine takes new requests: this one ends what it runs
        self.pid = self.spawned_ns = 0
        self.exit: EngineExit | None = None
        self._command = list(command)
        self._callbacks, self._on_log = callbacks, callbacks.on_log
        self._loop_lock = loop_lock
        self._pulse = EnginePulse(hang_floor_s)
        self._told_to_end = False
        self._hung = False
        self._why = ""
        self._load_failed = ""
        self._last_words = LastWords()
        self._outbox: Outbox | None = None  # of `_control`
        self.asked = EngineQuestions(self.send)
        self._stirred = trio.Event()  # something was sent
        self._last_message_ns = self._killed_ns = 0
        self._life = trio.CancelScope()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._fds: list[int] = []

    # --- what the front asks ---------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._process is not None and self.exit is None

    @property
    def serving(self) -> bool:
        """Loaded and alive: requests may be submitted."""
        return self.ready is not None and self.alive and self.accepting

    @property
    def newest(self) -> EngineHandle:
        """The engine that goes on with this one's work: itself, or what replaced it."""
        engine = self
        while engine.successor is not None:
            engine = engine.successor
        return engine

    def send(self, message: m.ToEngine) -> None:
        """Queue a message and write as much as the socket takes now.  Never blocks; raises only
        where the message cannot be encoded.

        To an engine that is gone the message is lost, and so is everything else it was told.
        """
        if isinstance(message, m.Cancel):
            message.is_urgent = self._computes_prompt_of(message.serial)
        data = m.encode(message)
        self._pulse.sent(time.monotonic_ns())
        self._stirred.set()
        if isinstance(message, m.Submit | m.SetLane | m.Cancel) and message.is_urgent:
            # a chunk of prompts in flight may be given up for it
            self.table.abort.urgent += 1
        self._put(data)

    def _put(self, data: bytes) -> None:
        if self._outbox is not None:
            self._outbox.put(data)
            self._outbox.flush()

    def _computes_prompt_of(self, serial: int) -> bool:
        """Whether a tick is under way with this prompt in it, and may be given up."""
        table = self.table
        if not table.abort.armed:
            return False
        rows = (table.serial == serial) & (table.t_first_ns == 0)
        return bool((rows & (table.in_tick == 1)).any())

    def nudge(self) -> None:
        """End the engine's sleep with an empty message; it looks out for a real one for a while."""
        if self.ready is not None and self._outbox is not None and self._outbox.empty.is_set():
            self._put(m.NUDGE)

    def note_app(self, serial: int, app: str) -> None:
        """Remember for a while whose request this was, which is over."""
        self._apps[serial] = app
        if len(self._apps) > APPS_KEPT:
            self._apps.popitem(last=False)

    def app_of(self, serial: int) -> str:
        """The program that made one of the newest requests; "" where that is not known."""
        request = self.requests.get(serial)
        return str(request.app) if request is not None else self._apps.get(serial, "")

    @property
    def is_tokenizing(self) -> bool:
        """Whether the engine tokenises a question's text now, or did when it ended."""
        return bool(self.pid and self.table.header.tokenizing)

    def kill(self, *, hung: bool = False, why: str = "") -> None:
        """SIGKILL; ``run()`` returns soon after.  It is replaced if it ``hung``, or there is
        another reason ``why``."""
        self._told_to_end, self._hung = True, self._hung or hung or bool(why)
        self._why = self._why or why
        self._killed_ns = self._killed_ns or time.monotonic_ns()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def stop(self) -> None:
        """Ask it to leave, kill it when it does not, and wait for its end."""
        # one that still has requests did not react to their cancellation either
        grace_s = STUCK_GRACE_S if self.requests else STOP_GRACE_S
        self._told_to_end = True
        self.accepting = False
        if self.ready is None:  # it does not listen while it loads
            self.kill()
        if not self.exited.is_set():
            self.send(m.Shutdown())
            with trio.move_on_after(grace_s):
                await self.exited.wait()
            if not self.exited.is_set():
                self.kill()
                await self.exited.wait()

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> EngineExit:
        """Spawn the process and serve it until it ends.  To be called from the main thread: on
        Linux the engine asks to be killed with the thread that spawned it."""
        try:
            with self._life:
                await self._live()
        except Exception as error:
            if self._process is None and isinstance(error, OSError):
                why = error.strerror or str(error)
                self._load_failed = f"its engine process cannot be started: {why}"
            else:  # what is wrong here is not to end the others
                self._on_log("error", f"engine {self.pid} cannot be followed: {trace(error)}")
                self.kill(hung=True)
        finally:
            self._close()
        assert self.exit is not None
        return self.exit

    async def _live(self) -> None:
        with RESERVE.lent():
            self.spawned_ns = self._last_message_ns = time.monotonic_ns()
            process, control, self.table, self._fds = spawn(self._command, self.start)
        self._process, self._control, self.pid = process, control, process.pid
        self._piece_fd, wake, stderr = self._fds
        self._outbox = Outbox(control, sys.maxsize)
        self._put(m.encode(self.start))
        async with trio.open_nursery() as nursery:
            eofs = [trio.Event() for _ in range(3)]
            nursery.start_soon(self._read_control, eofs[0])
            nursery.start_soon(self._read_wake, wake, eofs[1])
            nursery.start_soon(read_lines, stderr, self._keep_line, eofs[2])
            nursery.start_soon(self._outbox.run)
            nursery.start_soon(self._watch)
            await wait_exit(process)
            with trio.move_on_after(1.0):  # what it said last is still in the pipes
                for eof in eofs:
                    await eof.wait()
            nursery.cancel_scope.cancel()

    def _call(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a callback about this engine.  An error of the callback is logged
        and ends nothing; the result is then True, so that all rows are read again."""
        try:
            return callback(self, *args)
        except Exception as error:
            self._on_log("error", f"what engine {self.pid} did was not taken in: {trace(error)}")
            return True

    def _awake(self) -> None:
        self._call(self._callbacks.on_wake)

    def _close(self) -> None:
        process = self._process
        if process is not None:
            if process.poll() is None:
                self._told_to_end = True
                process.kill()
            status = reap(process)
            if status is None:
                text = f"engine {self.pid} was killed and does not end; it is left behind"
                self._on_log("error", text)
                status = -signal.SIGKILL
        else:
            status = 1
        self._outbox = None
        if self._control is not None:
            self._control.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.exit = EngineExit(
            status,
            self._told_to_end and not self._hung,
            self._hung,
            self._load_failed,
            self._last_words.lines(),
            self._why,
        )
        is_blamed = self.is_tokenizing and self.exit.kind == blame.FAULT
        self.asked.end(self.table.header.tokenizing if is_blamed else 0, str(self.exit))
        self.accepting = False
        self.settled.set()
        self.exited.set()

    # --- moving bytes -----------------------------------------------------------------------------

    async def _read_control(self, eof: trio.Event) -> None:
        assert self._control is not None
        channel = m.Channel("front")
        while True:
            await trio.lowlevel.wait_readable(self._control)
            try:
                data = self._control.recv(1 << 18)
            except BlockingIOError:
                continue
            except ConnectionError:
                data = b""
            if not data:
                break
            self._last_message_ns = time.monotonic_ns()
            try:
                for message in channel.feed(data):
                    self._take(cast(m.ToFront, message))
            except msgspec.DecodeError as error:
                self._last_words.take(f"the engine's control stream is broken: {error}")
                self.kill(hung=True)
                break
        eof.set()
        await trio.sleep(EOF_GRACE_S)
        self.kill(hung=True)

    def _take(self, message: m.ToFront) -> None:
        match message:
            case m.LoadProgress():
                self.progress = message
            case m.Ready():
                with RESERVE.lent(1):  # a mapping keeps a descriptor
                    self.pieces = t.PieceTable(self._piece_fd, message.n_vocab)
                self.chat = _chat_model(message, self.pieces)
                self.ready = message
                self.settled.set()
            case m.Threads():
                if self.ready is not None:
                    self.ready.n_threads = message.n_threads
                    self.ready.n_threads_batch = message.n_threads_batch
                return
            case m.LoadFailed():
                self._load_failed = message.message
                self.accepting = False
            case m.Tokens() | m.Embedded() | m.CacheReport():
                self.asked.answered(message)
                return
            case m.Log():
                self._on_log(message.level, message.text)
                return
        self._call(self._callbacks.on_message, message)

    async def _read_wake(self, fd: int, eof: trio.Event) -> None:
        self._loop_lock.start()
        loop = trio.lowlevel.current_trio_token()
        await trio.to_thread.run_sync(
            self._read_tokens, fd, loop, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
        eof.set()

    def _read_tokens(self, fd: int, loop: trio.lowlevel.TrioToken) -> None:
        """The thread that the engine wakes, until it is gone; it closes ``fd`` itself."""
        with self._loop_lock:
            if fd not in self._fds:  # it was over before this began
                return
            self._fds.remove(fd)
        try:
            while os.read(fd, 65536):
                with self._loop_lock:
                    if self.exit is not None:
                        return
                    more = self._call(self._callbacks.on_tokens)
                if more:
                    loop.run_sync_soon(self._awake, idempotent=True)
        except trio.RunFinishedError:
            return
        finally:
            os.close(fd)

    def _keep_line(self, text: str) -> None:
        self._last_words.take(text)
        self._on_log("debug", text)

    # --- watching ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await self._next_look()
            if self.requests:
                self._awake()
            now_ns = time.monotonic_ns()
            if self._killed_ns:
                if now_ns - self._killed_ns > UNKILLABLE_S * 1e9:
                    self._life.cancel()
            elif self._hangs(now_ns):
                self.kill(hung=True)

    async def _next_look(self) -> None:
        """Often while something is expected of the engine; an idle one is left alone."""
        if self.requests or self.ready is None:
            await trio.sleep(BUSY_LOOK_S)
        elif self.asked or self._killed_ns or self._pulse.waits(self.table.header):
            await trio.sleep(LATER_S)
        else:
            self._stirred = trio.Event()
            with trio.move_on_after(IDLE_LOOK_S):
                await self._stirred.wait()
                await trio.sleep(BUSY_LOOK_S)

    def _hangs(self, now_ns: int) -> bool:
        if self.ready is None:
            limit_s = OPEN_SILENCE_S if self.progress.stage == "start" else LOAD_SILENCE_S
            return now_ns - max(self._last_message_ns, resumed_ns()) > limit_s * 1e9
        header, busy = self.table.header, bool(self.requests)
        return self._pulse.hangs(header, now_ns, busy=busy, resumed_ns=resumed_ns())


def _chat_model(ready: m.Ready, pieces: t.PieceTable) -> ChatModel:
    return ChatModel(
        program=path_of(ready.chat_program),
        missing=ready.why_no_chat,
        template=ready.chat_template or plain_turns.TEMPLATE,
        tool_template=ready.tool_template,
        bos=ready.bos,
        eos=ready.eos,
        adds_bos=ready.adds_bos,
        adds_eos=ready.adds_eos,
        control=pieces.names(),
        stops=() if ready.chat_template else plain_turns.STOPS,
    )
