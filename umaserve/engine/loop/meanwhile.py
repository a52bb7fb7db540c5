"""Work of the loop in Python while a decode is under way on an accelerator.

A stop in Python between two ticks makes everybody's next token late, by a tenth of a tick and more
on a small model.  Most Python work for a background request touches neither the context nor a row
of the running batch.  The loop does such work after the next decode was submitted.  Other work
waits for the end of that tick.
"""

from __future__ import annotations

from umaserve.engine.aside.lane import AsideLane

from .admission import Admission
from .inbox import Inbox
from .seating import Seating
from .trials import Trials
from .turns import AdapterTurns


def meanwhile(
    inbox: Inbox, admission: Admission, aside: AsideLane, trials: Trials, seating: Seating,
    turns: AdapterTurns,
) -> bool:  # fmt: skip
    """Do what can be done now; False where there is more, for which the ticks have to stop."""
    inbox.handle_under_way()
    admission.take_tokenised()
    done = not (inbox.is_left or aside.has_jobs)
    return not trials.wanted and seating.admit(under_way=True) and done and not turns.is_on
