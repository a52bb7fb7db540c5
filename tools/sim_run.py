"""The simulated engine: a session table, a clock, and the compiled policy that the daemon uses.

What a tick takes comes from a `Machine`; what the policy believes comes from a `CostModel` that
learns from those ticks, as in the daemon.  Every plan is checked against what a plan may be.

Long: the simulated machine and what it counts, which share one state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umaserve.engine.cells.accounting import MARGIN
from umaserve.engine.ticks.account import learn_tick
from umaserve.jit.compiled import INNER, njit
from umaserve.llama.traffic import Traffic
from umaserve.policy.base import (
    FLAG_SPENT,
    Knobs,
    Memory,
    Plan,
    SchedulerState,
    Tick,
)
from umaserve.policy.cost.model import CostModel
from umaserve.policy.guarded import plan_tick
from umaserve.policy.latency_guard import FIRST_CREDIT, settle_credit
from umaserve.policy.shares import weight_of
from umaserve.policy.urgency import gives_way
from umaserve.policy.without_streams import note_given_up
from umaserve.wire.states import AUTO_SUNK, FREE, LANE_BACKGROUND, RUNNING, WAITING

from .sim_beside import (
    ABORTED,
    BACK_PROMPT,
    BUSY_MS,
    END_MS,
    NS,
    PARKED,
    PIECE,
    SPENT_TICKS,
    STREAM_MS,
    STREAM_PROMPT,
    STREAM_ROWS,
    TICKS,
    Shape,
    after_change,
    compute,
    give_orders,
    give_up,
    slice_before,
)
from .sim_loads import Load
from .sim_machine import Machine, noisy_ms, seed

NEVER = np.int64(1) << 62
START_NS = 1_000_000_000
TRAFFIC = Traffic(*[0.0] * len(Traffic._fields))._replace(dense=5e8, n_ubatch=512.0)

# what may be wrong with a plan: index into Outcome.faults
OVER_BATCH, OVER_CELLS, TWICE, BAD_COUNT, NOT_RUNNING = range(5)
ISOLATE, OVER_MERGE, IN_ASIDE, IDLE = range(5, 9)
FAULTS = (
    "over n_batch", "over free cells", "slot twice", "bad count", "not running",
    "isolated row not alone", "over max_merge", "row computed aside", "idle with work",
)  # fmt: skip


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
    auto: np.ndarray  # int32: LABELLED or AUTO
    program: np.ndarray
    weight: np.ndarray
    came: np.ndarray  # int8: 1 = has a row of the table, 2 = ended
    sunk: np.ndarray  # int8: 1 = the policy took it for background, if only for a tick
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
            np.array(load.isolate, np.int32), np.array(load.auto, np.int32),
            np.array(load.program, np.int32), np.array(load.weight, np.float64),
            np.zeros(n, np.int8), np.zeros(n, np.int8), np.zeros(n, np.int64),
            np.zeros(n, np.int64),
        )  # fmt: skip


class World(NamedTuple):
    """The session table: `SchedulerState` and what only the engine knows."""

    state: SchedulerState
    job: np.ndarray  # int32: which request, -1 = none
    kept: np.ndarray  # int32: tokens whose KV was moved to memory when it was parked
    seqs: np.ndarray  # int64[2]: sequences that are free, and the latest turn that has begun

    @classmethod
    def empty(cls, n_slots: int, n_seq: int) -> World:
        kinds = [np.int32] * 5 + [np.int64] * 4 + [np.float64] * 4
        kinds += [np.int32] * 2 + [np.float64, np.float64, np.int64, np.int32]
        columns = [np.zeros(n_slots, kind) for kind in kinds]
        return cls(
            SchedulerState(*columns), np.full(n_slots, -1, np.int32),
            np.zeros(n_slots, np.int32), np.array([n_seq, 0], np.int64),
        )  # fmt: skip


class Outcome(NamedTuple):
    """``token_job`` int32, ``token_ns`` int64, ``token_gap`` float64 (ms, -1 = a first token): one
    entry per token made; ``faults`` int64[9]; ``totals`` float64[13]; ``longest_idle`` float64[2]:
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


@njit(**INNER)
def _turn(world, program):
    """The next turn of a program, as `umaserve.server.requests.queue.turns` deals them."""
    state, last = world.state, world.seqs[1]
    for s in range(state.state.shape[0]):
        if state.state[s] != FREE and state.program[s] == program:
            last = max(last, state.arrival[s] >> 32)
    return last + 1


@njit(**INNER)
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
            if jobs.lane[j] == 0 or jobs.auto[j]:
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
        state.lane[slot] = 0 if jobs.auto[j] else jobs.lane[j]
        state.n_tokens[slot] = jobs.prompt[j]
        state.n_past[slot] = 0
        state.isolate[slot] = jobs.isolate[j]
        state.auto[slot] = jobs.auto[j]
        state.program[slot] = jobs.program[j]
        state.weight[slot] = jobs.weight[j]
        state.arrival[slot] = (_turn(world, jobs.program[j]) << 32) + counter[0]
        state.t_submit_ns[slot] = due
        state.t_first_ns[slot] = 0
        state.t_last_ns[slot] = 0
        state.cap[slot] = jobs.cap[j]
        state.credit[slot] = FIRST_CREDIT
        state.served[slot] = 0
        state.aside[slot] = 0
        state.state[slot] = WAITING
    return following, following_interactive


@njit(**INNER)
def _used(state):
    used = 0
    for s in range(state.state.shape[0]):
        if state.state[s] == RUNNING:
            used += state.n_past[s]
    return used


@njit(**INNER)
def _victim(state):
    """As `umaserve.engine.cells.accounting.victim`; also returns how many run."""
    worst, running = -1, 0
    for s in range(state.state.shape[0]):
        if state.state[s] != RUNNING:
            continue
        running += 1
        if worst < 0 or state.lane[s] != state.lane[worst]:
            if worst < 0 or state.lane[s] > state.lane[worst]:
                worst = s
            continue
        own, other = held(state, s), held(state, worst)
        if own > other or own == other and state.arrival[s] > state.arrival[worst]:
            worst = s
    return worst, running


@njit(**INNER)
def held(state, slot, more=0):
    """Sequences that a row's program holds, and ``more``, over its weight."""
    count = more
    for s in range(state.state.shape[0]):
        if state.state[s] == RUNNING and state.program[s] == state.program[slot]:
            count += 1
    return count / weight_of(state, slot)


@njit(**INNER)
def _goes_before(state, a, b):
    """As `umaserve.engine.cells.accounting.next_to_admit`."""
    if state.lane[a] != state.lane[b]:
        return state.lane[a] < state.lane[b]
    own, other = held(state, a), held(state, b)
    return own < other or own == other and state.arrival[a] < state.arrival[b]


@njit(**INNER)
def _park(world, slot):
    state = world.state
    world.kept[slot] = state.n_past[slot]
    state.n_past[slot] = 0
    state.aside[slot] = 0
    state.state[slot] = WAITING
    world.seqs[0] += 1


@njit(**INNER)
def _admit(jobs, world, knobs, memory, n_ctx, totals, now):
    """As the engine: interactive first, in the place of background if need be."""
    state = world.state
    while True:
        best = -1
        for s in range(state.state.shape[0]):
            if state.state[s] != WAITING:
                continue
            if best < 0 or _goes_before(state, s, best):
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
            if state.lane[best] == 0 and gives_way(state, knobs, memory, best, now):
                state.lane[best], state.auto[best] = LANE_BACKGROUND, AUTO_SUNK
                best = -1
                break
            victim, _ = _victim(state)
            if state.lane[best] or victim < 0:
                return
            if state.lane[victim] == 0 and held(state, best, 1) > held(state, victim, -1):
                return
            totals[PARKED] += 1
            _park(world, victim)
        if best < 0:
            continue
        world.seqs[0] -= 1
        state.n_past[best] = world.kept[best]
        world.kept[best] = 0
        world.seqs[1] = max(world.seqs[1], state.arrival[best] >> 32)
        state.state[best] = RUNNING


@njit(**INNER)
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
    for whole in (info.mode, info.marks, info.chunk_beside):
        _mix(digest, whole)


@njit(**INNER)
def _note_sunk(jobs, world):
    state = world.state
    for s in range(state.state.shape[0]):
        if state.state[s] == RUNNING and state.auto[s] == AUTO_SUNK:
            jobs.sunk[world.job[s]] = 1


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


@njit(**INNER)
def _tell(jobs, world, knobs, info, out, made, s, now):
    """Row ``s`` has its next token; returns whether its request has ended with that."""
    state, j = world.state, world.job[s]
    gap = -1.0
    if state.t_last_ns[s]:
        gap = (now - state.t_last_ns[s]) / NS
        if state.lane[s] == 0 and info.baseline_ms > 0.0:
            state.credit[s], _ = settle_credit(
                state.credit[s], state.cap[s], knobs.latency_cap,
                state.rounds[s] * info.baseline_ms, gap,
            )  # fmt: skip
    out.token_job[made], out.token_ns[made], out.token_gap[made] = j, now, gap
    if jobs.first[j] == 0:
        jobs.first[j] = now
    if state.t_first_ns[s] == 0:
        state.t_first_ns[s] = now
    state.t_last_ns[s] = now
    state.n_tokens[s] += 1
    if state.isolate[s] and state.n_tokens[s] - jobs.prompt[j] >= 2:
        state.isolate[s] = 0
    if state.n_tokens[s] - jobs.prompt[j] < jobs.output[j]:
        return False
    jobs.end[j] = now
    jobs.came[j] = 2
    state.state[s] = FREE
    state.aside[s] = 0
    world.seqs[0] += 1
    world.job[s] = -1
    for k in range(jobs.parent.shape[0]):
        if jobs.parent[k] == j:
            jobs.due[k] = now + jobs.delay[k]
    return True


@njit(nogil=True, cache=True, _nrt=True)
def run(
    jobs, world, machine, knobs, cost, memory, traffic, plan, shape, n_ctx, most_ticks, horizon_ns,
    out,
):  # fmt: skip
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
            _admit(jobs, world, knobs, memory, n_ctx, totals, now)
        used = _used(state)
        view = Tick(tick, now, n_ctx - used, used, np.inf)
        entries = plan_tick(state, view, knobs, cost, memory, traffic, plan)
        note_plan(out.plans, plan, entries)
        _note_sunk(jobs, world)
        rows, prompt = check_plan(state, plan, entries, knobs, n_ctx - used, out.faults)
        mode = int(plan.info.mode)
        if knobs.can_aside:
            give_orders(state, plan, worker, now)
        if entries == 0:
            runnable = False
            for s in range(n_slots):
                if state.state[s] == RUNNING and state.aside[s] != 1:
                    runnable = True
            if runnable and plan.info.wait_ms <= 0.0:
                out.faults[IDLE] += 1
            tick += 1
            if worker[0] >= 0.0:
                compute(state, plan, worker, 1.0, machine.aside_per_s, PIECE, totals)
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
            _admit(jobs, world, knobs, memory, n_ctx, totals, now)
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
                note_given_up(memory, now)
                tick += 1
                continue
        spent, ended = 0.0, False
        ms = after_change(
            machine, knobs, cost, memory, plan, shape, rows, prompt, ms, totals
        )
        if knobs.sliced and mode == 0:
            spent = slice_before(state, plan, worker, machine, now, totals)
        elif worker[0] >= 0.0:
            compute(state, plan, worker, ms, machine.aside_per_s, PIECE, totals)
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
        for e in range(entries):
            s, count = plan.slots[e], plan.counts[e]
            lane = state.lane[s]
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
            if _tell(jobs, world, knobs, plan.info, out, made, s, now):
                ended = True
                give_up(worker, s)
                following = np.int64(0)
            made += 1
        learn_tick(cost, memory, plan.info, shape.facts, past, ms)
        if ended:
            _admit(jobs, world, knobs, memory, n_ctx, totals, now)
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
        np.zeros(len(FAULTS), np.int64), np.zeros(13), np.zeros(2), np.zeros(2, np.int64),
    )  # fmt: skip
    made = run(
        jobs, world, machine, knobs, cost, Memory.fresh(n_slots), TRAFFIC, Plan.empty(n_slots),
        Shape.fresh(), n_ctx, most_ticks, START_NS + int(seconds * 1e9), out,
    )  # fmt: skip
    return Result(jobs, made, out, cost)
