"""The parts of `benchmarks.price`: each asks an idle server, and returns figures.

The chats have no drafts.  Random weights may repeat a token for ever: all drafts of it are right,
and the tokens of a tick come together, so that nearly all gaps are 0.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import AsyncIterator

import trio

from benchmarks import programs
from benchmarks.timeline import Phase, Session, gaps_ms, percentile
from benchmarks.turns import say
from benchmarks.web import Caller, Server, settle

CHAT, OTHER = "chat", "other"
STREAM_TOKENS = 1500
AFTER_S = 0.25  # ticks after a prompt's last that it may still disturb
SHORT_PAUSE_S, WARM_S = 0.2, 1.0

Values = dict[str, float]


@contextlib.asynccontextmanager
async def chatting(caller: Caller, count: int) -> AsyncIterator[None]:
    """Keep ``count`` streams of a chat running; begin when each has its first token."""

    async def keep(number: int) -> None:
        documents = caller.documents(f"{CHAT}{number}")
        while True:
            await caller.ask(CHAT, documents.words(16), STREAM_TOKENS, speculate=False)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(keep, number)
        while sum(bool(s.times_s) for s in caller.sessions if s.session_id == CHAT) < count:
            await trio.sleep(0.01)
        await trio.sleep(WARM_S)
        yield
        nursery.cancel_scope.cancel()


def chats(caller: Caller) -> list[Session]:
    return [s for s in caller.sessions if s.session_id == CHAT]


async def watch(caller: Caller, seconds: float) -> Phase:
    """Watch the chat for some time."""
    began = time.perf_counter()
    await trio.sleep(seconds)
    return Phase(CHAT, began, time.perf_counter(), chats(caller))


def gaps_of(prefix: str, phases: list[Phase]) -> dict[str, float]:
    """The figures of a chat's gaps in some stretches of time."""
    gaps = [gap for phase in phases for gap in gaps_ms(phase)]
    tens = [programs.largest_mean_of_ten(gaps_ms(phase)) for phase in phases]
    return {
        f"{prefix}p95_ms": percentile(gaps, 95),
        f"{prefix}ten_ms": max((ten for ten in tens if ten == ten), default=float("nan")),
        f"{prefix}longest_ms": max(gaps, default=float("nan")),
    }


async def first_tokens(
    caller: Caller, words: int, repeats: int, pause_s: float
) -> tuple[list[float], list[Phase]]:
    """Send one prompt after another; times to the first token, and the stretches until then."""
    documents = caller.documents(f"{words} {len(caller.sessions)}")
    firsts, phases = [], []
    for _ in range(repeats):
        await trio.sleep(pause_s)
        session = await caller.ask(OTHER, documents.words(caller.words(words)), 8)
        await trio.sleep(AFTER_S)
        firsts.append(1e3 * (session.times_s[0] - session.sent_s))
        phases.append(Phase(CHAT, session.sent_s, session.times_s[0] + AFTER_S, chats(caller)))
    return firsts, phases


async def prompt_part(caller: Caller, options: argparse.Namespace, words: int) -> Values:
    """A long prompt alone, then beside one stream."""
    alone, _ = await first_tokens(caller, words, options.repeats, SHORT_PAUSE_S)
    await settle(caller.server)
    async with chatting(caller, 1):
        quiet = await watch(caller, options.seconds / 2)
        beside, phases = await first_tokens(caller, words, options.repeats, options.pause)
    first, first_alone = statistics.median(beside), statistics.median(alone)
    return {
        "alone_ms": first_alone,
        "beside_ms": first,
        "over_alone": first / first_alone,
        "chat_alone_p95_ms": percentile(gaps_ms(quiet), 95),
        **gaps_of("chat_", phases),
    }


async def tail_part(caller: Caller, options: argparse.Namespace) -> Values:
    """A short prompt alone, then beside two streams."""
    alone, _ = await first_tokens(caller, 16, options.tail_repeats, SHORT_PAUSE_S)
    async with chatting(caller, 2):
        beside, _ = await first_tokens(caller, 16, options.tail_repeats, SHORT_PAUSE_S)
    first, first_alone = statistics.median(beside), statistics.median(alone)
    return {"alone_ms": first_alone, "beside_ms": first, "over_alone": first / first_alone}


async def storm_part(caller: Caller, options: argparse.Namespace, label: bool) -> Values:
    """A stream alone, then beside clients that send one prompt after another."""
    fields = {"priority": "background"} if label else {}

    async def flood(number: int) -> None:
        documents = caller.documents(f"storm{number}")
        while True:
            words = documents.words(caller.words(options.storm_words))
            await caller.ask(f"storm{number}", words, 1, **fields)

    async with chatting(caller, 1), trio.open_nursery() as nursery:
        alone = await watch(caller, options.seconds)
        for number in range(options.storm_clients):
            nursery.start_soon(flood, number)
        await trio.sleep(WARM_S)
        before = await computed(caller.server)
        beside = await watch(caller, options.seconds)
        after = await computed(caller.server)
        nursery.cancel_scope.cancel()
    storm = [s for s in caller.sessions if s.session_id.startswith("storm")]
    seconds = beside.end_s - beside.begin_s
    done = [s for s in storm if s.end_s is not None and beside.begin_s < s.end_s <= beside.end_s]
    rate = answered_rate(storm, beside.begin_s, beside.end_s)
    alone_p95 = percentile(gaps_ms(alone), 95)
    figures = gaps_of("", [beside])
    return {
        "alone_p95_ms": alone_p95,
        **figures,
        **over_alone(figures["p95_ms"], alone_p95, caller.server.name),
        "prompts_finished": float(len(done)),
        "prompt_rate": rate if before is None or after is None else (after - before) / seconds,
    }


def over_alone(beside_ms: float, alone_ms: float, server: str) -> Values:
    """The ratio of two gaps of a server's stream; none, and it is said, if there was no gap."""
    if beside_ms >= 0.0 and alone_ms > 0.0:
        return {"p95_over_alone": beside_ms / alone_ms}
    say(f"{server}: the stream had no time between its tokens: no ratio")
    return {}


async def computed(server: Server) -> float | None:
    """Prompt tokens computed so far; None of a server that tells only of whole prompts."""
    if server.daemon is None:
        return None
    found = await trio.to_thread.run_sync(server.daemon.metrics)
    return float(found["prompt_tokens_computed_total"])


def answered_rate(sessions: list[Session], begin_s: float, end_s: float) -> float:
    """Prompt tokens per second of answered prompts, each spread over the time that it took."""
    tokens = 0.0
    for session in sessions:
        if session.end_s is not None:
            inside = min(session.end_s, end_s) - max(session.sent_s, begin_s)
            tokens += session.prompt_tokens * max(0.0, inside) / (session.end_s - session.sent_s)
    return tokens / (end_s - begin_s)


async def editor_part(caller: Caller, options: argparse.Namespace) -> Values:
    """The editor of the desk, alone."""
    phase = await programs.run(caller, [programs.EDITOR], options.seconds, 0.0)
    return programs.by_program(phase)[programs.EDITOR]
