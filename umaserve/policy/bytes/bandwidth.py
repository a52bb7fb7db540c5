"""ΣBMT: the bytes a tick moves, what fits under a bandwidth budget, and what that budget is.

``traffic`` is a ``umaserve.llama.traffic.Traffic``.  A tick reads

- the dense weights, once per graph;
- those experts that any of its tokens is routed to;
- the output matrix, when it has outputs;
- the KV cells of its sequences.

It writes the cells of its tokens and the logits.

Every graph's attention spans all cells of the unified cache up to the highest one used, padded to
256 (llama.cpp's ``llama_kv_cache::get_n_kv``).  A mask says which of them a token sees.

- The processor's flash attention skips a masked cell before it touches K or V
  (``ggml_compute_forward_flash_attn_ext_f16_one_chunk``).  With 64 and more tokens, it skips whole
  masked tiles of 64.  So a tick reads its own sequences' cells.  It reads them once: the heads of
  a group and the tokens of a chunk come back to them while they are in a cache.
- CUDA looks for masked ends only from 1024 tokens on, and attention without flash attention never
  does.  There a tick reads the whole span.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from umaserve.config.kinds import bytes_per_second
from umaserve.jit.compiled import njit

KV_PAD = 256  # llama_kv_cache::get_n_kv
LOGITS_PASSES = 3  # computed, and copied to where they are read: written, read, written

CLASSES = 12  # of ticks by tokens: 1, 2-3, 4-7, ..., 2048 and more
WINDOW = 64  # ticks of a class that count
QUANTILE = 0.9
FEWEST = 8  # ticks before a class is believed
EVERY = 4  # ticks of a class between two looks at its quantile, once its window is full
FORGET = 0.9999  # per tick, of what classes that were not part of it achieved
HEADROOM = 1.25  # an automatic budget lies above what was achieved, so that more can be achieved
PROBE_SHARE = 0.5  # ticks below this share of the probe are not bound by bandwidth

OFF, GIVEN, AUTO = 0.0, 1.0, 2.0
_MODE, _GIVEN, _PROBE, _LEVEL, _BYTES, _NS = range(6)
_RECENT = 0.95  # per tick, of the sums behind `measured_bps`


@njit(nogil=True, cache=True)
def expected_experts(n_expert, n_used, tokens):
    """Distinct experts that ``tokens`` tokens are routed to in one layer.

    ``E * (1 - (1 - k/E)**n)``: each token picks k of E experts uniformly, and independently of the
    others.  Real routing is more concentrated (prompts of one subject share experts), so this is
    nearer an upper bound.
    """
    if n_expert <= 0.0 or tokens <= 0.0:
        return 0.0
    share = min(n_used / n_expert, 1.0)
    return n_expert * (1.0 - (1.0 - share) ** tokens)


@njit(nogil=True, cache=True)
def attention_span(cells_end, n_ctx):
    """Cells that attention spans when ``cells_end`` is one past the highest cell used.

    At least the cells used; more where freed cells lie between them.
    """
    padded = -(-max(cells_end, 1) // KV_PAD) * KV_PAD
    return min(padded, n_ctx)


@njit(nogil=True, cache=True)
def weight_bytes(traffic, rows_out, tokens):
    """Weights that a batch reads: ``rows_out`` outputs, ``tokens`` of all kinds.

    Without outputs, the last layer's feed-forward is not read either; that is left in.  A batch
    beyond ``n_ubatch`` tokens is computed as several graphs.  Its outputs are taken to be
    in one of them, as decoding rows are when they come first.
    """
    if tokens <= 0:
        return 0.0
    full = math.floor(tokens / traffic.n_ubatch)
    rest = tokens - full * traffic.n_ubatch
    n, k = traffic.n_expert, traffic.n_expert_used
    moved = full * (traffic.dense + traffic.expert * expected_experts(n, k, traffic.n_ubatch))
    if rest > 0:
        moved += traffic.dense + traffic.expert * expected_experts(n, k, rest)
    if rows_out > 0:
        moved += traffic.head
    return moved


@njit(nogil=True, cache=True)
def tick_bytes(traffic, rows_out, tokens, kv_cells_read, kv_cells_written, kv_span=0.0):
    """Bytes of one tick, float64.

    ``rows_out``: tokens whose logits are asked for.  ``tokens``: of all kinds, decoding rows among
    them.  ``kv_cells_read``: sum over the tick's sequences of the cells they hold afterwards where
    masked cells are skipped, else the span once (see the module).  ``kv_cells_written``: its
    tokens.  ``kv_span`` is what the mask is built for; 0 leaves the mask out.
    """
    if tokens <= 0:
        return 0.0
    return (
        weight_bytes(traffic, rows_out, tokens)
        + tokens * (traffic.embedding + traffic.activation + kv_span * traffic.mask_cell)
        + (kv_cells_read + kv_cells_written) * traffic.kv_cell
        + rows_out * LOGITS_PASSES * traffic.logits
    )


@njit(nogil=True, cache=True)
def budget_bytes(bps, ms):
    """Bytes that may move in ``ms`` milliseconds at ``bps`` bytes/s; inf where that is 0."""
    if bps <= 0.0:
        return np.inf
    return bps * max(ms, 0.0) * 1e-3


@njit(nogil=True, cache=True)
def prompt_tokens_within(traffic, budget, rows, kv_cells_read, most):
    """Most prompt tokens, up to ``most``, that ride with ``rows`` decoding rows within ``budget``.

    ``kv_cells_read``: as for `tick_bytes`, without the prompt tokens themselves.  0 where not even
    the rows fit: these are not ours to refuse.
    """
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        read = kv_cells_read + middle
        if tick_bytes(traffic, rows, rows + middle, read, rows + middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


class Budget(NamedTuple):
    """The governor's state.  One instance per engine.

    ``figures`` float64[6]: mode, given and probed bytes/s, what ticks achieve, and decaying sums of
    bytes and ns.  ``window`` float64[CLASSES, WINDOW]: bytes/s of each class's newest ticks.
    ``seen`` int64[CLASSES]: ticks.  ``best`` float64[CLASSES]: their upper quantile, 0 =
    not known yet.
    """

    figures: np.ndarray
    window: np.ndarray
    seen: np.ndarray
    best: np.ndarray

    @classmethod
    def of(cls, setting: str) -> Budget:
        """From ``auto``, ``off`` or ``320GBps``, as `umaserve.config` returns them."""
        budget = cls(
            np.zeros(6), np.zeros((CLASSES, WINDOW)), np.zeros(CLASSES, np.int64), np.zeros(CLASSES)
        )
        given = bytes_per_second(setting)
        budget.figures[_MODE] = GIVEN if given else AUTO if setting == "auto" else OFF
        budget.figures[_GIVEN] = given or 0.0
        return budget

    def start_at(self, probe_bps: float) -> None:
        """Let an automatic budget start at what reading memory achieves; 0 = nobody knows.

        Without it there is none until ticks have told.
        """
        self.figures[_PROBE] = probe_bps


@njit(nogil=True, cache=True, _nrt=True)
def observe(budget, estimated_bytes, decode_ns, tokens):
    """Take one finished tick into account: its estimate, the time inside libllama, its tokens.

    Ticks are told apart by tokens, because most shapes are not bound by bandwidth.  Arithmetic,
    launches or threads that wait set their pace, and their bytes per second are low.  The limit
    shows in the fastest class.  Of each class the upper quantile of the newest ticks counts, which
    neither a stalled tick nor a clock that jumped can move.  Classes not seen lately fade.
    """
    if estimated_bytes <= 0.0 or decode_ns <= 0 or tokens <= 0:
        return
    figures = budget.figures
    figures[_BYTES] = figures[_BYTES] * _RECENT + estimated_bytes
    figures[_NS] = figures[_NS] * _RECENT + decode_ns
    kind = min(int(math.log2(tokens)), CLASSES - 1)
    seen = budget.seen[kind]
    budget.window[kind, seen % WINDOW] = estimated_bytes / (decode_ns * 1e-9)
    budget.seen[kind] = seen + 1
    held = min(seen + 1, WINDOW)
    for i in range(CLASSES):
        if i != kind:
            budget.best[i] *= FORGET
    if held >= FEWEST and (held < WINDOW or seen % EVERY == 0):
        ordered = np.sort(budget.window[kind, :held])
        budget.best[kind] = ordered[int(QUANTILE * (held - 1))]
    figures[_LEVEL] = budget.best.max()


@njit(nogil=True, cache=True)
def measured_bps(budget):
    """Bytes per second of recent ticks: estimates over the time inside libllama; 0 = none yet."""
    figures = budget.figures
    if figures[_NS] <= 0.0:
        return 0.0
    return figures[_BYTES] / (figures[_NS] * 1e-9)


@njit(nogil=True, cache=True)
def budget_bps(budget):
    """Bytes per second that ticks may move now; 0 = no budget.

    A given budget stays as it is.  An automatic one is what the fastest ticks achieve and a quarter
    more: a tick which could move more gets the chance to show it.  It starts from the probe and
    never sinks below half of that, because ticks so slow are not bound by bandwidth.
    """
    figures = budget.figures
    if figures[_MODE] == GIVEN:
        return figures[_GIVEN]
    if figures[_MODE] == OFF:
        return 0.0
    if figures[_LEVEL] <= 0.0:
        return figures[_PROBE]
    return max(figures[_LEVEL] * HEADROOM, figures[_PROBE] * PROBE_SHARE)
