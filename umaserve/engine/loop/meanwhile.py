"""Work of the loop in Python while a decode is under way on an accelerator.

A stop in Python between two ticks makes everybody's next token late, by a tenth of a tick and more
on a small model.  Most Python work for a background request touches neither the context nor a row
of the running batch.  The loop does such work after the next decode was submitted.  Other work
waits for the end of that tick.
"""

from __future__ import annotations

from functools import partial
from itertools import takewhile

from umaserve.engine.start.whole import Whole
from umaserve.wire import messages as m
from umaserve.wire import table as t

from .inbox import handle_some

AT_ANY_TIME = (m.Submit, m.Release, m.Tokenize, m.Embed)


def meanwhile(engine: Whole) -> bool:
    """Do what can be done now; False where there is more, for which the ticks have to stop."""
    messages = engine.control.receive(0)
    now = [] if engine.later else list(takewhile(partial(_can_be_handled, engine), messages))
    # in the order in which they came
    engine.later += handle_some(engine, now) + messages[len(now) :]
    engine.admission.take_tokenised()
    done = not (engine.later or engine.control.closed or engine.aside.has_jobs)
    return engine.seats.admit(under_way=True) and done and not engine.turns.is_on


def _can_be_handled(engine: Whole, message: m.ToEngine) -> bool:
    if isinstance(message, m.Release) and engine.table.state[message.slot] == t.FULL:
        return False  # it has cells
    return isinstance(message, AT_ANY_TIME)
