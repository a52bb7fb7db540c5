"""Records that the compiled ticks are given and hand back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import types
from numba.experimental import structref

from umaserve.drafts.wanted import MOST
from umaserve.engine.drafting.records import Drafts
from umaserve.engine.drafting.speaker import Speaker
from umaserve.engine.model.thread_places import Places
from umaserve.engine.native.batch import BatchArrays
from umaserve.engine.native.calls import Native
from umaserve.engine.prefill.orders import Orders
from umaserve.engine.samplers.rows import RowPool
from umaserve.jit.compiled import njit
from umaserve.jit.record import Record
from umaserve.llama.traffic import Traffic
from umaserve.policy.base import Knobs, Memory, Plan, PlanInfo, SchedulerState
from umaserve.policy.bytes.bandwidth import Budget
from umaserve.policy.cost.model import CostModel
from umaserve.sampling.sampler import Rows, Scratch
from umaserve.wire import table as t
from umaserve.wire.header import AbortWords, Header

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded

# why the loop came back
NOTHING = 0  # no row can run
ATTENTION = 1  # the front, the tokeniser or the prefill worker has something
ENDED = 2  # rows ended, ``out.ended`` of them, or are stuck: ``out.without_choice`` of them
FAILED = 3  # ``out.status``: see `umaserve.engine.native.status`
NO_ROOM = 4  # the plan's tokens do not fit the free KV cells
ENOUGH = 5  # as many ticks as were asked for
ABORTED = 6  # the tick was given up for an interactive request
UNDER_WAY = 7  # as ATTENTION, with a decode submitted meanwhile: to be called again with RESUME
NOT_NUMBERS = 8  # as ENDED, and the logits of some rows are no numbers
GOES_ON = -1  # within the loop: the tick has more phases
WAITED = -3  # within the loop: there may be something to plan now
RESUME = -2  # instead of a plan


class Outcome(Record):
    """Why the loop came back, in numbers."""

    ended: int  # rows, in ``Work.ended``
    status: int  # of llama_decode, see `umaserve.engine.native.status`
    entries: int  # of the plan that did not run
    without_numbers: int  # rows, in ``batch.out_slot``, whose logits are no numbers
    without_choice: int  # rows, in ``Work.stuck``, whose constraint gave them no token


class Flight(Record):
    """State that ticks hand on to the next tick, and phases to the next phase."""

    parity: int  # which half of ``facts`` and ``info`` is the tick's
    entries: int  # of its plan
    outputs_sent: int  # rows with logits
    logits: int  # address of the first
    apart: int  # address of the context of the row apart; 0 = there is none
    context: int  # address of the context that computes this tick
    settled: int  # rows that have their token
    must_stop: int  # ATTENTION may not wait for another tick
    unpublished: int  # the front was not told of the tick before
    flying: int  # the loop comes back once the next tick was submitted
    awaited: int  # whether an interactive request is being tokenised
    mode: int  # what the threads are set for
    width: int  # tokens that a prompt alone is filled up to, see `ready_graph`; 0 = none
    last_shape: int  # decoding rows of the tick before; -1 = it had prompt tokens too
    unlike: int  # ticks to come that say nothing about others
    bytes_left: float  # the bucket of the bandwidth budget
    bucket_ns: int  # when it was last filled


class Facts(Record):
    """Facts of a tick, kept until it is accounted for; times by the monotonic clock."""

    began_ns: int
    submitted_ns: int
    returned_ns: int  # from llama_decode, which may be before the work is done
    decoded_ns: int
    sampled_ns: int
    tokens: int
    filled: int  # tokens of nobody's behind them
    outputs: int  # rows with logits
    decoding_rows: int
    drafted: int  # tokens behind theirs that were drafted
    taken: int  # of these, those that a row got
    rounds_ns: int  # that sampling them took, behind the first token of each row
    cells_read: int  # KV cells of the rows
    cells_used: int  # by all sequences, before
    attended: int  # cells of each row times its tokens
    disturbed: int  # 1: it says nothing about others
    slice_ns: int  # that chunks had before it
    speech_ns: int  # that a draft model had before it
    heard_ns: int  # that taking its hidden states took, behind its sampling
    changed: int  # ticks left after a change of shape
    may_draft: int  # 1: drafts may be in such ticks, and change their shape


class Columns(NamedTuple):
    """The session table, in the form that compiled code takes (borrowed)."""

    header: Header
    abort: AbortWords
    ticks: np.ndarray
    reason: np.ndarray
    seq: np.ndarray
    n_prompt: np.ndarray
    n_tokens: np.ndarray
    n_past: np.ndarray
    more_cells: np.ndarray
    checkpoint: np.ndarray
    max_tokens: np.ndarray
    shifts: np.ndarray
    in_tick: np.ndarray
    isolate: np.ndarray
    t_first_ns: np.ndarray
    t_last_ns: np.ndarray
    arrival: np.ndarray
    program: np.ndarray
    speculate: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    tokens: np.ndarray
    token_ns: np.ndarray
    logprob: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    @classmethod
    def of(cls, table: t.SessionTable) -> Columns:
        records = table.header.record, table.abort.record
        return cls(*records, *(getattr(table, name) for name in cls._fields[len(records) :]))


class Fixed(NamedTuple):
    """Values that do not change while a model is loaded."""

    n_vocab: int
    n_ctx: int
    threads: int  # of single-row ticks
    threads_batch: int  # of others
    threads_left: int  # of all, while a prompt is computed aside
    spare: int  # a KV sequence that is nobody's


class Work(NamedTuple):
    """Arrays that one tick hands to the next step, allocated once.

    ``addresses`` int64 and ``sampled`` int32: one for each token that a tick samples.  ``ended``,
    ``stuck`` int32[n_slots]; ``resumed_at`` int32[n_slots] lives as long as the rows; ``is_eog``
    uint8[n_vocab].  ``facts`` (Facts[2]) and ``info`` (PlanInfo[2]) keep a tick and the one before
    apart.
    """

    addresses: np.ndarray
    sampled: np.ndarray
    ended: np.ndarray
    stuck: np.ndarray
    resumed_at: np.ndarray
    is_eog: np.ndarray
    out: Outcome
    facts: np.ndarray
    info: np.ndarray
    flight: Flight

    @classmethod
    def allocate(cls, loaded: Loaded, resumed_at: np.ndarray) -> Work:
        """``resumed_at`` int32[n_slots] is somebody else's; its length is that of all others."""
        n_slots = resumed_at.size
        return cls(
            addresses=np.zeros(n_slots + MOST, np.int64),
            sampled=np.zeros(n_slots + MOST, np.int32),
            ended=np.zeros(n_slots, np.int32),
            stuck=np.zeros(n_slots, np.int32),
            resumed_at=resumed_at,
            is_eog=loaded.is_eog,
            out=Outcome.zeros(),
            facts=Facts.several(2),
            info=PlanInfo.several(2),
            flight=Flight.zeros(),
        )


class Loop(NamedTuple):
    """All that the compiled ticks are given; one argument, since they are many (borrowed)."""

    fixed: Fixed
    native: Native
    places: Places
    pool: RowPool
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
    rows: Rows
    scratch: Scratch
    work: Work
    drafts: Drafts
    speaker: Speaker


@structref.register
class LoopType(types.StructRef):
    """Type of a `Loop` in compiled code: an address, and where each record lies behind it.

    Each phase of a tick takes all records.  A tuple of them would be a thousand words for each
    phase, which take seconds to compile.
    """


class LoopReference(structref.StructRefProxy):
    """Reference to a `Loop` in Python, which only hands it on."""


structref.define_proxy(LoopReference, LoopType, list(Loop._fields))


@njit(cache=True, _nrt=True)
def refer(loop):
    """Return a reference to the records, for `ticks`; it keeps their arrays alive."""
    return LoopReference(*loop)
