"""Results of `umaserve bench` that were never measured."""

from __future__ import annotations

from umaserve.bench.load import Sample
from umaserve.bench.result import Result
from umaserve.bench.timeline import Answer, Phase

ORIGIN_S = 1000.25


def answer(
    name: str,
    gaps_ms: list[float],
    begin_s: float,
    *,
    interactive: bool = True,
    first_ms: float = 50,
) -> Answer:
    """One that runs on, with a first token after ``first_ms``."""
    times = [begin_s + first_ms / 1e3]
    for ms in gaps_ms:
        times.append(times[-1] + ms / 1e3)
    return Answer(name, f"{name}.1", interactive, begin_s, times)


def samples(count: int = 40, *, now: int = 0, total: int = 0) -> list[Sample]:
    """Readings each half second: 10 ticks between two, of 30 rows, 7 and 5 prompt tokens."""
    out = []
    for i in range(count):
        metrics = {
            "batch_calls_total": 10 * i,
            "tokens_generated_total": 30 * i,
            "prompt_tokens_computed_total": 12 * i,
            "aside_prompt_tokens_total": 5 * i,
            "uptime_s": 3.0 + 0.5 * i,
        }
        ticks = {"count": 20, "mean_ms": 5.0, "longest_ms": 9.0, "allowed_ms": None}
        out.append(Sample(ORIGIN_S + 0.5 * i, metrics, ticks, now, total))
    return out


def made(
    alone_ms: list[float],
    mixed_ms: list[float],
    *,
    cap: float = 1.2,
    background: int = 0,
    unlabelled_ms: list[float] | None = None,
    found: list[Sample] | None = None,
    daemon: dict[str, float | None] | None = None,
    used_by_others: float = 0.0,
) -> Result:
    """A run of one interactive stream whose phases have these times between tokens; those of the
    last phase are the mixed ones where not given."""
    first = answer("interactive1", alone_ms, ORIGIN_S)
    second = answer("interactive1", mixed_ms, first.times_s[-1] + 0.001)
    first.end_s, second.end_s = first.times_s[-1], second.times_s[-1]
    seen = [first, second]
    for i in range(background):
        seen.append(answer(f"background{i}", [3.0] * 50, second.sent_s, interactive=False))
    read_s = second.times_s[-1]
    third = answer("unlabelled1", mixed_ms if unlabelled_ms is None else unlabelled_ms, read_s + 3)
    seen += [third, answer("storm1", [4.0] * 50, read_s + 3, interactive=False)]
    alone = Phase("alone", ORIGIN_S, first.times_s[-1])
    mixed = Phase("mixed", alone.end_s, second.times_s[-1])
    return Result(
        command="umaserve bench",
        machine={"model": "a model", "backend": "cpu", "processor": "p", "date": "today"},
        settings={"seconds": 1.0, "interactive": 1, "background": background},
        own_daemon=True,
        cap=cap,
        origin_s=ORIGIN_S,
        alone=alone,
        mixed=mixed,
        unlabelled=Phase("unlabelled", third.sent_s, third.times_s[-1]),
        answers=seen,
        samples=samples() if found is None else found,
        first_tokens={"alone": [first], "mixed": [second]},
        daemon={"uptime_s": 500.0, "latency_cap": 1.2, "reading_ms": 25.0, **(daemon or {})},
        read_s=mixed.end_s,
        used_by_others=used_by_others,
    )
