"""``serve``: the daemon from its start to its exit status.

Long: a start has an order, and so has an end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from socket import socket

import trio

from umaserve.chat.plain_turns import NOTE
from umaserve.config import Config
from umaserve.models import needs as memory
from umaserve.models.gguf.header import GGUFError
from umaserve.protocol import E_LIMIT_002, STOPPING
from umaserve.server import activation
from umaserve.server.agent_check import AgentCheck, open_agent_check
from umaserve.server.clients.listener import ClaimedSocket, SocketError
from umaserve.server.daemon import Daemon
from umaserve.server.engines import descriptors
from umaserve.server.engines.awake import AwakeClock
from umaserve.server.engines.slow_files import ask_file
from umaserve.server.engines.start.model_start import why_not_served
from umaserve.server.figures import records
from umaserve.server.figures.record_file import RecordError, RecordFile
from umaserve.server.gateway.child import GatewayChild
from umaserve.server.gateway.listener import HttpListeners, open_http, problem_with
from umaserve.server.log.lines import Log, trace
from umaserve.server.requests.meters.meters import Meters
from umaserve.server.requests.sessions import Sessions
from umaserve.server.supervision.engine_set import EngineSet
from umaserve.system.own_process import SIGNALS, forbid_core_dumps, name_process
from umaserve.wire import messages as m

STOP_S = 10.0
REPEATS_S = 5.0
# Seconds that the loop may keep the GIL from the thread that sends tokens.  The loop releases the
# GIL for a moment in each pass.  Where passes are shorter than this time, the waiting thread hardly
# ever gets the GIL.
SWITCH_S = 0.00005
LINE_S = 5.0  # between two lines about a load
AGAIN_S = 30.0  # before what failed while serving goes on is tried again


class StartError(Exception):
    """The daemon cannot start; the message says why and what to do."""


START_ERRORS = (
    StartError, SocketError, RecordError, descriptors.TooFewDescriptors,
    activation.HandedOverWrongly,
)  # fmt: skip


def serve(config: Config, engine_command: Sequence[str] | None = None) -> int:
    """Run the daemon until SIGTERM, SIGINT or SIGHUP; returns its exit status.

    0 after an orderly end, 1 when it cannot start, with the reason on stderr.  ``engine_command``
    is what to run as the engine instead of ``python -m umaserve.engine``; for tests that need one
    to fail.  Must be called from the main thread.
    """
    name_process("umaserve")
    if not config.core_dumps:
        forbid_core_dumps()
    log = Log(config.log_level, config.log_json)
    try:
        manager = activation.manager()
        config = replace(config, socket=manager.path or config.socket)
        if problem := problem_with(config.http, config.socket):
            raise StartError(problem)
        model = check_model(config)
        meters = Meters(config.latency_cap)
        descriptors.raise_limit(config.max_connections)
        if too_few := descriptors.why_too_few(config.max_connections):
            log("warn", too_few)
        sys.setswitchinterval(SWITCH_S)
        descriptors.RESERVE.keep()
        limits = (config.max_sessions, config.max_queue, config.max_tokens)
        sessions = Sessions(*limits, meters, log, config.apps, config.n_seq)
        if config.cache_dir != "off":
            sessions.prompts.eyes.keep_in(os.path.join(config.cache_dir, "pictures"))
        models = EngineSet(config, sessions, meters, log, engine_command)
        daemon = Daemon(config, log, meters, sessions, models, os.geteuid())
        scorecard, trace = records.open_records(config, daemon.scorecard, log)
        if trace is not None:
            meters.on_tick = lambda *tick: trace.put(records.tick_line(*tick))
        run = _Run(daemon, model, scorecard, trace, manager)
        return trio.run(run.main, clock=AwakeClock())
    except START_ERRORS as error:
        log("error", str(error))
        return 1
    finally:
        log.release()


def check_model(config: Config) -> memory.ModelFile:
    """The model to begin with.  Raises ``StartError``."""
    path = config.model
    if not path:
        from umaserve.assets import demo_model_path

        try:
            path = str(demo_model_path())
        except FileNotFoundError as error:
            raise StartError(str(error)) from None
    try:
        file = trio.run(ask_file, memory.look_at, path)
    except GGUFError as error:
        raise StartError(f"{error}. Name a GGUF file with --model") from None
    if refusal := why_not_served(file, config):
        raise StartError(refusal)
    return file


def _wanted_signals() -> list[signal.Signals]:
    """Return the `SIGNALS` that this process does not ignore; ``nohup`` has SIGHUP ignored."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


def _wanted_signals_received() -> contextlib.AbstractContextManager[AsyncIterator[int]]:
    wanted = _wanted_signals()
    return trio.open_signal_receiver(*wanted) if wanted else contextlib.nullcontext(_no_signals())


async def _no_signals() -> AsyncIterator[int]:
    await trio.sleep_forever()
    yield 0


@dataclass(eq=False)
class _Run:
    """The tasks of one daemon."""

    daemon: Daemon
    model: memory.ModelFile
    scorecard: RecordFile | None
    trace: RecordFile | None
    manager: activation.Manager

    def __post_init__(self) -> None:
        self.claimed: ClaimedSocket
        self.http: HttpListeners | None
        self.status = 0
        self._accepting = trio.CancelScope()  # of everything that takes connections
        self._http_child: GatewayChild | None = None
        self._listening: trio.Nursery
        self._stop = trio.Event()

    async def main(self) -> int:
        daemon = self.daemon
        # in this order: from the moment that there is a socket, a signal leads to its removal
        with (
            _wanted_signals_received() as signals,
            ClaimedSocket(daemon.config.socket, handed=self.manager.socket) as self.claimed,
        ):
            async with (
                open_http(daemon.config) as self.http,
                open_agent_check(daemon.config) as checked,
                trio.open_nursery() as nursery,
            ):
                await nursery.start(daemon.models.run, self.model)
                chats, replies = (
                    daemon.sessions.prompts.chat.run,
                    daemon.sessions.prompts.replies.run,
                )
                nursery.start_soon(self._while_serving, "rendering conversations", chats)
                nursery.start_soon(self._while_serving, "reading answers", replies)
                eyes = daemon.sessions.prompts.eyes.run
                nursery.start_soon(self._while_serving, "encoding pictures", eyes)
                nursery.start_soon(self._accept, nursery)
                if self.http is not None:
                    daemon.http = self.http.url
                    nursery.start_soon(self._serve_http, self.http)
                if checked:
                    tell = partial(trio.serve_listeners, AgentCheck(daemon).answer, checked)
                    nursery.start_soon(self._while_serving, "the agent check", tell)
                nursery.start_soon(self._signals, signals, nursery)
                self._say_what_is_ignored()
                nursery.start_soon(self._while_serving, "the line about the start", self._announce)
                nursery.start_soon(self._first_start_failed)
                interval_s = daemon.config.scorecard_interval_s
                for file in (self.scorecard, self.trace):
                    if file is not None:
                        nursery.start_soon(self._while_serving, f"writing {file.path}", file.run)
                nursery.start_soon(self._tell_repeats)
                sample = partial(records.sample, daemon.scorecard, self.scorecard, interval_s)
                nursery.start_soon(self._while_serving, "the scorecard's sample", sample)
                if self._wants_dashboard():
                    nursery.start_soon(self._while_serving, "the dashboard", self._dashboard)
                await self._stop.wait()
                await self._shut_down()
                nursery.cancel_scope.cancel()
        return self.status

    async def _tell_repeats(self) -> None:
        while True:
            await trio.sleep(REPEATS_S)
            self.daemon.log.tell_repeats()

    async def _while_serving(self, what: str, task: Callable[[], Awaitable[None]]) -> None:
        """Something that serving does not depend on: it may fail, and is tried again later."""
        while True:
            try:
                return await task()
            except Exception as error:
                self.daemon.log("error", f"{what} failed, serving goes on: {trace(error)}")
                await trio.sleep(AGAIN_S)

    async def _accept(self, nursery: trio.Nursery) -> None:
        with self._accepting:
            async with trio.open_nursery() as self._listening:
                self._serve(nursery, self.claimed.socket)
                serve = partial(self._serve, nursery)
                await self.claimed.keep(self.daemon.log, serve)

    def _serve(self, nursery: trio.Nursery, bound: socket) -> None:
        self._listening.start_soon(self.daemon.accept, bound, nursery)

    async def _serve_http(self, http: HttpListeners) -> None:
        """Until the very end: who asks while running requests finish is told so."""
        daemon = self.daemon
        told = f"{http.url} answers OpenAI's, Anthropic's, Ollama's and llama-server's clients"

        def on_ready() -> None:
            nonlocal told
            if told:
                daemon.log("info", told)
            told = ""

        child = GatewayChild(daemon.config, http, daemon.log, on_ready)
        self._http_child = child
        async with trio.open_nursery() as nursery:
            if http.claimed is not None:
                nursery.start_soon(http.claimed.keep, daemon.log, child.serve)
            await child.run()
            nursery.cancel_scope.cancel()
        self.status = 1
        self._stop.set()

    async def _signals(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            if self._stop.is_set():
                self.daemon.log("info", f"{name} again: leaving now")
                if self._http_child is not None:
                    self._http_child.kill()
                nursery.cancel_scope.cancel()
                return
            running = len(self.daemon.sessions.live)
            limit_s = self.daemon.config.drain_s
            who = "1 request has" if running == 1 else f"{running} requests have"
            extra = f"; {who} {limit_s:g} s to end, a second signal ends at once" if running else ""
            self.daemon.stopping = True  # first: who reads the line finds it true
            self.daemon.log("info", f"{name}: shutting down{extra}")
            self._stop.set()

    def _say_what_is_ignored(self) -> None:
        """Where it matters to a person who wants to stop the daemon."""
        wanted = _wanted_signals()
        names = [n.name for n in (signal.SIGINT, signal.SIGTERM) if n not in wanted]
        if names:
            text = f"{' and '.join(names)} {'are' if names[1:] else 'is'} ignored here, as it was "
            stops = wanted[0].name if wanted else "only SIGKILL"
            level = "info" if signal.SIGTERM in wanted else "warn"
            text += f"when this started; {stops} stops the daemon (process {os.getpid()})"
            self.daemon.log(level, text)

    async def _first_start_failed(self) -> None:
        supervisor = self.daemon.models.default
        await supervisor.failed.wait()
        self.daemon.log("error", supervisor.failure)
        self.status = 1
        self._stop.set()

    async def _shut_down(self) -> None:
        daemon = self.daemon
        daemon.stopping = True
        self.manager.tell("STOPPING=1")
        if self.manager.socket is not None:  # connections wait there for the next daemon
            self._accepting.cancel()
        why = (E_LIMIT_002, STOPPING)
        daemon.sessions.closed = why
        daemon.sessions.refuse_queued(*why)
        daemon.models.begin_stop()
        limit_s = daemon.config.drain_s if self.status == 0 else 0.0
        await daemon.sessions.ends.drain(None, limit_s, why)
        await daemon.flush()
        for engine in daemon.models.engines:
            if engine.pid:  # the trace has its last ticks
                daemon.meters.read_ticks(engine, now=True)
        with trio.move_on_after(STOP_S):
            await daemon.models.stop()
        if self.status == 0:
            daemon.log("info", "stopped")

    # --- for people -------------------------------------------------------------------------------

    async def _announce(self) -> None:
        """Progress of the first load, then one line that says where and what."""
        supervisor = self.daemon.models.default
        if self._wants_dashboard() and sys.stdout.isatty():
            ready = await self._first_ready(None)
        elif not sys.stderr.isatty() or self.daemon.config.log_json:
            ready = await self._first_ready(self._plain_progress())
        else:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("loading"), BarColumn(), TextColumn("{task.description}"))
            with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task("", total=1.0)
                ready = await self._first_ready(
                    lambda fraction, stage: bar.update(task, completed=fraction, description=stage)
                )
        engine = supervisor.current
        if ready is None or engine is None:
            return
        # A full collection takes several milliseconds, in which nobody gets a token. What is alive
        # now stays; with it left out, one looks at little more than the requests since the last.
        gc.collect()
        gc.freeze()
        ms = (time.monotonic_ns() - engine.spawned_ns) / 1e6
        config = self.daemon.config
        where = ready.backend
        if ready.device.lower() != where:
            where += f", {ready.device}"
        notes = (NOTE if ready.is_base else "", ready.off, ready.heads)
        addresses = self.claimed.path + (f" and {self.http.url}" if self.http is not None else "")
        self.daemon.log(
            "info",
            f"serving {ready.model_name} on {addresses} ({where}; {ready.n_ctx} KV cells, "
            f"{ready.n_seq} sequences, {config.max_sessions} sessions; ready in {ms:.0f} ms)"
            + "".join(f"; {each}" for each in notes if each),
        )
        self.manager.tell("READY=1")

    async def _first_ready(self, report: Callable[[float, str], None] | None) -> m.Ready | None:
        """Watch the first load over all of its attempts; ``None`` when it fails."""
        supervisor = self.daemon.models.default
        while not supervisor.failed.is_set() and not self._stop.is_set():
            engine = supervisor.current
            if engine is not None and engine.ready is not None:
                return engine.ready
            if engine is not None and report is not None:
                report(engine.progress.fraction, engine.progress.stage)
            await trio.sleep(0.03)
        return None

    def _plain_progress(self) -> Callable[[float, str], None]:
        """A line when the load has taken over a second; then at quarters, `LINE_S` apart."""
        due_s, said = time.monotonic() + 1.0, ("", -1)

        def report(fraction: float, stage: str) -> None:
            nonlocal said, due_s
            step, now_s = (stage, int(fraction * 4)), time.monotonic()
            if now_s > due_s and step != said:
                said, due_s = step, now_s + LINE_S
                share = f" {fraction:.0%}" if fraction < 1.0 else ""
                self.daemon.log("info", f"loading {self.model.path}: {stage}{share}")

        return report

    def _wants_dashboard(self) -> bool:
        wish = self.daemon.config.dashboard
        return wish == "on" or (wish == "auto" and sys.stdout.isatty())

    async def _dashboard(self) -> None:
        from umaserve.server.local_dashboard import show_dashboard

        await show_dashboard(self.daemon)
