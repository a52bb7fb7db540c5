"""The first line: how the daemon does, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umaserve.dashboard.canvas.line import Values, clean, duration, ms, number
from umaserve.dashboard.panels.latency import SLOW_MS
from umaserve.dashboard.panels.news import FAINT_S

SLOW_FIRST_MS = 2000.0  # to the first token
WAIT_S = 1.0  # a shorter wait is none
LONG_WAIT_S = 10.0
REFUSED = "E_LIMIT_002"  # no place for a request or a connection
REFUSED_S = 10.0

GOOD, WARN, BAD, PLAIN = "head-good", "head-warn", "head-bad", "head"


def sentence(overview: Values, tokens_now: float | None) -> tuple[str, str]:
    """Return the sentence and the style of its line."""
    state, sessions = overview.get("state"), overview.get("sessions") or []
    if state == "stopping":
        rest = f"{_count(len(sessions), 'request')} may finish" if sessions else "nothing runs"
        return f"Stopping: {rest}", WARN
    if state == "loading":
        return _capital(loading(overview)), WARN
    model = (overview.get("metrics") or {}).get("model")
    if state == "unloaded" or not (model or state == "asleep"):
        return _capital(no_model(overview)), WARN
    if state == "asleep" and not sessions:
        return "Asleep: the next request loads the model", PLAIN
    if not sessions:
        return f"Idle: nobody asks{_last(overview)}", PLAIN
    word, style = _verdict(overview, sessions)
    apps = len({session.get("app") for session in sessions})
    waiting = [age_s for age_s in _waits(sessions) if age_s >= WAIT_S]
    wait = "nobody waits"
    if waiting:
        wait = f"{len(waiting)} wait{'s' * (len(waiting) == 1)}, for up to {max(waiting):.0f} s"
    rate = (overview.get("metrics") or {}).get("tokens_per_s") if tokens_now is None else tokens_now
    speed = f"{number(rate, 0)} tokens/s"
    if word == "Reading":
        prompts = sum(s.get("state") == "prefill" for s in sessions)
        speed = _count(prompts, "prompt")
    return f"{word}: {speed}, {_count(apps, 'app')}, {wait}", style


def _verdict(overview: Values, sessions: Sequence[Values]) -> tuple[str, str]:
    """Word and style, by what people notice: a wait, a pause between tokens, a late first token."""
    metrics = overview.get("metrics") or {}
    refused = any(
        error.get("code") == REFUSED and (error.get("age_s") or 0.0) < REFUSED_S
        for error in overview.get("errors") or []
    )
    if refused or max(_waits(sessions), default=0.0) >= LONG_WAIT_S:
        return "Overloaded", BAD
    pace, first = metrics.get("interactive.p95_ms"), metrics.get("interactive.ttft_ms_p50")
    read = [s for s in sessions if s.get("lane") == "interactive"]
    if read and ((pace or 0.0) > SLOW_MS or (first or 0.0) > SLOW_FIRST_MS):
        return "Slow", WARN
    if not any(s.get("state") == "decode" for s in sessions):
        if any(s.get("state") == "prefill" for s in sessions):
            return "Reading", GOOD
        return "Busy", GOOD
    return ("Fast", GOOD) if read else ("Busy", GOOD)


def _waits(sessions: Sequence[Values]) -> list[float]:
    return [s.get("age_s") or 0.0 for s in sessions if s.get("state") == "queued"]


def _last(overview: Values) -> str:
    ended = overview.get("recent") or []
    return f", the last answer ended {ago(ended[-1].get('age_s'))} ago" if ended else ""


def ago(seconds: Any) -> str:
    """``12 s``, ``17 min``, ``3 h`` or ``2 d``."""
    value = float(seconds or 0.0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= size:
            return f"{value // size:.0f} {unit}"
    return f"{value:.0f} s"


def _count(number_of: int, noun: str) -> str:
    return f"{number_of} {noun}{'s' * (number_of != 1)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def loading(overview: Values) -> str:
    """How far it is; a stage that is at its end, or has none, is only named."""
    share, stage = overview.get("progress") or 0.0, clean(overview.get("stage") or "", 40)
    if stage and share >= 1.0:
        return f"loading: {stage}"
    return f"loading{f' {stage}' if stage else ''} {share:.0%}"


def no_model(overview: Values) -> str:
    """Why there is none, if it is not for good."""
    next_try = overview.get("next_try")
    if not next_try:
        return "no model loaded"
    return f"no model: tried again in {duration(next_try.get('in_s'))}"


def summary(overview: Values) -> str:
    """Return one line for terminals that cannot draw, and for logs."""
    metrics = overview.get("metrics") or {}
    if overview.get("state") == "loading":
        return loading(overview)
    queued = (metrics.get("queued_interactive") or 0) + (metrics.get("queued_background") or 0)
    over = metrics.get("p95_over_baseline")
    held = f" ({number(over, 2)} × baseline)" if over is not None else ""
    error = (overview.get("errors") or [{}])[-1]
    last = ""
    if error.get("age_s", FAINT_S) < FAINT_S:
        last = f", last error {clean(error.get('time'), 8)} {clean(error.get('code'), 13)}"
    return (
        f"{clean(metrics.get('model') or no_model(overview).removesuffix(' loaded'))}: "
        f"{number(metrics.get('tokens_per_s'))} tok/s, "
        f"{number(metrics.get('active_sessions'))} active, {queued} queued, "
        f"p95 {ms(metrics.get('p95_ms'))} ms{held}, "
        f"RSS {number(metrics.get('rss_gb'), 2)} GB{last}"
    )
