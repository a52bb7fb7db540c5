"""The nouns of scheduling: what a policy sees and what it answers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from umaserve.jit.compiled import njit
from umaserve.jit.record import Record
from umaserve.wire.states import (
    AUTO,
    AUTO_SUNK,
    LABELLED,
    LANE_BACKGROUND,
    LANE_INTERACTIVE,
    RUNNING,
)

__all__ = [
    "ALL_FEATURES", "AUTO", "AUTO_SUNK", "FEATURES", "LABELLED", "LANE_BACKGROUND",
    "LANE_INTERACTIVE", "RUNNING", "Knobs", "Memory", "Plan", "SchedulerState", "Tick", "forget",
]  # fmt: skip

# parts that can be switched off one by one, for comparison runs; see docs/POLICY.md
FEATURES = {
    "latency-guard": 1,  # prompts keep to the pace of readers, background to the cap
    "error-budget": 2,  # a few tokens per hundred may be later than the cap for background
    "sweet-spot": 4,  # decoders take turns where that is faster than merging them
    "lanes": 8,  # interactive before background
    "prompt-aside": 16,  # prompts in a second context, beside the ticks
    "bandwidth": 32,  # the sum of bytes moved stays under its budget
    "abort": 64,  # a background prompt chunk is given up for an interactive request
    "ageing": 128,  # nobody waits for ever
    "slices": 256,  # on a processor, background prompts get slices of time between ticks
    "urgency": 512,  # unlabelled prompts of a program that has used up its allowance are background
    "shares": 1024,  # programs with many streams have as many turns as those with few
}
ALL_FEATURES = sum(FEATURES.values())
(
    GUARD, ERROR_BUDGET, SWEET_SPOT, LANES, ASIDE, BANDWIDTH, ABORT, AGEING, SLICES, URGENCY,
    SHARES,
) = FEATURES.values()  # fmt: skip


class SchedulerState(NamedTuple):
    """Columns of the session table that a policy reads (borrowed, one entry per slot).

    ``served`` grows in the order in which rows were last part of a batch.  ``aside`` is 1 where the
    prompt is being computed beside the ticks, and -1 where it cannot be.  It is NOT_FED where no
    tick may feed the row now.  Both belong to the engine.
    """

    state: np.ndarray  # int32: FREE, WAITING, RUNNING, DONE
    lane: np.ndarray  # int32: 0 interactive, 1 background
    n_tokens: np.ndarray  # int32: tokens known
    n_past: np.ndarray  # int32: tokens in the KV cache
    isolate: np.ndarray  # int32: SUSPECT or APART = must be alone in its tick
    arrival: np.ndarray  # int64: order of admission
    t_submit_ns: np.ndarray  # int64
    t_first_ns: np.ndarray  # int64: time of the first token; 0 = none yet
    t_last_ns: np.ndarray  # int64: time of the last token; 0 = none yet
    cap: np.ndarray  # float64: latency cap of this session; 0 = the daemon's
    target_ttft_ms: np.ndarray  # float64: 0 = none
    target_tbt_ms: np.ndarray  # float64: 0 = none
    credit: np.ndarray  # float64: slow tokens that may still be spent on this session
    auto: np.ndarray  # int32: LABELLED, or who decides about ``lane`` and what was decided
    program: np.ndarray  # int32: whose request it is: equal numbers, the same program
    weight: np.ndarray  # float64: of that program's share; 0 = 1
    rounds: np.ndarray  # float64: written by the policy: rounds between two of its tokens
    served: np.ndarray  # int64
    aside: np.ndarray  # int32

    @classmethod
    def of(cls, table: Any, served: np.ndarray, aside: np.ndarray) -> SchedulerState:
        """``table``: anything with the columns as attributes, as a SessionTable."""
        names = cls._fields[:-2]
        columns = [getattr(table, name) for name in names]
        return cls._make([*columns, served, aside])


class Knobs(NamedTuple):
    """Settings of the daemon, equal for every tick."""

    n_batch: int  # tokens of one llama_decode
    max_merge: int  # decoding sessions per tick; 0 = no cap
    tick_budget_ms: float  # ceiling of a tick that nobody interactive bounds
    latency_cap: float  # times the baseline
    reading_ms: float  # mean time between tokens that no reader notices
    abortable: bool  # the backend can give up a running graph
    can_aside: bool  # prompts can be computed beside the ticks
    features: int  # sum of FEATURES
    wide_reads: bool = True  # attention costs by all KV cells in use, not by a sequence's own
    overlaps: bool = False  # an accelerator's ticks: two are slower after a change of shape
    sliced: bool = False  # the loop can compute chunks of prompts between ticks


class Tick(NamedTuple):
    """Inputs that differ from tick to tick."""

    number: int
    now_ns: int  # monotonic
    free_cells: int  # KV cells without a token
    kv_cells: int  # KV cells with one
    bytes_left: float  # bytes that may be moved in one tick budget; inf = no budget


class PlanInfo(Record):
    """Predictions and flags of a plan for its tick; `forget` sets all of them to 0."""

    predicted_ms: float  # 0 = unknown
    baseline_ms: float  # between tokens of the interactive decoders alone; 0 = none, or unknown
    allowed_ms: float  # what the guard lets this tick take; 0 = it does not bound this one
    marks: int  # sum of FLAG_*
    mode: int  # 0: all threads, 1: one prompt runs beside it
    wait_ms: float  # with an empty plan: the budget of bytes is used up; come back after this
    abort_ms: float  # this tick may be given up until so much of it is done; 0 = never
    interactive_rows: int
    passengers: int  # tokens that ride with interactive decoders
    chunk_beside: int  # where sliced: tokens of the next chunk of prompts between the ticks
    slice_ms: float  # that it gets before this tick
    redoes: int  # 1: the chunk between the ticks that has begun is given up for a smaller one


@njit(nogil=True, cache=True)
def forget(info):
    """Make all of a `PlanInfo` 0: nothing is known about the next tick."""
    info.predicted_ms = info.baseline_ms = info.allowed_ms = info.wait_ms = info.abort_ms = 0.0
    info.slice_ms = 0.0
    info.marks = info.mode = info.interactive_rows = info.passengers = info.chunk_beside = 0
    info.redoes = 0


class Plan(NamedTuple):
    """Work of one tick: ``slots[i]`` feeds ``counts[i]`` tokens from its ``n_past`` on.

    ``slots`` and ``counts`` int32[n_slots]: a policy returns the number of valid entries.  Only a
    row whose last token is fed gets logits.  ``aside`` int32[n_slots + 1]: prompts to compute
    beside the ticks, most urgent first, ended by -1.  ``info``: the expected cost of the tick, and
    the reasons.  The caller owns a plan and reuses it.
    """

    slots: np.ndarray
    counts: np.ndarray
    aside: np.ndarray
    info: PlanInfo

    @classmethod
    def empty(cls, n_slots: int) -> Plan:
        n = max(n_slots, 1)
        return cls(
            np.zeros(n, np.int32), np.zeros(n, np.int32), np.full(n + 1, -1, np.int32),
            PlanInfo.zeros(),
        )  # fmt: skip


FLAG_GUARDED = 1  # the guard kept something out
FLAG_SPENT = 2  # error budget was spent
FLAG_ASIDE = 4
FLAG_SKIPPED_PREFILL = 8  # a prompt could have run but for the guard
FLAG_TRIMMED = 16  # the budget of bytes kept something out


class Kept(Record):
    """Numbers that a policy remembers from tick to tick."""

    last_mode: int  # ``PlanInfo.mode`` of the last plan
    shared: int  # 1: streams wait for their turn, since their program has more than its share
    # of a chunk that waits between ticks; the engine fills them in
    next_part_ms: float  # 0 = none waits
    next_part_tokens: float  # of the whole chunk, if it could be put together again; else 0
    # of a shape that is being tried on an accelerator
    look_left: int  # ticks to come
    look_of: int  # decoders
    look_rows: int  # that are merged
    longest_ms: float  # of a tick with a chunk beside these streams (`umaserve.policy.pace`)
    worthwhile: int  # tokens of that chunk; 0 = no cost is known
    # of chunks of interactive prompts (`without_streams.note_given_up`)
    given_up: int  # how many on end were given up for whoever came
    given_up_ns: int  # when the last one was; 0 = none


class Account(Record):
    """Time for which a program may still slow others (`umaserve.policy.urgency`), and the prompt
    tokens that it has had (`umaserve.policy.shares`)."""

    program: int
    seen_ns: int  # 0 = nobody's account
    since_ns: int  # when ``credit_ms`` was this; 0 = never
    credit_ms: float
    had: float  # prompt tokens by weight, more than the one that had least of those that wait


class Memory(NamedTuple):
    """State that a policy keeps from tick to tick, and its work arrays; owned by the caller.

    ``since_ns`` int64[5] (SINCE_*): when each kind was last served.  The order is background
    decoders, background prompts, interactive prompts, and background prompts beside the ticks.  The
    fifth entry is the last time with interactive work.
    """

    kind: np.ndarray  # int64[n_slots]: KIND_*
    order: np.ndarray  # int64[n_slots]
    found: np.ndarray  # int64[KINDS]: how many of each kind
    past: np.ndarray  # float64[KINDS]: KV cells that a token of each kind attends to, in the mean
    rank: np.ndarray  # float64[n_slots]: of prompts; of one lane the least goes first
    alone_ms: np.ndarray  # float64[2, n_slots + 1]: cost of so many decoding rows, by mode
    round_ms: np.ndarray  # float64[2, n_slots + 1]: of a round that serves so many once
    group: np.ndarray  # int64[2, n_slots + 1]: how many of so many go first
    turn: np.ndarray  # int64[n_slots]: the least goes first
    due_ns: np.ndarray  # int64[n_slots]: what the next token is due after: the last one's time
    late_ms: np.ndarray  # float64[n_slots]: by which the last tokens were later than their pace
    told_ns: np.ndarray  # int64[n_slots]: time of the last token that ``late_ms`` counts
    # of rows that had a prompt in the last tick
    whose: np.ndarray  # int64[n_slots]: ``arrival``; 0 = it had none
    owner: np.ndarray  # int64[n_slots]: ``program``
    left: np.ndarray  # float64[n_slots]: tokens that were not computed, by weight
    whole: np.ndarray  # int64[n_slots]: tokens that were not computed when the prompt came
    ahead: np.ndarray  # int64[n_slots]: prompts of programs that have had less go first
    since_ns: np.ndarray
    kept: Kept
    accounts: np.ndarray  # Account[ACCOUNTS]

    @classmethod
    def fresh(cls, n_slots: int) -> Memory:
        n = max(n_slots, 1)
        return cls(
            np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(KINDS, np.int64),
            np.zeros(KINDS), np.zeros(n), np.zeros((2, n + 1)), np.zeros((2, n + 1)),
            np.zeros((2, n + 1), np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
            np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
            np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64),
            np.zeros(5, np.int64), Kept.zeros(),
            Account.several(ACCOUNTS),
        )  # fmt: skip


ACCOUNTS = 32  # programs that are told apart

BACK_WAIT_MS = 1000.0  # background that waited so long gets its smallest slice

SINCE_DECODE = 0  # background decoders
SINCE_PROMPT = 1  # background prompts
SINCE_INTERACTIVE = 2  # interactive prompts
SINCE_BESIDE = 3  # background prompts between the ticks
SINCE_ANYBODY = 4  # interactive work of any kind

KIND_NONE = 0
KIND_DECODE = 1  # interactive, next token
KIND_BACK_DECODE = 2
KIND_PROMPT = 3  # interactive, prompt not computed yet
KIND_BACK_PROMPT = 4
KIND_ISOLATED = 5
KIND_ASIDE = 6  # interactive or not: beside the ticks
KINDS = 7
