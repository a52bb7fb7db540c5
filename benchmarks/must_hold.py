"""What the scheduler has to hold, on two cores and on an accelerator, against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.names import OURS

Result = Mapping[str, Any]
HEAD = ["figure", "limit", "measured", "holds"]
MISSED = "**no**"


class Demand(NamedTuple):
    """``cpu`` and ``accelerator`` are the limits (None: none), the most where ``at_most``; ``read``
    takes the result of the benchmark of that name and gives None for what was not measured."""

    text: str
    benchmark: str
    cpu: float | None
    accelerator: float | None
    at_most: bool
    read: Callable[[Result], float | None]


def _ours(name: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        found = result["figures"].get(name, {}).get(OURS)
        return found["median"] if found else None

    return read


def _median(*path: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        value: Any = result
        for key in path:
            value = value.get(key) if value else None
        return value["median"] if value else None

    return read


def _worst_used(result: Result) -> float | None:
    return min(result.get("used_of_free", {}).values(), default=None)


def _worst_first_token(result: Result) -> float | None:
    """Of the lengths of a lone prompt, the one that is worst against llama-server."""
    return max((r["median"] for r in result.get("ours_over_theirs", {}).values()), default=None)


DEMANDS = (
    Demand("storm, 2 clients: interactive p95 / alone", "storm", 1.25, 1.2, True,
           _ours("p95_ratio@2")),
    Demand("storm, 2 clients: longest pause / alone", "storm", 2.5, 2.0, True,
           _ours("longest_ratio@2")),
    Demand("storm, 8 clients: interactive p95 / alone", "storm", 1.3, 1.2, True,
           _ours("p95_ratio@8")),
    Demand("storm, 8 clients: longest pause / alone", "storm", 3.0, 2.0, True,
           _ours("longest_ratio@8")),
    Demand("storm: prompt tokens/s beside the stream / what the cap leaves free", "storm", 0.8,
           0.8, False, _worst_used),
    Demand("storm, 2 clients: prompt tokens/s after the stream / llama-server's", "storm", 0.95,
           0.95, False, _median("after_ours_over_theirs", "2")),
    Demand("storm, 8 clients: prompt tokens/s after the stream / llama-server's", "storm", 0.95,
           0.95, False, _median("after_ours_over_theirs", "8")),
    Demand("mixed: p95 of the three / without the long job", "mixed", 1.25, 1.2, True,
           _ours("p95_ratio")),
    Demand("mixed: first token that meets a long prompt / alone", "mixed", 2.0, 1.5, True,
           _ours("first_ratio")),
    Demand("mixed: generated tokens/s / each app separate", "mixed", 1.3, 1.3, False,
           _median("mixed_tokens_per_s_over_separate")),
    Demand("mixed: RSS / that of four apps", "mixed", 0.35, None, True,
           _median("rss_over_separate")),
    Demand("first token of a lone prompt / llama-server's, the worst length", "first_tokens", 1.05,
           1.0, True, _worst_first_token),
    Demand("first token of 16 words beside two streams / alone", "first_tokens", 1.5, 1.5, True,
           _ours("times_streams")),
    Demand("first token of 16 words beside a document / alone", "first_tokens", 2.0, 2.0, True,
           _ours("times_document")),
    Demand("agent chain: makespan beside 4 decoders / alone", "agent_chain", 1.5, 1.3, True,
           _ours("makespan_ratio")),
    Demand("background only, 8 streams: tokens/s / llama-server's", "sweep", 1.0, 1.5, False,
           _median("tokens_ours_over_theirs", "8")),
    Demand("storm without labels: the stream's p95 / alone", "unlabelled", 1.3, 1.3, True,
           _ours("p95_ratio")),
    Demand("storm without labels: longest pause / alone", "unlabelled", 3.0, 3.0, True,
           _ours("longest_ratio")),
    Demand("a stream beside 8 streams and prompts of another program: tokens/s / beside one",
           "two_apps", 0.8, 0.8, False, _ours("share")),
)  # fmt: skip


def verdict(demand: Demand, value: float | None, accelerator: bool) -> str:
    """Whether a figure holds, compared as it is shown."""
    most = demand.accelerator if accelerator else demand.cpu
    if value is None or value != value:
        return "not measured"
    if most is None:
        return "-"
    seen = float(shown(value))
    return "yes" if (seen <= most if demand.at_most else seen >= most) else MISSED


def limit(demand: Demand, accelerator: bool) -> str:
    """The limit of a figure on an accelerator or a processor, in words."""
    number = demand.accelerator if accelerator else demand.cpu
    sign = "at most" if demand.at_most else "at least"
    return "-" if number is None else f"{sign} {number:g}"


def shown(value: float) -> str:
    """A figure of a table of promises, with three digits."""
    return f"{value:.3g}"


def lines(results: Mapping[str, Result]) -> list[list[str]]:
    """Rows of figure, limit, measured, verdict, from the results of one model by benchmark."""
    accelerator = any(r["accelerator"] for r in results.values())
    out = []
    for demand in DEMANDS:
        result = results.get(demand.benchmark)
        value = demand.read(result) if result is not None else None
        out.append(
            [
                demand.text,
                limit(demand, accelerator),
                "-" if value is None else shown(value),
                verdict(demand, value, accelerator),
            ]
        )
    return out
