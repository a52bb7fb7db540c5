"""The simulated engine: a session table, a clock, and the compiled policy that the daemon uses.

What a tick takes comes from a `Machine`; what the policy believes comes from a `CostModel` that
learns from those ticks, as in the daemon.  Every plan is checked against what a plan may be.

Long: the simulated machine and what it counts, which share one state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from umaserve.engine.cells.accounting import MARGIN
from umaserve.llama.traffic import Traffic
from umaserve.policy.base import (
    ALL_THE_TIME,
    FLAG_SPENT,
    Knobs,
    Memory,
    Plan,
    SchedulerState,
    Tick,
)
from umaserve.policy.cost.model import CHUNK_SIZES, CostModel, chunk_class, learn
from umaserve.policy.guarded import observe, plan_tick
from umaserve.policy.latency_guard import FIRST_CREDIT, earned, learn_tails, settle_credit
from umaserve.wire.states import FREE, RUNNING, WAITING

from .sim_loads import Load
from .sim_machine import Machine, noisy_ms, seed

NS = 1_000_000  # per millisecond
NEVER = np.int64(1) << 62
PIECE = 128  # prompt tokens that land at once from beside the ticks
STARVED_NS = 1_000_000_000  # a part that waited so long begins all the same
START_NS = 1_000_000_000

# what may be wrong with a plan: index into Outcome.faults
OVER_BATCH, OVER_CELLS, TWICE, BAD_COUNT, NOT_RUNNING = range(5)
ISOLATE, OVER_MERGE, IN_ASIDE, IDLE = range(5, 9)
FAULTS = (
    "over n_batch", "over free cells", "slot twice", "bad count", "not running",
    "isolated row not alone", "over max_merge", "row computed aside", "idle with work",
)  # fmt: skip

# Outcome.totals
(TICKS, BUSY_MS, ASIDE_TOKENS, ASIDE_MS, SPENT_TICKS, PARKED, ABORTED, STREAM_MS,
 STREAM_PROMPT, STREAM_ROWS, BACK_PROMPT, END_MS) = range(12)  # fmt: skip


class Jobs(NamedTuple):
    """A `Load` as arrays, and what became of each request (0 = not yet); times in ns."""

    due: np.ndarray  # int64: when it comes; NEVER = its parent has not ended
    delay: np.ndarray  # int64: after its parent
    parent: np.ndarray
    lane: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    cap: np.ndarray
    isolate: np.ndarray
    came: np.ndarray  # int8: 1 = has a row of the table, 2 = ended
    first: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, load: Load) -> Jobs:
        n = load.size
        delay = (np.array(load.due_ms) * NS).astype(np.int64)
        parent = np.array(load.parent, np.int32)
        return cls(
            np.where(parent < 0, START_NS + delay, NEVER), delay, parent,
            np.array(load.lane, np.int32), np.array(load.prompt, np.int32),
            np.array(load.output, np.int32), np.array(load.cap, np.float64),
            np.array(load.isolate, np.int32), np.zeros(n, np.int8),
            np.zeros(n, np.int64), np.zeros(n, np.int64),
        )  # fmt: skip


class World(NamedTuple):
    """The session table: `SchedulerState` and what only the engine knows."""

    state: SchedulerState
    job: np.ndarray  # int32: which request, -1 = none
    kept: np.ndarray  # int32: tokens whose KV was moved to memory when it was parked
    seqs: np.ndarray  # int64[1]: sequences that are free

    @classmethod
    def empty(cls, n_slots: int, n_seq: int) -> World:
        kinds = [np.int32] * 5 + [np.int64] * 4 + [np.float64] * 4 + [np.int64, np.int32]
        columns = [np.zeros(n_slots, kind) for kind in kinds]
        return cls(
            SchedulerState(*columns), np.full(n_slots, -1, np.int32),
            np.zeros(n_slots, np.int32), np.array([n_seq], np.int64),
        )  # fmt: skip


class Outcome(NamedTuple):
    """``token_job`` int32, ``token_ns`` int64, ``token_gap`` float64 (ms, -1 = a first token): one
    entry per token made; ``faults`` int64[9]; ``totals`` float64[12]; ``longest_idle`` float64[2]:
    longest ms in which requests of a lane ran and the ticks served none of them; ``plans``
    int64[2]: `note_plan` of every tick."""

    token_job: np.ndarray
    token_ns: np.ndarray
    token_gap: np.ndarray
    faults: np.ndarray
    totals: np.ndarray
    longest_idle: np.ndarray
    plans: np.ndarray


class Result(NamedTuple):
    jobs: Jobs
    tokens: int
    outcome: Outcome
    cost: CostModel


@njit(nogil=True, cache=True)
def _arrive(jobs, world, now, counter):
    """Give rows to the requests that are due; returns (when the next comes, next interactive)."""
    state = world.state
    following = following_interactive = NEVER
    for j in range(jobs.due.shape[0]):
        if jobs.came[j]:
            continue
        due = jobs.due[j]
        if due > now:
            following = min(following, due)
            if jobs.lane[j] == 0:
                following_interactive = min(following_interactive, due)
            continue
        slot = -1
        for s in range(state.state.shape[0]):
            if state.state[s] == FREE:
                slot = s
                break
        if slot < 0:
            break
        jobs.came[j] = 1
        counter[0] += 1
        world.job[slot] = j
        world.kept[slot] = 0
        state.lane[slot] = jobs.lane[j]
        state.n_tokens[slot] = jobs.prompt[j]
        state.n_past[slot] = 0
        state.isolate[slot] = jobs.isolate[j]
        state.arrival[slot] = counter[0]
        state.t_submit_ns[slot] = due
        state.t_first_ns[slot] = 0
        state.t_last_ns[slot] = 0
        state.cap[slot] = jobs.cap[j]
        state.credit[slot] = FIRST_CREDIT
        state.served[slot] = 0
        state.aside[slot] = 0
        state.state[slot] = WAITING
    return following, following_interactive


@njit(nogil=True, cache=True)
def _used(state):
    used = 0
    for s in range(state.state.shape[0]):
        if state.state[s] == RUNNING:
            used += state.n_past[s]
    return used


@njit(nogil=True, cache=True)
def _victim(state):
    """As `umaserve.engine.cells.accounting.victim`; also returns how many run."""
    worst, running = -1, 0
    for s in range(state.state.shape[0]):
        if state.state[s] != RUNNING:
            continue
        running += 1
        if (
            worst < 0
            or state.lane[s] > state.lane[worst]
            or (state.lane[s] == state.lane[worst] and state.arrival[s] > state.arrival[worst])
        ):
            worst = s
    return worst, running


@njit(nogil=True, cache=True)
def _park(world, slot):
    state = world.state
    world.kept[slot] = state.n_past[slot]
    state.n_past[slot] = 0
    state.aside[slot] = 0
    state.state[slot] = WAITING
    world.seqs[0] += 1


@njit(nogil=True, cache=True)
def _admit(jobs, world, n_ctx, totals):
    """As the engine: interactive first, in the place of background if need be."""
    state = world.state
    while True:
        best = -1
        for s in range(state.state.shape[0]):
            if state.state[s] != WAITING:
                continue
            if (
                best < 0
                or state.lane[s] < state.lane[best]
                or (state.lane[s] == state.lane[best] and state.arrival[s] < state.arrival[best])
            ):
                best = s
        if best < 0:
            return
        job = world.job[best]
        while True:
            committed = running = 0
            for s in range(state.state.shape[0]):
                if state.state[s] == RUNNING:
                    committed += state.n_tokens[s]
                    running += 1
            to_come = jobs.output[job] - (state.n_tokens[best] - jobs.prompt[job])
            need = state.n_tokens[best] + min(MARGIN, max(to_come, 1))
            fits = committed + need <= n_ctx if running else state.n_tokens[best] <= n_ctx
            if fits and world.seqs[0] > 0:
                break
            victim, _ = _victim(state)
            if state.lane[best] or victim < 0 or state.lane[victim] == 0:
                return
            totals[PARKED] += 1
            _park(world, victim)
        world.seqs[0] -= 1
        state.n_past[best] = world.kept[best]
        world.kept[best] = 0
        state.state[best] = RUNNING


@njit(nogil=True, cache=True)
def _mix(digest, value):
    # two moduli below 2**31: no product leaves int64, compiled or not
    digest[0] = (digest[0] * 1_000_003 + value + 2) % 2_147_483_647
    digest[1] = (digest[1] * 1_000_033 + value + 2) % 2_147_483_629


@njit(nogil=True, cache=True)
def note_plan(digest, plan, entries):
    """Mix a plan into ``digest`` int64[2]: its rows, its tokens, and what is computed beside it.

    Only what is a whole number: milliseconds may differ in their last bit between machines.
    """
    _mix(digest, entries)
    for e in range(entries):
        _mix(digest, plan.slots[e])
        _mix(digest, plan.counts[e])
    n = 0
    while plan.aside[n] >= 0:
        _mix(digest, plan.aside[n])
        n += 1
    _mix(digest, n)
    info = plan.info
    for whole in (info.mode, info.marks, info.chunk_beside, info.flows):
        _mix(digest, whole)


@njit(nogil=True, cache=True)
def check_plan(state, plan, entries, knobs, free_cells, faults):
    """Count what is wrong with a plan in ``faults``; returns (decoding rows, prompt tokens)."""
    rows = prompt = 0
    for e in range(entries):
        s, count = plan.slots[e], plan.counts[e]
        left = state.n_tokens[s] - state.n_past[s]
        if state.state[s] != RUNNING:
            faults[NOT_RUNNING] += 1
        if count < 1 or count > left:
            faults[BAD_COUNT] += 1
        if state.isolate[s] and entries > 1:
            faults[ISOLATE] += 1
        for other in range(e):
            if plan.slots[other] == s:
                faults[TWICE] += 1
        i = 0
        while plan.aside[i] >= 0:
            if plan.aside[i] == s:
                faults[IN_ASIDE] += 1
            i += 1
        if left == 1:
            rows += 1
        else:
            prompt += count
    if rows + prompt > knobs.n_batch:
        faults[OVER_BATCH] += 1
    # with no cell left, one token asks the engine to make room
    if rows + prompt > max(free_cells, 1):
        faults[OVER_CELLS] += 1
    if knobs.max_merge > 0 and rows > knobs.max_merge:
        faults[OVER_MERGE] += 1
    return rows, prompt


@njit(nogil=True, cache=True)
def _orders(state, plan, worker, now):
    """What is computed aside; ``worker`` float64[3]: slot (-1 = none), tokens done of its piece,
    and ns at which a slice last had room for a part of it."""
    n = 0
    while plan.aside[n] >= 0:
        n += 1
    running = int(worker[0])
    listed_running = False
    for s in range(state.aside.shape[0]):
        listed = False
        for i in range(n):
            if plan.aside[i] == s:
                listed = True
        if state.aside[s] == 1 and not listed:
            state.aside[s] = 0
        elif listed and state.aside[s] == 0:
            state.aside[s] = 1
        if s == running and listed:
            listed_running = True
    if n == 0:
        worker[0] = -1.0
    elif running < 0 or not listed_running or (
        plan.aside[0] != running and state.lane[plan.aside[0]] < state.lane[running]
    ):
        worker[0] = plan.aside[0]
        worker[1], worker[2] = 0.0, now


@njit(nogil=True, cache=True)
def _beside(state, plan, worker, ms, per_s, most, totals):
    """Let the prefill worker run for so long, down its list, in pieces of ``most`` tokens."""
    tokens = ms * per_s / 1000.0
    totals[ASIDE_MS] += ms
    while worker[0] >= 0.0 and tokens > 0.0:
        s = int(worker[0])
        piece = min(most, state.n_tokens[s] - state.n_past[s] - 1)
        take = min(tokens, piece - worker[1])
        tokens -= take
        worker[1] += take
        if worker[1] >= piece - 1e-9:
            state.n_past[s] += piece
            totals[ASIDE_TOKENS] += piece
            worker[1] = 0.0
            if state.n_tokens[s] - state.n_past[s] <= 1:
                state.aside[s] = 0
                worker[0] = -1.0
                i = 0
                while plan.aside[i] >= 0:
                    other = plan.aside[i]
                    if state.aside[other] == 1:
                        worker[0] = other
                        break
                    i += 1


@njit(nogil=True, cache=True)
def _slice(state, plan, worker, machine, now, totals):
    """Compute parts of a chunk before a tick, all as long as the longest; returns the ms.

    The last one that begins ends within the slice, so half of one goes unused in the mean.
    """
    ms, size = plan.info.slice_ms, chunk_class(int(plan.info.chunk_beside))
    part, chunk = machine.part_ms[size], machine.chunk_ms[size]
    if worker[0] < 0.0 or not 0.0 < ms < ALL_THE_TIME or chunk <= 0.0:
        return 0.0
    used = 0.0
    if ms >= part:
        used = max(ms // part * part if part > 0.0 else 0.0, ms - 0.5 * part)
    elif now - worker[2] > STARVED_NS:
        used = part
    if used > 0.0:
        worker[2] = now
        tokens = CHUNK_SIZES[size]
        _beside(state, plan, worker, used, 1000.0 * tokens / chunk, tokens, totals)
    return used


@njit(nogil=True, cache=True)
def run(
    jobs, world, machine, knobs, cost, memory, traffic, plan, n_ctx, most_ticks, horizon_ns, out
):
    """Play until all requests have ended, or so many ticks, or the horizon; returns tokens made.

    Long: the loop of the simulation, which numba compiles as a whole.
    """
    state, totals = world.state, out.totals
    n_slots = state.state.shape[0]
    now, tick, made = START_NS, 0, 0
    counter = np.zeros(1, np.int64)
    worker = np.array([-1.0, 0.0, 0.0])
    served_at = np.full(2, START_NS, np.int64)  # or nobody there to serve, by lane
    following = np.int64(0)
    following_interactive = NEVER
    while tick < most_ticks and now < horizon_ns:
        if now >= following:
            following, following_interactive = _arrive(jobs, world, now, counter)
            _admit(jobs, world, n_ctx, totals)
        used = _used(state)
        view = Tick(tick, now, n_ctx - used, used, np.inf)
        entries = plan_tick(state, view, knobs, cost, memory, traffic, plan)
        note_plan(out.plans, plan, entries)
        rows, prompt = check_plan(state, plan, entries, knobs, n_ctx - used, out.faults)
        mode = int(plan.info.mode)
        if knobs.can_aside:
            _orders(state, plan, worker, now)
        if entries == 0:
            runnable = False
            for s in range(n_slots):
                if state.state[s] == RUNNING and state.aside[s] != 1:
                    runnable = True
            if runnable and plan.info.wait_ms <= 0.0:
                out.faults[IDLE] += 1
            tick += 1
            if worker[0] >= 0.0:
                _beside(state, plan, worker, 1.0, machine.aside_per_s, PIECE, totals)
                now += NS
            elif following == NEVER and not runnable:
                break
            else:
                now = max(now + NS, following if following != NEVER and not runnable else now)
            continue
        if used + rows + prompt > n_ctx:
            victim, running = _victim(state)
            if running < 2:
                break
            totals[PARKED] += 1
            _park(world, victim)
            _admit(jobs, world, n_ctx, totals)
            continue
        past = float(used)
        if not knobs.wide_reads:
            past = 0.0
            for e in range(entries):
                past += state.n_past[plan.slots[e]] * plan.counts[e]
            past /= rows + prompt
        ms = noisy_ms(machine, mode, rows, prompt, past)
        if plan.info.abort_ms > 0.0 and following_interactive != NEVER:
            at = (following_interactive - now) / NS
            if at < min(plan.info.abort_ms, ms):
                # given up for somebody interactive: the time is lost, nothing is learned
                now = following_interactive + NS // 2
                totals[ABORTED] += 1
                tick += 1
                continue
        spent = 0.0
        if knobs.sliced and mode == 0:
            spent = _slice(state, plan, worker, machine, now, totals)
        elif worker[0] >= 0.0:
            _beside(state, plan, worker, ms, machine.aside_per_s, PIECE, totals)
        now += int((spent + ms) * NS)
        tick += 1
        totals[BUSY_MS] += spent + ms
        streaming = False
        for lane in range(2):
            present = False
            for s in range(n_slots):
                if state.state[s] == RUNNING and state.lane[s] == lane and state.aside[s] != 1:
                    present = True
                    streaming = streaming or (lane == 0 and state.t_last_ns[s] > 0)
            if not present:
                served_at[lane] = now
        if streaming:
            totals[STREAM_MS] += spent + ms
        if int(plan.info.marks) & FLAG_SPENT:
            totals[SPENT_TICKS] += 1
        ended = False
        for e in range(entries):
            s, count = plan.slots[e], plan.counts[e]
            j, lane = world.job[s], state.lane[s]
            waited = (now - served_at[lane]) / NS
            out.longest_idle[lane] = max(out.longest_idle[lane], waited)
            served_at[lane] = now
            decoding = state.n_tokens[s] - state.n_past[s] == 1
            if lane and not decoding:
                totals[BACK_PROMPT] += count
            if streaming and lane:
                if decoding:
                    totals[STREAM_ROWS] += 1
                else:
                    totals[STREAM_PROMPT] += count
            state.n_past[s] += count
            state.served[s] = tick * n_slots + e
            if state.n_past[s] < state.n_tokens[s]:
                continue
            gap = -1.0
            if state.t_last_ns[s]:
                gap = (now - state.t_last_ns[s]) / NS
                if lane == 0 and plan.info.baseline_ms > 0.0:
                    state.credit[s], _ = settle_credit(
                        state.credit[s], earned(knobs), state.cap[s],
                        knobs.latency_cap, plan.info.baseline_ms, gap,
                    )  # fmt: skip
            out.token_job[made], out.token_ns[made], out.token_gap[made] = j, now, gap
            made += 1
            if jobs.first[j] == 0:
                jobs.first[j] = now
            if state.t_first_ns[s] == 0:
                state.t_first_ns[s] = now
            state.t_last_ns[s] = now
            state.n_tokens[s] += 1
            if state.isolate[s] and state.n_tokens[s] - jobs.prompt[j] >= 2:
                state.isolate[s] = 0
            if state.n_tokens[s] - jobs.prompt[j] >= jobs.output[j]:
                jobs.end[j] = now
                jobs.came[j] = 2
                ended = True
                state.state[s] = FREE
                state.aside[s] = 0
                if worker[0] == s:
                    worker[0] = -1.0
                world.seqs[0] += 1
                world.job[s] = -1
                for k in range(jobs.parent.shape[0]):
                    if jobs.parent[k] == j:
                        jobs.due[k] = now + jobs.delay[k]
                following = np.int64(0)
        learn_tails(cost, plan.info, rows, prompt, ms)
        learn(cost, mode, rows, prompt, past, ms)
        observe(memory, plan.info, ms)
        if ended:
            _admit(jobs, world, n_ctx, totals)
    totals[TICKS] = tick
    totals[END_MS] = (now - START_NS) / NS
    return made


def simulate(
    load: Load,
    machine: Machine,
    knobs: Knobs,
    cost: CostModel,
    *,
    n_slots: int = 64,
    n_seq: int = 32,
    n_ctx: int = 16384,
    most_ticks: int = 2_000_000,
    seconds: float = 1e6,
    random_seed: int = 1,
) -> Result:
    """Play a load; ``cost`` is what the policy knows at the start and goes on learning."""
    if max(p + o for p, o in zip(load.prompt, load.output, strict=True)) > n_ctx:
        raise ValueError(f"a request needs more than the {n_ctx} KV cells that there are")
    seed(random_seed)
    jobs, world = Jobs.of(load), World.empty(n_slots, n_seq)
    tokens = int(jobs.output.sum())
    out = Outcome(
        np.zeros(tokens, np.int32), np.zeros(tokens, np.int64), np.zeros(tokens),
        np.zeros(len(FAULTS), np.int64), np.zeros(12), np.zeros(2), np.zeros(2, np.int64),
    )  # fmt: skip
    traffic = Traffic(*[0.0] * len(Traffic._fields))._replace(dense=5e8, n_ubatch=512.0)
    made = run(
        jobs, world, machine, knobs, cost, Memory.fresh(n_slots), traffic, Plan.empty(n_slots),
        n_ctx, most_ticks, START_NS + int(seconds * 1e9), out,
    )  # fmt: skip
    return Result(jobs, made, out, cost)
