"""Bars of the machine: processors, GPU where its library tells, memory."""

from __future__ import annotations

from umaserve.dashboard.canvas.line import Line, Values, bar, number, percent

FULL_SHARE = 0.95  # from which a bar is yellow


def machine(overview: Values, width: int) -> Line:
    """Return a line with a bar for each known load; bars disappear where there is no room."""
    use = overview.get("machine") or {}
    used, total = use.get("memory_used_bytes"), use.get("memory_total_bytes")
    memory, size = None, ""
    if used is not None and total:
        memory, size = used / total, f"{number(used / 1e9)} of {number(total / 1e9)} GB"
    shares: tuple[tuple[str, float | None, str], ...] = (
        ("CPU", use.get("cpu"), percent(use.get("cpu"))),
        ("GPU", use.get("gpu"), percent(use.get("gpu"))),
        ("memory", memory, size),
    )
    told = [(name, share, text) for name, share, text in shares if share is not None]
    if not told:
        return Line().pad(width)
    words = sum(len(name) + len(text) + 5 for name, _, text in told)
    room = min(max((width - words) // len(told), 0), 30)
    line = Line()
    for name, share, text in told:
        line.add(f" {name} ", "bold")
        line.extend(bar(share, room, "warn" if share >= FULL_SHARE else "bar"))
        line.add(f" {text}  ")
    return line.fit(width)
