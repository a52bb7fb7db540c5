"""How long a piece of work beside the requests may be: what streams leave of their cap.

The rule is the latency guard's (`umaserve.policy.latency_guard`), for time before a tick instead of
passengers in it.  Each stream is due at its last token plus the cap times the baseline.  What is
left until then, less the turns that it waits for, is its slack.  The policy sees what a piece took:
a stream's last token is longer ago, and less may ride.
"""

from __future__ import annotations

import math
import time

import numpy as np

from umaserve.engine.aside.lane import Allowed
from umaserve.policy.base import KIND_DECODE, Knobs, Memory
from umaserve.policy.latency_guard import SPARE
from umaserve.wire import table as t

HARD = 1.9  # times the baseline: a piece on credit makes no pause longer than that
NOTHING, ALL = Allowed(0.0, 0.0), Allowed(math.inf, math.inf)


def allowed_now(
    table: t.SessionTable, memory: Memory, knobs: Knobs, awaited: int, tick: int
) -> Allowed:
    """Time of a piece that begins now; ``awaited``: interactive requests that are being tokenised.

    `NOTHING` while an interactive request waits for its first token; `ALL` while no interactive
    request has work.  Where background requests ride with streams, they have every other ``tick``,
    and a piece has none of it.
    """
    live = (table.state == t.RUNNING) | (table.state == t.WAITING)
    slots = np.flatnonzero(live & (table.lane == 0))
    if not slots.size:
        return NOTHING if awaited else ALL
    decodes = (table.state[slots] == t.RUNNING) & (table.n_tokens[slots] - table.n_past[slots] == 1)
    if awaited or not decodes.all():
        return NOTHING
    if tick % 2 and ((table.state == t.RUNNING) & (table.lane == 1)).any():
        return NOTHING
    n = slots.size
    known = n < memory.round_ms.shape[1] and memory.found[KIND_DECODE] == n
    base_ms = float(memory.round_ms[0, n]) if known else 0.0
    base_ms = base_ms or table.header.baseline_ns / 1e6 or table.header.last_decode_ns / 1e6
    group = max(int(memory.group[0, n]) if known else n, 1)
    return _slack(table, slots, knobs.latency_cap, base_ms, group)


def _slack(
    table: t.SessionTable, slots: np.ndarray, daemon_cap: float, base_ms: float, group: int
) -> Allowed:
    """The least of all streams: within the cap, or within twice the baseline on credit."""
    slots = slots[np.argsort(table.t_last_ns[slots])]
    now_ns, turns = time.monotonic_ns(), -(-slots.size // group)
    within_cap = within_budget = math.inf
    for at, slot in enumerate(slots.tolist()):
        since_ms = (now_ns - int(table.t_last_ns[slot])) / 1e6 if table.t_last_ns[slot] else 0.0
        need_ms = base_ms * (at // group + 1) / turns
        gap_ms = (float(table.cap[slot]) or daemon_cap) * base_ms
        target_ms = float(table.target_tbt_ms[slot])
        if target_ms > 0.0:
            gap_ms = min(gap_ms, max(target_ms, base_ms))
        within_cap = min(within_cap, gap_ms - since_ms - need_ms)
        within_budget = min(within_budget, max(HARD * base_ms, gap_ms) - since_ms - need_ms)
    most_ms = (HARD - 1.0 - SPARE) * base_ms
    on_credit = float(table.credit[slots].min()) >= 2.0
    now_ms = (within_budget if on_credit else within_cap) - SPARE * base_ms
    return Allowed(max(now_ms, 0.0), most_ms)
