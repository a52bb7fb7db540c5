"""A desk: a chat, an editor, two agents and a program that summarises documents, without labels.

Each of the first three runs alone, then all run at once.  A program's waits at the desk, over its
waits alone, are what the others cost it.  Prompts are as long as this machine can compute in about
a second, so that the stage ends in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from umaserve.bench.timeline import Answer, Phase, first_tokens_ms, gaps
from umaserve.metrics.window import quantile

if TYPE_CHECKING:
    from umaserve.bench.load import Load

PROBE_WORDS, PROBE_S = 200, 120.0  # of the prompt whose first token tells the machine's speed
PROMPT_S, MOST_WORDS = 1.0, 5000  # of an agent's prompt, by itself
EDITOR_S = 0.4  # between two completions, at least
ALONE, TOGETHER = 0.5, 2.5  # times ``--seconds``: each of three programs alone, and all of them
DURATION = 3 * ALONE + TOGETHER


class Program(NamedTuple):
    """A kind of streams; their prompts have ``share`` of the words of an agent's."""

    kind: str
    streams: int
    share: float
    tokens: int
    more: int = 0  # words that a prompt adds to the one before; 0: each prompt is a new text


CHAT = Program("chat", 1, 0.03, 500)
EDITOR = Program("editor", 1, 0.12, 16, more=2)
AGENTS = Program("agent", 2, 1.0, 64)
DOCUMENTS = Program("documents", 1, 0.3, 120)
PROGRAMS = (CHAT, EDITOR, AGENTS, DOCUMENTS)


class Waits(NamedTuple):
    """Waits of a program in ms, alone and at the desk; None where nothing was measured."""

    alone: float | None
    desk: float | None

    @property
    def ratio(self) -> float | None:
        return self.desk / self.alone if self.alone and self.desk is not None else None


def measure(
    load: Load, settle: Callable[[], None], most: int, seconds: float
) -> dict[str, Waits]:
    """Run the programs; returns their waits by name.

    ``settle`` waits until the daemon is idle.  ``most``: words of an agent's prompt.
    """
    settle()
    n = min(PROBE_WORDS, most)
    probe = load.ask_once("probe", True, n)
    load.run("probe", PROBE_S, lambda: bool(probe.times_s))
    load.stop_streams()
    first_s = (probe.first_token_ms or 1e3 * PROBE_S) / 1e3
    words = max(min(int(PROMPT_S * n / first_s), MOST_WORDS, most), 1)
    alone = {}
    for program in (CHAT, EDITOR, AGENTS):
        settle()
        alone[program.kind] = _run(load, [program._replace(streams=1)], words, ALONE * seconds)
    settle()
    desk = _run(load, PROGRAMS, words, TOGETHER * seconds)
    quiet, busy = (_waits(load.answers, found) for found in (alone, dict.fromkeys(alone, desk)))
    return {name: Waits(quiet[name], busy[name]) for name in quiet}


def _run(load: Load, programs: Iterable[Program], words: int, seconds: float) -> Phase:
    """Run some programs for a while; ``words``: of an agent's prompt."""
    begin_s = time.monotonic()
    for each in programs:
        length = max(int(each.share * words), 1)
        load.start(each.kind, each.streams, length, each.tokens, each.more)
    while (left_s := begin_s + seconds - time.monotonic()) > 0.0:
        load.run("desk", min(left_s, EDITOR_S))
        load.ask_again()
    load.stop_streams()
    return Phase("desk", begin_s, time.monotonic())


def _waits(answers: list[Answer], phases: Mapping[str, Phase]) -> dict[str, float | None]:
    own = {
        kind: [a for a in answers if a.stream.startswith(kind) and a.sent_s >= phase.begin_s]
        for kind, phase in phases.items()
    }
    between = [gap.ms for gap in gaps(own[CHAT.kind], phases[CHAT.kind])]
    completions = [
        1e3 * (a.end_s - a.sent_s)
        for a in own[EDITOR.kind]
        if a.end_s is not None and phases[EDITOR.kind].holds(a.end_s)
    ]
    first = first_tokens_ms(own[AGENTS.kind], phases[AGENTS.kind])
    return {
        "chat's gap p50": quantile(between, 0.5),
        "chat's gap p95": quantile(between, 0.95),
        "chat's longest gap": max(between, default=None),
        "editor's completion p50": quantile(completions, 0.5),
        "agent's first token p50": quantile(first, 0.5),
    }
