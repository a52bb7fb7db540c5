"""The phases of a run, from a daemon to a ``Result``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from umaserve.bench import BenchError, desk
from umaserve.bench.load import Load
from umaserve.bench.machine import describe, used_by_others
from umaserve.bench.progress import Stages
from umaserve.bench.prompts import Prompts
from umaserve.bench.result import BUSY, Result
from umaserve.bench.target import OwnDaemon, daemon_at, wait_until_serving
from umaserve.bench.timeline import Answer, Phase
from umaserve.client import Client, ConnectionFailed

WARM_S = 2.0  # or as long as a phase, if that is shorter
FIRST_S = 120.0  # for the first tokens, and for the first reading
SETTLE_S = 10.0
SHORT_WORDS = 16
MOST_TOKENS, BACKGROUND_TOKENS = 8192, 128
# of the context: for all interactive streams, for one background job, and for all of those
INTERACTIVE_SHARE, JOB_SHARE, JOBS_SHARE = 0.5, 0.25, 0.45
ONE_SHARE = 0.9
SAMPLE_WORDS = 300
MEETINGS, LEAD_S = 4, 0.01


@dataclass(frozen=True)
class Settings:
    """Settings from the command line, which is ``command``.

    ``seconds`` is the length of each phase, and ``socket`` belongs to a running daemon.  With
    ``cap`` None, the cap of the daemon applies.
    """

    socket: str
    fresh: bool
    model: str | None
    seconds: float
    interactive: int
    background: int
    prompt_words: int
    cap: float | None
    seed: int
    command: str

    @property
    def warm_s(self) -> float:
        return min(WARM_S, self.seconds)


def run(settings: Settings, stages: Stages, say: Callable[[str], None]) -> Result:
    """Measure; an own daemon has ended when this returns, however it does.

    Raises ``BenchError`` and what the client raises.
    """
    with ExitStack() as stack:
        own, pids = None, []
        path = settings.socket
        there = daemon_at(path)
        if isinstance(there, str):
            if not settings.fresh:
                say(f"bench: {there}; starting a daemon for this run")
        elif not settings.fresh:
            pids = [there["pid"], (there["model"] or {}).get("engine_pid")]
        elif busy := len(there["sessions"]):
            say(f"bench: the daemon at {path} works on {busy} requests; they share the machine")
        used = _look([pid for pid in pids if pid], stages)
        if settings.fresh or isinstance(there, str):
            own = stack.enter_context(OwnDaemon(*_flags(settings)))
            path = own.path
        stages.stage("starting a daemon" if own else "the running daemon", "" if own else path)
        info = (own.wait if own else lambda report: wait_until_serving(path, report))(
            lambda fraction: stages.update(fraction, "loading the model")
        )
        stages.ended(f"{info['model']['name']}, {info['model']['backend']}")
        try:
            return _measure(path, info, own is not None, used, settings, stages)
        except ConnectionFailed as error:
            if own is not None and own.ended():
                raise BenchError(own.last_words()) from None
            raise error


def _look(own: list[int], stages: Stages) -> float:
    """Which share of the cores' time others use now; ``own`` is a daemon that runs already."""
    stages.stage("the machine")
    used = used_by_others(own)
    told = "others use" if used > BUSY else "nobody else uses"
    stages.ended(f"{told} these cores: {100 * used:.0f} %")
    return used


def _flags(settings: Settings) -> list[str]:
    flags = ["--model", settings.model] if settings.model else []
    return flags + (["--latency-cap", str(settings.cap)] if settings.cap else [])


@dataclass(frozen=True)
class _Sizes:
    """Sizes that fit the daemon: answers in tokens, long prompts in words."""

    answer: int
    long_answer: int
    long_words: int
    desk_words: int  # of a prompt beside four others


def _sizes(client: Client, info: dict[str, Any], settings: Settings) -> _Sizes:
    """Raises ``BenchError`` when the interactive streams cannot decode at once."""
    n_seq, n_ctx = info["model"]["n_seq"], info["model"]["n_ctx"]
    # of the positions that one session has: a prompt's tokens are counted by its words
    one = ONE_SHARE * min(info["model"].get("n_ctx_train") or n_ctx, n_ctx)
    if settings.interactive > n_seq:
        raise BenchError(
            f"the daemon decodes {n_seq} sequences at once, so {settings.interactive} interactive "
            "streams would wait for each other; ask for fewer, or start it with more (--parallel)"
        )
    sample = Prompts(settings.seed + 1).words(SAMPLE_WORDS)
    per_word = len(client.tokenize(sample)) / SAMPLE_WORDS
    most = info["limits"]["max_tokens"]
    stream = int(
        min(INTERACTIVE_SHARE * n_ctx / settings.interactive, one) - SHORT_WORDS * per_word
    )
    job = int(min(min(JOB_SHARE, JOBS_SHARE / settings.background) * n_ctx, one))
    long_answer = max(1, min(BACKGROUND_TOKENS, most, job // 4))
    words = min(settings.prompt_words, int((job - long_answer) / per_word))
    desk_words = int((JOB_SHARE * one - desk.CHAT.tokens) / per_word)
    answer, long_words = max(1, min(MOST_TOKENS, most, stream)), max(SHORT_WORDS, words)
    return _Sizes(answer, long_answer, long_words, max(SHORT_WORDS, desk_words))


def _measure(
    path: str, info: dict[str, Any], own: bool, used: float, settings: Settings, stages: Stages
) -> Result:
    with Client(path, timeout=FIRST_S) as client:
        sizes = _sizes(client, info, settings)
        machine = describe(info, used)
        with Load(path, Prompts(settings.seed).words, stages.report) as load:
            phases = _Phases(load, client, settings, sizes, stages)
            alone = phases.alone()
            mixed = phases.beside("mixed", "with background", "interactive", "background")
            first = phases.first_tokens()
            daemon, read_s = client.metrics(), time.monotonic()
            # last: the daemon counts what nobody labels as interactive, the storm too
            unlabelled = phases.beside("unlabelled", "without labels", "unlabelled", "storm")
            waits = phases.desk()
    notes = []
    if settings.interactive + settings.background > info["model"]["n_seq"]:
        notes.append(
            f"The daemon decodes {info['model']['n_seq']} sequences at once: with "
            f"{settings.interactive + settings.background} streams, background ones took turns."
        )
    return Result(
        command=settings.command,
        machine=machine,
        settings={
            "seconds": settings.seconds,
            "warm_up_s": settings.warm_s,
            "interactive": settings.interactive,
            "background": settings.background,
            "interactive_prompt_words": SHORT_WORDS,
            "interactive_answer_tokens": sizes.answer,
            "background_prompt_words": sizes.long_words,
            "background_answer_tokens": sizes.long_answer,
            "seed": settings.seed,
        },
        own_daemon=own,
        cap=settings.cap or float(daemon["latency_cap"]),
        origin_s=load.answers[0].sent_s,
        alone=alone,
        mixed=mixed,
        unlabelled=unlabelled,
        answers=load.answers,
        samples=load.samples,
        first_tokens=first,
        daemon=daemon,
        read_s=read_s,
        notes=notes,
        desk=waits,
        used_by_others=used,
    )


@dataclass(frozen=True)
class _Phases:
    """The phases, each of which ends its streams."""

    load: Load
    client: Client
    settings: Settings
    sizes: _Sizes
    stages: Stages

    def alone(self) -> Phase:
        """The interactive streams alone."""
        self.stages.stage("warming up")
        self.load.watch()
        self.load.run("first reading", FIRST_S, lambda: bool(self.load.samples))
        self._start_streams("interactive")
        self.stages.ended(_count(self.settings.interactive, "interactive stream"))
        self.stages.stage("interactive alone", f"{self.settings.seconds:g} s")
        return self._run("alone")

    def beside(self, name: str, title: str, streams: str, jobs: str) -> Phase:
        """Streams of a kind, started anew, beside long jobs of a kind.

        A token takes longer in a long answer.
        """
        settings = self.settings
        jobs_text = _count(settings.background, "long job")
        self.stages.stage(title, f"{settings.seconds:g} s, {jobs_text}")
        self._settle()
        self._start_streams(streams)
        self.load.start(jobs, settings.background, self.sizes.long_words, self.sizes.long_answer)
        return self._run(name)

    def _run(self, name: str) -> Phase:
        self.stages.begin(self.settings.seconds)
        phase = self.load.run(name, self.settings.seconds)
        p95 = self.load.p95_since_ms(phase.begin_s)
        # while this draws, nobody reads: it has to be quick
        self.stages.ended("no time between tokens" if p95 is None else f"p95 {p95:.2f} ms")
        self.load.stop_streams()
        return phase

    def _start_streams(self, kind: str) -> None:
        """Start the interactive streams, wait for their first tokens, and let them warm up."""
        streams, warm_s = self.settings.interactive, self.settings.warm_s
        self.load.start(kind, streams, SHORT_WORDS, self.sizes.answer)
        all_stream = partial(self.load.streaming, kind, streams, time.monotonic())
        self.load.run("first tokens", FIRST_S, all_stream)
        if not all_stream():
            raise BenchError(
                f"no first token within {FIRST_S:.0f} s; `umaserve top` shows what the daemon does"
            )
        self.stages.begin(warm_s)
        self.load.run("warming up", warm_s)

    def desk(self) -> dict[str, desk.Waits]:
        """The programs of a desk, some of them alone, then all at once."""
        seconds = self.settings.seconds
        self.stages.stage("a desk", f"{desk.DURATION * seconds:g} s")
        self.stages.begin(desk.DURATION * seconds)
        waits = desk.measure(self.load, self._settle, self.sizes.desk_words, seconds)
        self.stages.ended("five programs")
        return waits

    def first_tokens(self) -> dict[str, list[Answer]]:
        """First tokens of short interactive requests: of one alone, and of one that meets a long
        prompt, sent just before."""
        self.stages.stage("first tokens")
        out: dict[str, list[Answer]] = {"alone": [], "mixed": []}
        for i in range(2 * MEETINGS):
            meets = i % 2 == 1
            self.stages.update(i / (2 * MEETINGS), f"{i + 1} of {2 * MEETINGS}")
            self._settle()
            if meets:
                self.load.ask_once(f"long{i + 1}", False, self.sizes.long_words)
                self.load.run("lead", LEAD_S)
            answer = self.load.ask_once(f"short{i + 1}", True, SHORT_WORDS)
            self.load.run("first token", FIRST_S, partial(bool, answer.times_s))
            self.load.stop_streams()
            out["mixed" if meets else "alone"].append(answer)
        self.stages.ended(f"{MEETINGS} alone, {MEETINGS} meeting a long prompt")
        return out

    def _settle(self) -> None:
        """Wait until nothing of ours is left at the daemon."""
        limit_s = time.monotonic() + SETTLE_S
        while any(s["id"].startswith(self.load.tag) for s in self.client.info()["sessions"]):
            if time.monotonic() > limit_s:
                raise BenchError(
                    f"the daemon still has our requests {SETTLE_S:g} s after we left them"
                )
            time.sleep(0.02)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
