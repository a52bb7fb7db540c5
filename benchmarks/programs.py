"""The programs of a desk, each of which asks until it is cancelled, and their figures."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import trio

from benchmarks.timeline import Phase, Session, gaps_ms, percentile, tokens_in
from benchmarks.web import Caller

CHAT, EDITOR, AGENTS, SUMMARY = "chat", "editor", ("agent1", "agent2"), "documents"
CHAT_TOKENS, EDITOR_TOKENS, AGENT_TOKENS, SUMMARY_TOKENS = 500, 16, 64, 120
PAUSE_S = 1.0
"""Between a chat's answer and its next question."""
EDITOR_EVERY_S = 0.4
SUMMARY_WORDS = 1500
TEN = 10


async def chat(caller: Caller) -> None:
    """Ask, read a long answer, think, ask on."""
    documents = caller.documents(CHAT)
    history = documents.words(caller.words(120))
    while True:
        session = await caller.ask(CHAT, history, CHAT_TOKENS)
        history += f"{session.text}\n\n{documents.words(caller.words(40))}"
        await trio.sleep(PAUSE_S)


async def editor(caller: Caller) -> None:
    """Complete a file that grows by two words; give up what is not complete by the next time."""
    documents = caller.documents(EDITOR)
    sizes = random.Random(caller.seed)
    text = documents.words(caller.words(sizes.randrange(500, 700)))
    while True:
        with trio.move_on_after(EDITOR_EVERY_S):
            await caller.ask(EDITOR, text, EDITOR_TOKENS)
            await trio.sleep_forever()
        text += " " + " ".join(documents.words(3).split()[1:])


async def agent(caller: Caller, name: str) -> None:
    """Take turns without a pause: each prompt is the history and a new result of a tool."""
    documents = caller.documents(name)
    sizes = random.Random(f"{caller.seed} {name}")
    history = documents.words(caller.words(sizes.randrange(4000, 6001)))
    while True:
        session = await caller.ask(name, history, AGENT_TOKENS)
        history += f"{session.text}\n\n{documents.words(caller.words(sizes.randrange(150, 451)))}"


async def summary(caller: Caller) -> None:
    """Summarise one document after another, without streaming."""
    documents = caller.documents(SUMMARY)
    sizes = random.Random(f"{caller.seed} {SUMMARY}")
    while True:
        words = caller.words(sizes.randrange(SUMMARY_WORDS - 200, SUMMARY_WORDS + 201))
        await caller.ask(SUMMARY, documents.words(words), SUMMARY_TOKENS, stream=False)


Program = Callable[[Caller], Awaitable[None]]
PROGRAMS: dict[str, Program] = {
    CHAT: chat,
    EDITOR: editor,
    SUMMARY: summary,
    **{name: functools.partial(agent, name=name) for name in AGENTS},
}


async def run(caller: Caller, programs: Sequence[str], seconds: float, apart_s: float) -> Phase:
    """Start programs ``apart_s`` apart, end all after ``seconds``; return what was asked."""
    began = time.perf_counter()
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for name in programs:
                nursery.start_soon(PROGRAMS[name], caller)
                await trio.sleep(apart_s)
    return Phase("desk", began, time.perf_counter(), list(caller.sessions))


# --- figures ----------------------------------------------------------------------------------


def largest_mean_of_ten(gaps: Sequence[float]) -> float:
    """Return the largest mean of any ten consecutive gaps; NaN of fewer."""
    means = [sum(gaps[i : i + TEN]) / TEN for i in range(len(gaps) - TEN + 1)]
    return max(means, default=float("nan"))


def waits_ms(phase: Phase) -> list[float]:
    """Times to the first token; a wait that the phase's end cut short counts if it is long.

    It was longer than what was seen of it, so it counts where that is above the median.
    """
    done = [s.first_token_ms for s in phase.sessions if s.first_token_ms is not None]
    cut = [
        1e3 * (phase.end_s - s.sent_s)
        for s in phase.sessions
        if not s.times_s and s.end_s is None
    ]  # fmt: skip
    middle = percentile(done, 50)
    return done + [wait for wait in cut if not wait <= middle]


def completion_waits_ms(phase: Phase) -> list[float]:
    """Times to a completion's end; a completion that was given up counts for how long it ran.

    Where few end, those are the fastest, and their median alone says too little.
    """
    waits = []
    for session in phase.sessions:
        if session.end_s is not None:
            waits.append(1e3 * (session.end_s - session.sent_s))
        elif phase.end_s - session.sent_s >= EDITOR_EVERY_S:
            waits.append(1e3 * EDITOR_EVERY_S)
    return waits


def figures(phase: Phase, streamed: bool = True) -> dict[str, float]:
    """Latencies in ms and counts of a program's requests; NaN where there are none.

    ``streamed``: with the times of tokens, for programs that wait for every answer's end.
    """
    ended = [s for s in phase.sessions if s.end_s is not None]
    answers = [1e3 * (s.end_s - s.sent_s) for s in ended if s.end_s is not None]
    out = {"finished": float(len(ended)), "answer_p50_ms": percentile(answers, 50)}
    if streamed:
        firsts, gaps = waits_ms(phase), gaps_ms(phase)
        tens = [largest_mean_of_ten(gaps_ms(phase._replace(sessions=[s]))) for s in phase.sessions]
        out |= {
            "first_p50_ms": percentile(firsts, 50),
            "first_p95_ms": percentile(firsts, 95),
            "gap_p95_ms": percentile(gaps, 95),
            "ten_ms": max((ten for ten in tens if ten == ten), default=float("nan")),
            "longest_ms": max(gaps, default=float("nan")),
            "tokens": float(tokens_in(phase)),
        }
    return out


def by_program(phase: Phase) -> dict[str, dict[str, float]]:
    """Return the figures of each program; of both agents together."""
    named: dict[str, list[Session]] = {}
    for session in phase.sessions:
        name = "agents" if session.session_id in AGENTS else session.session_id
        named.setdefault(name, []).append(session)
    found = {
        name: figures(phase._replace(sessions=sessions), name not in (EDITOR, SUMMARY))
        for name, sessions in named.items()
    }
    if EDITOR in found:
        found[EDITOR]["asked"] = float(len(named[EDITOR]))
        waits = completion_waits_ms(phase._replace(sessions=named[EDITOR]))
        found[EDITOR]["waited_p50_ms"] = percentile(waits, 50)
    return found
