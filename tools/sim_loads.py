"""Workload traces: requests with lane, lengths, and when they come.

A request comes at a time of its own, or a while after another one has ended (a client that thinks,
an agent's next step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from umaserve.wire.states import AUTO, LABELLED

INTERACTIVE, BACKGROUND = 0, 1


@dataclass
class Load:
    """Requests, one entry each in every list; ``parent`` -1 = comes at ``due_ms``.

    Otherwise ``due_ms`` counts from the end of the request ``parent``.  ``cap`` 0 = the daemon's.
    """

    due_ms: list[float] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    cap: list[float] = field(default_factory=list)
    isolate: list[int] = field(default_factory=list)
    auto: list[int] = field(default_factory=list)  # LABELLED, or AUTO: nobody named the lane
    program: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)  # of the program's share

    def add(
        self, lane: int, prompt: int, output: int, due_ms: float = 0.0, parent: int = -1,
        cap: float = 0.0, isolate: int = 0, auto: int = LABELLED, program: int = 0,
        weight: float = 1.0,
    ) -> int:  # fmt: skip
        """One request; returns its number.  ``prompt`` and ``output`` are at least 1."""
        self.due_ms.append(due_ms)
        self.parent.append(parent)
        self.lane.append(lane)
        self.prompt.append(prompt)
        self.output.append(output)
        self.cap.append(cap)
        self.isolate.append(isolate)
        self.auto.append(auto)
        self.program.append(program)
        self.weight.append(weight)
        return len(self.due_ms) - 1

    def chain(
        self, count: int, lane: int, prompt: int, output: int, start_ms: float, think_ms: float
    ) -> None:
        """A client whose requests follow one another."""
        before = -1
        for _ in range(count):
            due = start_ms if before < 0 else think_ms
            before = self.add(lane, prompt, output, due, before)

    def only(self, lane: int) -> Load:
        """The requests of one lane, as if the others did not exist."""
        load = Load()
        number: dict[int, int] = {}
        for i, own in enumerate(self.lane):
            if own == lane:
                number[i] = load.add(
                    own, self.prompt[i], self.output[i], self.due_ms[i],
                    number.get(self.parent[i], -1), self.cap[i], self.isolate[i],
                    self.auto[i], self.program[i], self.weight[i],
                )  # fmt: skip
        return load

    @property
    def size(self) -> int:
        return len(self.due_ms)


def storm(clients: int = 2, prompt: int = 600, tokens: int = 400) -> Load:
    """One interactive stream; clients that send long prompts with one output token."""
    load = Load()
    load.add(INTERACTIVE, 40, tokens)
    for client in range(clients):
        load.chain(500, BACKGROUND, prompt + 37 * client, 1, 200.0, 5.0)
    return load


def unlabelled(clients: int = 3, prompt: int = 600, tokens: int = 2000) -> Load:
    """The same of programs that name no lane; the lanes of its requests are for the figures."""
    load = Load()
    load.add(INTERACTIVE, 40, tokens, auto=AUTO, program=1)
    for client in range(clients):
        before = -1
        for _ in range(500):
            due = 200.0 if before < 0 else 5.0
            before = load.add(
                BACKGROUND, prompt + 37 * client, 1, due, before, auto=AUTO, program=2 + client
            )
    return load


def two_apps(streams: int = 8, clients: int = 4, prompt: int = 600, tokens: int = 1200) -> Load:
    """One stream of a program, and of another one many streams and a flood of prompts; nobody names
    a lane.  Requests of the other program are background for the figures."""
    load = Load()
    load.add(INTERACTIVE, 40, tokens, auto=AUTO, program=1)
    for _ in range(streams):
        load.add(BACKGROUND, 40, tokens, auto=AUTO, program=2)
    for client in range(clients):
        before = -1
        for _ in range(500):
            due = 200.0 if before < 0 else 5.0
            size = prompt + 37 * client
            before = load.add(BACKGROUND, size, 1, due, before, auto=AUTO, program=2)
    return load


def beside_answer(prompt: int = 600) -> Load:
    """Somebody's long prompts beside a long answer of another program; nobody names a lane.  The
    answer is background for the figures."""
    load, before = Load(), -1
    load.add(BACKGROUND, 60, 3000, auto=AUTO, program=1)
    for _ in range(8):
        due = 500.0 if before < 0 else 1000.0
        before = load.add(INTERACTIVE, prompt, 40, due, before, auto=AUTO, program=2)
    return load


def storm8() -> Load:
    return storm(8)


def together(count: int = 8, prompt: int = 1500, tokens: int = 400, auto: int = LABELLED) -> Load:
    """Requests of one program that come at the same time, as an agent's helpers do."""
    load = Load()
    for i in range(count):
        load.add(INTERACTIVE, prompt + i, tokens, 0.3 * i, auto=auto, program=1)
    return load


def together_unlabelled() -> Load:
    return together(auto=AUTO)


def mixed() -> Load:
    """Three interactive conversations and one long document in the background."""
    load = Load()
    for i in range(3):
        load.chain(4, INTERACTIVE, 60 + 25 * i, 96, 100.0 * i, 400.0)
    load.add(BACKGROUND, 3000, 500)
    return load


def beside(
    streams: int = 1, decoders: int = 2, clients: int = 2, prompt: int = 310, output: int = 1
) -> Load:
    """Streams and background decoders that hardly end, and clients whose next prompt comes with the
    end of the one before."""
    load = Load()
    for i in range(streams + decoders):
        load.add(INTERACTIVE if i < streams else BACKGROUND, 60, 20_000)
    for _ in range(clients):
        load.chain(2000, BACKGROUND, prompt, output, 0.0, 0.0)
    return load


def agent() -> Load:
    """Eight steps of an agent beside four background decoders."""
    load = Load()
    load.chain(8, INTERACTIVE, 150, 40, 500.0, 20.0)
    for i in range(4):
        load.add(BACKGROUND, 64 + i, 2000)
    return load


def background() -> Load:
    """Nobody interactive: eight streams."""
    load = Load()
    for i in range(8):
        load.add(BACKGROUND, 100 + 13 * i, 300)
    return load


def paste() -> Load:
    """A chat beside a big paste that is interactive too."""
    load = Load()
    load.add(INTERACTIVE, 60, 400)
    load.add(INTERACTIVE, 3000, 100, 500.0)
    return load


def crowd(sessions: int = 2000, seed: int = 1) -> Load:
    """Many sessions of both lanes, lengths and gaps spread over orders of magnitude."""
    rng = np.random.default_rng(seed)
    load = Load()
    now = 0.0
    for _ in range(sessions):
        now += float(rng.exponential(400.0))
        lane = int(rng.random() < 0.4)
        prompt = int(np.clip(rng.lognormal(4.5, 1.0), 2, 3000))
        output = int(np.clip(rng.lognormal(3.5, 1.0), 1, 600))
        load.add(lane, prompt, output, now)
    return load


def lone(count: int = 10) -> Load:
    """Prompts of three lengths that nobody else is beside, one after another."""
    load, before = Load(), -1
    for i in range(3 * count):
        due = 300.0 if before >= 0 else 0.0
        before = load.add(INTERACTIVE, (100, 300, 1000)[i % 3], 1, due, before)
    return load


def questions(streams: int = 2, prompt: int = 25) -> Load:
    """Short prompts now and then, beside two streams."""
    load = Load()
    for i in range(streams):
        load.add(INTERACTIVE, 60 + i, 4000)
    load.chain(500, INTERACTIVE, prompt, 1, 500.0, 1500.0)
    return load


def document(prompt: int = 6000) -> Load:
    """Short prompts now and then, while long ones that are as urgent are computed."""
    load = Load()
    load.chain(20, INTERACTIVE, prompt, 1, 0.0, 100.0)
    load.chain(500, INTERACTIVE, 25, 1, 40.0, 700.0)
    return load


PRESETS: dict[str, Callable[[], Load]] = {
    "storm": storm,
    "storm-8": storm8,
    "unlabelled": unlabelled,
    "two-apps": two_apps,
    "beside-answer": beside_answer,
    "together": together,
    "together-unlabelled": together_unlabelled,
    "mixed": mixed,
    "agent": agent,
    "background": background,
    "paste": paste,
    "crowd": crowd,
    "lone": lone,
    "questions": questions,
    "document": document,
}
