"""How many messages of the front the loop handles before the next tick.

A message takes up to some milliseconds, since short texts are tokenised on arrival.  A program may
send any number.  So while somebody decodes the messages have a share of the time between tokens;
what is left waits for the next tick.
"""

from __future__ import annotations

import time

from umaserve.engine.start.whole import Whole
from umaserve.wire import messages as m
from umaserve.wire import table as t

LEAST_S = 0.002
SHARE = 0.2  # of the time between tokens of the interactive sessions alone


def handle_some(engine: Whole, messages: list[m.ToEngine]) -> list[m.ToEngine]:
    """Handle messages in order, one at least; returns those that wait for the next tick."""
    table = engine.table
    if len(messages) < 2 or t.RUNNING not in table.state.tolist():
        for message in messages:
            engine.handle(message)
        return []
    share_s = SHARE * table.header.baseline_ns / 1e9
    until_s = time.monotonic() + max(LEAST_S, share_s)
    for done, message in enumerate(messages, 1):
        engine.handle(message)
        if time.monotonic() > until_s:
            return messages[done:]
    return []
