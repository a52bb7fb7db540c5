"""What a latency cap leaves free for prompts, by what ticks cost on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SLOW_SHARE = 0.05
"""Of the gaps, how many may be longer than the cap: what lies above a 95th percentile."""

LONGEST = 2.0
"""No gap may be longer than this, times the baseline."""


class Tick(NamedTuple):
    """Milliseconds of one shape of tick: on average, and what 19 of 20 stay under."""

    mean_ms: float
    p95_ms: float


class Aside(NamedTuple):
    """A stream of one row while cores of their own compute prompts: its tick, and their rate."""

    tick: Tick
    prompt_tokens_per_s: float


@dataclass(frozen=True)
class Costs:
    """Measured ticks of the bare library.

    ``ticks[rows, prompt_tokens]`` for rows 0 (prompt tokens alone) and 1 (with the row of one
    stream); ``ticks[1, 0]`` is the stream alone and must be there.
    """

    ticks: Mapping[tuple[int, int], Tick]
    asides: tuple[Aside, ...] = field(default=())

    @property
    def baseline(self) -> Tick:
        return self.ticks[1, 0]


class Way(NamedTuple):
    """How to spend the time between two tokens of the stream: how long, for how many tokens."""

    mean_ms: float
    p95_ms: float
    prompt_tokens: float


def ways(costs: Costs) -> Iterator[Way]:
    """All that can happen between two tokens of the stream.

    A tick with its row and any measured number of prompt tokens, after that at most one tick of
    prompt tokens alone; or a tick beside which other cores compute prompts.  95th percentiles of
    two ticks are added, which is more than that of their sum.
    """
    alone = [Way(t.mean_ms, t.p95_ms, n) for (rows, n), t in costs.ticks.items() if rows == 0]
    for (rows, n), tick in costs.ticks.items():
        if rows != 1:
            continue
        yield Way(tick.mean_ms, tick.p95_ms, n)
        for more in alone:
            yield Way(
                tick.mean_ms + more.mean_ms, tick.p95_ms + more.p95_ms, n + more.prompt_tokens
            )
    for tick, rate in costs.asides:
        yield Way(tick.mean_ms, tick.p95_ms, rate * tick.mean_ms / 1e3)


class Mix(NamedTuple):
    """The best use of the free time: mostly ``usual``, ``slow_share`` of the gaps ``slow``."""

    prompt_tokens_per_s: float
    usual: Way
    slow: Way | None
    slow_share: float


def best_mix(costs: Costs, cap: float) -> Mix:
    """Most prompt tokens per second beside one stream, under the two constraints.

    With b the baseline's 95th percentile: a way whose 95th percentile stays under cap x b may
    always be taken, one under 2 x b in 5 % of the gaps.  The rate of a mix is a ratio of two sums
    that are linear in the shares, and the shares obey two constraints; such a ratio is largest
    where at most two of the ways are used.  So all pairs are tried.  The stream alone is always
    allowed, whatever the cap.
    """
    b = costs.baseline.p95_ms
    solo = Way(*costs.baseline, 0)
    found = list(ways(costs))
    usual = [solo, *(w for w in found if w.p95_ms <= cap * b and w.p95_ms <= LONGEST * b)]
    slow = [w for w in found if cap * b < w.p95_ms <= LONGEST * b]
    best = Mix(0.0, solo, None, 0.0)
    for way in usual:
        rate = 1e3 * way.prompt_tokens / way.mean_ms
        if rate > best.prompt_tokens_per_s:
            best = Mix(rate, way, None, 0.0)
        for other in slow:
            tokens = (1 - SLOW_SHARE) * way.prompt_tokens + SLOW_SHARE * other.prompt_tokens
            time_ms = (1 - SLOW_SHARE) * way.mean_ms + SLOW_SHARE * other.mean_ms
            if 1e3 * tokens / time_ms > best.prompt_tokens_per_s:
                best = Mix(1e3 * tokens / time_ms, way, other, SLOW_SHARE)
    return best


def free_prompt_rate(costs: Costs, cap: float) -> float:
    """Prompt tokens per second that fit beside one stream: 95 % of its gaps within ``cap`` times
    its baseline, all within twice the baseline.  `best_mix` says how."""
    return best_mix(costs, cap).prompt_tokens_per_s
