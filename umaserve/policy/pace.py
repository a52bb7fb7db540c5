"""Pace of a reader: how slow streams may be while somebody waits for the first token of a prompt.

Nobody notices a mean of ``Knobs.reading_ms`` between tokens, so prompts may have all that streams
leave of it.  On a machine too slow for that, the programs that stream and the programs that wait
for a prompt share the time equally, by weight.  A single tick may be longer than the mean allows.
The tokens after it come as fast as they can until the mean holds again.
"""

from __future__ import annotations

from umaserve.jit.compiled import INNER, njit

from .base import KIND_DECODE, KIND_PROMPT
from .cost.prediction import efficient_chunk, predict
from .shares import is_first, weight_of

FAR_MS = 1e12
# Least share of the best tokens per ms that a chunk must reach, and the ms that such a chunk may
# take.  A longer one has to reach the next share only.  With 0.7 a prompt that shares a slow
# machine with one stream takes 2.9 times as long as alone, with 0.8 2.4 times.
WORTHWHILE = ((0.8, 125.0), (0.7, 400.0), (0.5, FAR_MS))
# Ms that a tick with a prompt's large chunk may take.  Streams' rows in it cost as much beside a
# small chunk, and the ticks after it take longer than usual.
LONG_MS = 60.0
OF_ROWS = 16  # a part of a graph that such a chunk leaves to streams, so that both are one graph
# Shares of the pace to plan for: predictions are not exact.  On an accelerator two ticks after a
# chunk capture their graphs anew, and take longer than predicted.
PLANNED, PLANNED_FAST = 0.95, 0.9


@njit(**INNER)
def shared_ms(state, memory, base_ms):
    """Ms between tokens that leave streams the share of their programs, beside waiting prompts.

    ``base_ms``: of a round of the streams alone.
    """
    streams, prompts = _weight(state, memory, KIND_DECODE), _weight(state, memory, KIND_PROMPT)
    return base_ms * (streams + prompts) / streams if streams > 0.0 else base_ms


@njit(**INNER)
def _weight(state, memory, kind):
    """Sum of the weights of the programs that have rows of a kind."""
    total = 0.0
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == kind and is_first(state, memory, kind, s):
            total += weight_of(state, s)
    return total


@njit(**INNER)
def mean_ms(state, knobs, s, base_ms, shared):
    """Mean ms between tokens of the stream ``s`` to plan for, while a prompt waits.

    ``shared``: `shared_ms`.
    """
    cap = state.cap[s] if state.cap[s] > 0.0 else knobs.latency_cap
    ms = max(max(cap * base_ms, knobs.reading_ms), shared)
    if state.target_tbt_ms[s] > 0.0:
        ms = min(ms, max(state.target_tbt_ms[s], base_ms))
    return ms * (PLANNED_FAST if knobs.overlaps else PLANNED)


@njit(**INNER)
def longest_ms(knobs, cost, memory, base_ms, mean, graph):
    """Ms that a tick of streams may take with a chunk of background, and with one of a prompt.

    Background has the smallest worthwhile chunk.  On an accelerator, a prompt that somebody waits
    for has more, in a tick of `LONG_MS` at most.  Most of the tokens that libllama computes at once
    (``graph``) are enough.  ``mean``, the pace of the streams, where no chunk's cost is known.
    Also keeps the tokens of the smallest worthwhile chunk in ``memory``.
    """
    past = memory.past[KIND_PROMPT]
    chunk = worthwhile_chunk(cost, past, knobs.n_batch)
    memory.kept.worthwhile = chunk
    if chunk == 0:
        return mean, mean
    least = longest = base_ms + predict(cost, 0, 0, chunk, past)
    if knobs.overlaps:
        whole = base_ms + predict(cost, 0, 0, graph - graph // OF_ROWS, past)
        longest = max(least, min(whole, LONG_MS))
    return least, longest


@njit(nogil=True, cache=True)
def worthwhile_chunk(cost, past, most):
    """Tokens of the smallest chunk that is worth a pause of a stream; 0 where no cost is known."""
    chunk = 0
    for share, most_ms in WORTHWHILE:
        chunk = efficient_chunk(cost, past, FAR_MS, most, share)
        if chunk == 0 or predict(cost, 0, 0, chunk, past) <= most_ms:
            break
    return chunk


@njit(**INNER)
def is_hurried(state, tick, memory):
    """Return True if an interactive prompt has waited for half of its ``target_ttft_ms``."""
    for s in range(memory.kind.shape[0]):
        if memory.kind[s] == KIND_PROMPT and state.target_ttft_ms[s] > 0.0:
            waited_ms = (tick.now_ns - state.t_submit_ns[s]) / 1e6
            if waited_ms > 0.5 * state.target_ttft_ms[s]:
                return True
    return False


@njit(**INNER)
def note_gap(state, memory, s, mean, longest):
    """Count by how much the last tokens of a stream were later than its pace; returns the ms."""
    last = state.t_last_ns[s]
    if last != memory.told_ns[s]:
        late = 0.0
        if memory.told_ns[s] and last:
            late = memory.late_ms[s] + (last - memory.told_ns[s]) / 1e6 - mean
        memory.late_ms[s] = min(max(late, 0.0), longest)
        memory.told_ns[s] = last
    return memory.late_ms[s]
