"""Engines with many settings, one after another, each in a process of its own.

`outcome` has one made, used and ended.  An engine that aborts ends nothing but itself.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tests.support.engine_driver import DrivenEngine
from tests.support.forks import ENGINE, Forked
from umaserve.wire import messages as m

PROMPTS = ("Hello", "x = 1\n" * 40, "a b", "def f(n):")
TOKENS = 6


def outcome(settings: dict[str, Any]) -> dict[str, Any]:
    """Return how an engine with these ``Start`` fields ends, under one of three keys.

    ``refused`` is the message of a load that failed, ``ends`` has the reason and the number of
    tokens of each request.  ``died`` is the status, and ``last`` the text that was printed last.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        try:
            engine = DrivenEngine(spawn=lambda words: _forked(words, log), **settings)
        except AssertionError as error:
            return _died(error, log)
        if engine.failure:
            return {"refused": engine.failure, "status": engine.close()}
        try:
            ends = _serve(engine)
        except AssertionError as error:
            return _died(error, log)
        finally:
            status = engine.close()
        return {"ends": ends, "status": status}


def _forked(words: list[str], log: Path) -> Forked:
    fds = [int(word) for word in words[1::2]]
    return Forked({"patch": None}, log, dict(os.environ), module=ENGINE, fds=fds)


def _died(error: AssertionError, log: Path) -> dict[str, Any]:
    return {"died": str(error), "last": log.read_bytes().decode("utf-8", "replace")[-2000:]}


def _serve(engine: DrivenEngine) -> list[tuple[int, int]]:
    """Short and long prompts together, more than there are sequences where slots allow it."""
    sampling = m.Sampling(temperature=0.0, ignore_eos=True)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(min(engine.start.n_slots, 6))]
    fit = [p for p in prompts if 2 * len(p) < engine.ready.n_positions - TOKENS] or ["a"]
    serials = engine.submit_together(fit, max_tokens=TOKENS, sampling=sampling)
    for serial in serials:
        engine.wait(serial, timeout=30)
    return [(engine.reason(serial), len(engine.generated(serial))) for serial in serials]
