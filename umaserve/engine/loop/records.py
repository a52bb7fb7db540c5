"""What the compiled ticks are given, and what they say when they come back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numba.experimental import structref

from umaserve.engine.cells.cell_map import CellMap
from umaserve.engine.cells.held_span import Span
from umaserve.engine.native.batch import BatchArrays
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill.orders import Orders
from umaserve.engine.samplers.rows import RowPool
from umaserve.jit.compiled import njit
from umaserve.llama.traffic import Traffic
from umaserve.policy.base import Knobs, Memory, Plan, SchedulerState
from umaserve.policy.bytes.bandwidth import Budget
from umaserve.policy.cost.model import CostModel
from umaserve.sampling.params import Settings
from umaserve.sampling.sampler import Scratch
from umaserve.wire import table as t

# why the loop came back
NOTHING = 0  # no row can run
ATTENTION = 1  # the front, the tokeniser or the prefill worker has something
ENDED = 2  # rows ended: ``out[OUT_ENDED]`` of them
FAILED = 3  # ``out[OUT_STATUS]``: what llama_decode says, or NO_LOGITS
NO_ROOM = 4  # the plan's tokens do not fit the free KV cells
ENOUGH = 5  # as many ticks as were asked for
ABORTED = 6  # the tick was given up for an interactive request
UNDER_WAY = 7  # as ATTENTION, with a decode submitted meanwhile: to be called again with RESUME
NOT_NUMBERS = 8  # as ENDED, and ``out[OUT_WITHOUT]`` rows, in ``batch.out_slot``, have no numbers
GOES_ON = -1  # within the loop: the tick has more phases
WAITED = -3  # within the loop: there may be something to plan now
RESUME = -2  # instead of a plan

NO_LOGITS = 1 << 20  # instead of a status: llama_get_logits_ith has none of a decoded batch

OUT_ENDED = 0
OUT_STATUS = 1
OUT_ENTRIES = 2
OUT_WITHOUT = 3

# words of ``Work.flight``: what the phases of a tick hand on
# PARITY: which half of ``facts`` and ``info`` is the tick's
# ENTRIES: of its plan; OUTPUTS_SENT: rows with logits, which lie from address LOGITS on; SETTLED:
# how many of these have their token
# TURNS: ``Orders.turns`` when the tick began; USUAL: whether it says something about others
# MUST_STOP: ATTENTION may not wait for another tick
# UNPUBLISHED: the front was not told of the tick before
# FLYING: the loop comes back once the next tick was submitted
(
    PARITY, ENTRIES, OUTPUTS_SENT, TURNS, USUAL, MUST_STOP, LOGITS, SETTLED, UNPUBLISHED, FLYING,
) = range(10)  # fmt: skip
FLIGHT = 10


class Columns(NamedTuple):
    """The session table, in the form that compiled code takes (borrowed)."""

    header: np.ndarray
    ticks: np.ndarray
    reason: np.ndarray
    seq: np.ndarray
    n_prompt: np.ndarray
    n_tokens: np.ndarray
    n_past: np.ndarray
    max_tokens: np.ndarray
    in_tick: np.ndarray
    isolate: np.ndarray
    t_first_ns: np.ndarray
    t_last_ns: np.ndarray
    tokens: np.ndarray
    token_ns: np.ndarray
    logprob: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    @classmethod
    def of(cls, table: t.SessionTable) -> Columns:
        return cls(*(getattr(table, name) for name in cls._fields))


class Fixed(NamedTuple):
    """What does not change while a model is loaded."""

    n_vocab: int
    n_ctx: int
    budget_ms: float
    overlap: bool  # the backend returns before the work is done
    threads: int  # of single-row ticks
    threads_batch: int  # of others
    threads_beside: int  # of all, while a prompt is computed aside
    wide_reads: bool  # attention reads the whole span of KV cells, not a sequence's own
    spare: int  # a KV sequence that is nobody's


class Work(NamedTuple):
    """Arrays that one tick hands to the next step, allocated once.

    ``addresses`` int64, ``sampled``, ``ended`` int32: [n_slots]; ``served`` int64[n_slots] and
    ``resumed_at`` int32[n_slots] live as long as the rows; ``eog_ids`` int32, ``is_eog``
    uint8[n_vocab]; ``out`` int64[4]: see OUT_*.  ``facts`` int64[2, FACTS] and ``info``
    float64[2, INFO_WORDS] keep a tick and the one before apart; ``mode`` int64[1] is what the
    threads are set for; ``aside`` int32[n_slots]: 1 = that prompt is computed aside,
    -1 = it cannot be; ``bytes_left`` float64[2]: the bucket of the bandwidth budget, and ns of its
    last filling; ``unlike`` int64[1]: so many ticks to come say nothing about others; ``shape``
    int64[1]: decoding rows of the tick before, -1 = it had prompt tokens too;
    ``awaited`` int64[1]: whether an interactive request is being tokenised; ``width`` int64[1]:
    tokens that a prompt alone is filled up to in the first tick, see `ready_graph`; 0 = none;
    ``flight`` int64[FLIGHT].
    """

    addresses: np.ndarray
    sampled: np.ndarray
    ended: np.ndarray
    served: np.ndarray
    resumed_at: np.ndarray
    eog_ids: np.ndarray
    is_eog: np.ndarray
    out: np.ndarray
    facts: np.ndarray
    info: np.ndarray
    mode: np.ndarray
    aside: np.ndarray
    bytes_left: np.ndarray
    unlike: np.ndarray
    shape: np.ndarray
    awaited: np.ndarray
    width: np.ndarray
    flight: np.ndarray


class Loop(NamedTuple):
    """All that the compiled ticks are given; one argument, since they are many (borrowed)."""

    fixed: Fixed
    native: Native
    places: np.ndarray  # of threads, see `umaserve.engine.model.thread_places`
    pool: RowPool
    cells: CellMap
    span: Span
    columns: Columns
    state: SchedulerState
    plan: Plan
    batch: BatchArrays
    knobs: Knobs
    cost: CostModel
    memory: Memory
    traffic: Traffic
    budget: Budget
    orders: Orders
    settings: Settings
    scratch: Scratch
    work: Work


@structref.register
class LoopType(types.StructRef):
    """What compiled code takes for a `Loop`: an address, and where each record lies behind it.

    Each phase of a tick takes all records.  As a tuple they would be a thousand words for each of
    them, which take seconds to compile.
    """


class LoopReference(structref.StructRefProxy):
    """The same in Python, which only hands it on."""


structref.define_proxy(LoopReference, LoopType, list(Loop._fields))


@njit(cache=True)
def refer(loop):
    """A reference to the records, for `umaserve.engine.loop.ticks`; it keeps their arrays alive."""
    return LoopReference(*loop)
