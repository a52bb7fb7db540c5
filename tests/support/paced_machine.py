"""A simulated accelerator beside whose ticks prompts are computed, under the policy of the daemon.

What matters there and no processor has: a tick of another shape than the one before takes longer,
and so does the next one (a captured graph is made again); chunks that go on through ticks make
these longer; others are computed in parts, in slices; their KV cells are copied between two ticks,
which makes the next ones longer as well.  The times are of two models on an H200, by its traces.

    python -m tests.support.paced_machine

prints what a stream, background decoders and two clients with long prompts have at each cap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.support.policy_states import NOW, TRAFFIC, empty, put
from tools.sim_run import note_plan
from umaserve.engine.loop.account import learn_tick
from umaserve.engine.loop.beside import UNLIKE, note_shape
from umaserve.engine.loop.records import Facts, Flight
from umaserve.policy.accelerator.beside import may_land
from umaserve.policy.base import (
    ALL_FEATURES,
    ALL_THE_TIME,
    Knobs,
    Memory,
    Plan,
    Tick,
)
from umaserve.policy.cost.model import CHUNK_SIZES, CostModel, chunk_class, learn, learn_flow_ms
from umaserve.policy.guarded import plan_tick
from umaserve.policy.latency_guard import earned, settle_credit
from umaserve.wire.states import FREE

N_CTX = 1 << 20  # nobody lacks cells


class Accelerator(NamedTuple):
    """Milliseconds: of a tick by rows, of the first and the second one of a shape beyond that; of
    chunks by CHUNK_SIZES: all parts, how many these are, how long it takes through ticks, and how
    many times longer these are then."""

    rows: dict[int, float]
    changed: tuple[float, float]
    parts: tuple[float, float]  # ms of none, and per token
    n_parts: int
    flow: tuple[float, float]  # the same
    times: tuple[float, ...]
    noise: float = 0.01
    late: float = 0.045  # of a slice: planning, and the chunk's thread

    def row_ms(self, n: int) -> float:
        return float(np.interp(n, list(self.rows), list(self.rows.values())))

    def chunk_ms(self, tokens: int) -> float:
        return self.parts[0] + self.parts[1] * tokens

    def part_ms(self, tokens: int) -> float:
        return self.chunk_ms(tokens) / self.n_parts

    def flow_ms(self, tokens: int) -> float:
        return self.flow[0] + self.flow[1] * tokens

    def probed(self) -> CostModel:
        """What is known after a start."""
        cost = CostModel.unknown()
        for n in (*range(1, 9), 12, 16, 24, 32):
            for _ in range(8):
                learn(cost, 0, n, 0, 0, self.row_ms(n))
        for tokens in (16, 64, 256, 1024):
            for _ in range(8):
                learn(cost, 0, 0, tokens, 0, self.chunk_ms(tokens))
        for i, tokens in enumerate(CHUNK_SIZES.tolist()):
            cost.parts[i] = self.chunk_ms(tokens)
            cost.longest[i] = 1.5 * self.part_ms(tokens)
        return cost


DENSE = Accelerator(
    {1: 1.25, 2: 1.55, 4: 1.9, 8: 2.4, 16: 4.2, 32: 5.4}, (3.0, 4.5), (3.5, 0.018), 168,
    (4.2, 0.029), (1.06, 1.08, 1.10, 1.12, 1.13, 1.17, 1.22, 1.28, 1.4, 1.5),
)  # fmt: skip
MOE = Accelerator(
    {1: 3.8, 2: 5.0, 4: 7.2, 8: 10.7, 16: 17.0, 32: 25.0}, (6.0, 11.0), (26.0, 0.09), 384,
    (30.0, 0.27), (1.12, 1.18, 1.22, 1.25, 1.28, 1.35, 1.4, 1.5, 1.6, 1.7),
)  # fmt: skip


class Chunk:
    def __init__(self, slot: int, tokens: int, whole: bool, left_ms: float) -> None:
        self.slot, self.tokens, self.whole, self.left_ms = slot, tokens, whole, left_ms


class Daemon:
    """Streams, background decoders that never end, and prompts of which the next follows at once.

    Where a prompt ``lands``, its cells are copied into the ticks' context, else its only token is
    sampled where it was computed.  After `run`: ``gaps`` of each stream and decoder in ms,
    ``prompt_tokens`` that were computed, ``changes`` of a tick's shape, ``ms`` that went by.
    """

    def __init__(
        self, machine: Accelerator, cap: float, *, streams: int = 1, decoders: int = 0,
        prompts: int = 0, prompt_tokens: int = 310, lands: bool = False, seed: int = 1,
        cost: CostModel | None = None,
    ) -> None:  # fmt: skip
        self.machine, self.rng = machine, np.random.default_rng(seed)
        self.cost = cost or machine.probed()
        self.knobs = Knobs(
            2048, 0, 50.0, cap, False, True, ALL_FEATURES, True, paced=True
        )  # fmt: skip
        n = max(streams + decoders + prompts, 1)
        self.state, self.plan, self.memory = empty(n), Plan.empty(n), Memory.fresh(n)
        self.flight = Flight.zeros()
        self.now, self.number = float(NOW), 0
        self.memory.since_ns[:] = NOW
        for s in range(streams + decoders):
            put(self.state, s, int(s >= streams), 60, 59)
        self.prompts = list(range(streams + decoders, n))
        self.length, self.lands = prompt_tokens, lands
        self.done = np.zeros(n, int)  # tokens computed beside the ticks
        for s in self.prompts:
            self._ask(s)
        self.chunk: Chunk | None = None
        self.pending: list[tuple[int, int, float]] = []  # slot, tokens, since when
        self.rows_last, self.same, self.changes = -1, 0, 0
        self.landed_ago = UNLIKE
        self.gaps: dict[int, list[float]] = {s: [] for s in range(streams + decoders)}
        self.prompt_tokens = 0
        self.ms = 0.0
        self.plans = np.zeros(2, np.int64)  # `note_plan` of every tick

    def _ask(self, s: int) -> None:
        put(self.state, s, 1, self.length, 0)
        self.state.aside[s] = self.done[s] = 0

    def run(self, ticks: int, warm: int = 0) -> Daemon:
        for i in range(warm + ticks):
            if i == warm:
                self.prompt_tokens, self.changes, began = 0, 0, self.now
                for gaps in self.gaps.values():
                    gaps.clear()
            self._tick()
        self.ms = (self.now - began) / 1e6
        return self

    def _listed(self) -> list[int]:
        aside = self.plan.aside.tolist()
        return aside[: aside.index(-1)]

    def _begin(self) -> None:
        grant = int(self.plan.info.chunk_beside)
        if self.chunk is not None or grant <= 0:
            return
        for s in self._listed():
            left = self.length - 1 - int(self.done[s])
            if left > 0:
                tokens, whole = min(grant, left), self.plan.info.flows > 0.0
                ms = self.machine.flow_ms(tokens) if whole else self.machine.chunk_ms(tokens)
                self.chunk = Chunk(s, tokens, whole, ms)
                return

    def _end(self) -> None:
        chunk = self.chunk
        assert chunk is not None
        self.done[chunk.slot] += chunk.tokens
        if chunk.whole:
            learn_flow_ms(self.cost, chunk.tokens, self.machine.flow_ms(chunk.tokens))
        self.prompt_tokens += chunk.tokens
        self.chunk = None
        if self.lands:
            self.pending.append((chunk.slot, chunk.tokens, self.now))
        elif self.done[chunk.slot] >= self.length - 1:
            self._ask(chunk.slot)

    def _slice(self) -> float:
        """ms that parts of a chunk take before this tick."""
        chunk, ms = self.chunk, float(self.plan.info.slice_ms)
        if chunk is None or chunk.whole or not 0.0 < ms < ALL_THE_TIME:
            return 0.0
        part, spent = self.machine.part_ms(chunk.tokens), self.machine.late
        while chunk.left_ms > 0.0 and spent + part <= ms:
            spent += part
            chunk.left_ms -= part
        self.now += spent * 1e6
        if chunk.left_ms <= 0.0:
            self._end()
        return spent

    def _land(self) -> None:
        if not self.pending:
            return
        slot, _, since = self.pending[0]
        if not may_land(self.state, 1, (self.now - since) / 1e6):
            return
        for other, tokens, _ in self.pending:
            self.state.n_past[slot] += tokens if other == slot else 0
        self.pending = [piece for piece in self.pending if piece[0] != slot]
        self.landed_ago, self.flight.unlike = 0, UNLIKE

    def _tick(self) -> None:
        state, plan, knobs, machine = self.state, self.plan, self.knobs, self.machine
        self._land()
        used = int(state.n_past.sum())
        chunk = self.chunk
        waits = chunk is not None and not chunk.whole
        next_ms = machine.part_ms(chunk.tokens) + machine.late if waits else 0.0
        self.memory.kept.next_part_ms = next_ms
        tick = Tick(self.number, int(self.now), N_CTX - used, used, np.inf)
        entries = plan_tick(state, tick, knobs, self.cost, self.memory, TRAFFIC, plan)
        assert entries
        note_plan(self.plans, plan, entries)
        listed = self._listed()
        for s in self.prompts:
            state.aside[s] = int(s in listed)
        began = self.now
        self._slice()
        self._begin()
        slots = plan.slots[:entries].tolist()
        assert (plan.counts[:entries] == 1).all() or not set(slots) & set(self.gaps)
        counts = plan.counts[:entries].tolist()
        rows = sum(state.n_tokens[s] - state.n_past[s] == 1 for s in slots)
        in_batch = sum(counts)
        note_shape.py_func(
            self.flight, knobs, self.cost, self.memory, rows, in_batch, plan.info
        )  # fmt: skip
        facts, info = Facts.zeros(), plan.info
        facts.tokens, facts.decoding_rows = in_batch, rows
        facts.disturbed = facts.changed = changed = self.flight.unlike > 0
        self.flight.unlike = max(self.flight.unlike - 1, 0)
        ms = machine.row_ms(rows) if rows == in_batch else machine.chunk_ms(in_batch)
        ms *= 1.0 + abs(self.rng.normal(0.0, machine.noise))
        self.same = self.same + 1 if rows == self.rows_last else 0
        self.changes += self.same == 0
        self.rows_last = rows
        if min(self.same, self.landed_ago) < UNLIKE:
            ms += machine.changed[min(self.same, self.landed_ago)]
        self.landed_ago += 1
        chunk = self.chunk
        if chunk is not None and chunk.whole:
            facts.disturbed = 1
            size = chunk_class(chunk.tokens)
            ms *= machine.times[size]
            if not changed:
                facts.through = 1 + size
        self.now += ms * 1e6
        if chunk is not None and chunk.whole:
            chunk.left_ms -= ms
            if chunk.left_ms <= 0.0:
                self._end()
        self.number += 1
        learn_tick(self.cost, self.memory, info, facts, 0, ms, self.number)
        assert self.now > began
        for s, count in zip(slots, counts, strict=True):
            self._token(s, count)

    def _token(self, s: int, count: int) -> None:
        state = self.state
        state.n_past[s] += count
        if state.n_past[s] < state.n_tokens[s]:
            return
        if s in self.prompts:  # its only token
            state.state[s] = FREE
            self._ask(s)
            return
        gap = (self.now - state.t_last_ns[s]) / 1e6
        self.gaps[s].append(gap)
        state.n_tokens[s] += 1
        state.served[s] = self.number
        state.t_last_ns[s] = int(self.now)
        if state.lane[s] == 0 and self.plan.info.baseline_ms > 0.0:
            state.credit[s], _ = settle_credit(
                state.credit[s], earned(self.knobs), state.cap[s], self.knobs.latency_cap,
                self.plan.info.baseline_ms, gap,
            )  # fmt: skip

    # --- figures -----------------------------------------------------------------------------

    def p95(self, s: int = 0) -> float:
        return float(np.percentile(self.gaps[s], 95))

    def rate(self, *slots: int) -> float:
        """Tokens per second of so many."""
        return sum(len(self.gaps[s]) for s in slots) / self.ms * 1000.0

    @property
    def prompt_rate(self) -> float:
        return self.prompt_tokens / self.ms * 1000.0


def main() -> None:
    for name, machine in (("0.5B", DENSE), ("30B-A3B", MOE)):
        alone = Daemon(machine, 1.2).run(1500, 200).p95()
        for decoders in (0, 2, 8):
            for cap in (1.1, 1.2, 1.5, 2.0, 3.0, 100.0):
                got = Daemon(machine, cap, decoders=decoders, prompts=2).run(4000, 700)
                others = got.rate(*range(1, 1 + decoders))
                print(
                    f"{name:8} {decoders} decoders, cap {cap:5}: p95 x {got.p95() / alone:.2f}, "
                    f"stream {got.rate(0):.0f} tokens/s, decoders {others:.0f}, "
                    f"{got.prompt_rate:.0f} prompt tokens/s"
                )


if __name__ == "__main__":
    main()
