"""The time between tokens: a curve for each lane, quantiles, and whether the cap is held."""

from __future__ import annotations

from umaserve.dashboard.canvas.line import (
    MISSING,
    Line,
    Values,
    above,
    bar,
    chart,
    column,
    ms,
    number,
    rule,
    spaced,
)

LANES = ("interactive", "background")
LABEL = 13  # cells of what stands before a curve or a gauge
BIG = ("p50_ms", "p95_ms", "p99_ms", "worst_pause_ms", "ttft_ms_p50", "ttft_ms_p95")
TITLES = ("p50", "p95", "p99", "worst", "first", "p95")
NUMBER = 7
LONGEST_CURVE = 120
SLOW_MS = 150.0  # between tokens: a pause that a reader feels


def ceiling(metrics: Values) -> float | None:
    """The interactive p95 that the latency cap allows, in ms."""
    baseline, cap = metrics.get("baseline_ms"), metrics.get("latency_cap")
    return baseline * cap if baseline is not None and cap is not None else None


def latency(overview: Values, width: int, rows: int = 1, against_cap: bool = False) -> list[Line]:
    """The curve of each lane ``rows`` lines high, and its quantiles.

    Red is what interactive readers feel, or what is above the latency cap.
    """
    metrics = overview.get("metrics") or {}
    limit = ceiling(metrics) if against_cap else SLOW_MS
    count, curve = _numbers(width), _curve(width)
    head = rule("time between tokens, ms", LABEL + curve)
    for title in TITLES[:count]:
        head.add(column(title, NUMBER), "dim")
    lines = [head.pad(width)]
    series = overview.get("tbt_ms") or {}

    def is_red(value: float | None) -> bool:
        return is_late(metrics) if against_cap else value is not None and value > SLOW_MS

    for lane in LANES:
        values = series.get(lane) or []
        top = max([v for v in values[-curve:] if v is not None], default=0.0) if curve else 0.0
        mine = limit if lane == "interactive" else None
        if mine is not None and against_cap:
            top = max(top, 1.25 * mine)
        for row, part in enumerate(chart(values, curve, rows, top, mine)):
            last = row == rows - 1
            line = Line(column(f" {lane}" if last else "", LABEL, left=True), "bold")
            line.extend(part.pad(curve))
            if last:
                for name in BIG[:count]:
                    value = metrics.get(f"{lane}.{name}")
                    if value is None and lane == "interactive":
                        value = metrics.get(name)
                    late = mine is not None and name == "p95_ms" and is_red(value)
                    line.add(spaced(ms(value), NUMBER), "bad" if late else "")
            lines.append(line.pad(width))
    return lines


def is_late(metrics: Values) -> bool:
    """Return True where tokens came neither within the cap nor as fast as people read."""
    pace, reading = metrics.get("p95_ms"), metrics.get("reading_ms")
    return _is_over(metrics) and (pace is None or reading is None or pace > reading)


def _is_over(metrics: Values) -> bool:
    """Return True where times between tokens, over the baseline of their moment, miss the cap."""
    over, cap = metrics.get("p95_over_baseline"), metrics.get("latency_cap")
    return above(over, cap, lambda value: number(value, 2))


def cap(overview: Values, width: int) -> Line:
    """The interactive p95 over the baseline, against the latency cap."""
    metrics = overview.get("metrics") or {}
    curve = _curve(width)
    over, cap = metrics.get("p95_over_baseline"), metrics.get("latency_cap")
    style, share = "bad" if is_late(metrics) else "good", None
    text = Line()
    if over is None or cap is None:
        text.add(f"  {MISSING} of {number(cap, 2)}", "dim")
    else:
        share = over / (1.5 * cap)
        word = "OVER" if is_late(metrics) else "faster than read" if _is_over(metrics) else "held"
        text.add(f"  {number(over, 2)} of {number(cap, 2)} {word}", style)
        baseline = metrics.get("baseline_ms")
        if baseline is not None:
            text.add(f" × baseline, now {ms(baseline)} ms", "dim")
    room = max(min(curve, width - LABEL - text.cells), 0)
    line = Line(column(" p95 / cap", LABEL, left=True), "bold")
    line.extend(bar(share, room, style, None if share is None else 1 / 1.5))
    return line.extend(text).pad(width)


def _numbers(width: int) -> int:
    """How many quantiles there is room for."""
    return min(len(BIG), max((width - LABEL - 8) // NUMBER, 0))


def _curve(width: int) -> int:
    return min(max(width - LABEL - NUMBER * _numbers(width), 0), LONGEST_CURVE)
