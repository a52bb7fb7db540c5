"""Rules for which requests get an error when an engine dies; pure functions, no processes.

The rows that were inside ``llama_decode`` at that moment are suspects.  A text that was being
tokenised is suspected before the rows.  The client controls the bytes of the text, and with them
the depth of the tokeniser's recursion.

- A fault (abort, bad memory access, nonzero exit, hang) gives every suspect a strike.  The
  suspect goes on in isolation: it is decoded alone until it is past the point of the crash.
  Passing that point removes its strikes.  A request with two strikes that was alone in the last
  fatal tick gets the error.
- A SIGKILL that the front did not send comes from a person or from the system's out-of-memory
  killer.  It counts a quarter of a strike, only for a request that was alone, and expires two
  tokens later.  Requests that were not alone get no strike.
- A request that was in six fatal ticks gets the error in any case.  A request that was merely
  running during six faults without a suspected row gets the error too.  No crash therefore
  repeats for ever.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

STRIKES_OUT = 2.0
CRASHES_OUT = 6
KILLED_STRIKE = 0.25

FAULT = "fault"
KILLED = "killed"
ASKED = "asked"


@dataclass(eq=False)
class Record:
    """Crash record of a request: strikes, number of crashes, and whether it is isolated."""

    strikes: float = 0.0
    crashes: int = 0
    isolate: bool = False

    def absolve(self) -> None:
        """It decoded past the point where the engine died."""
        self.strikes = 0.0
        self.isolate = False


def kind_of_exit(status: int, *, asked: bool, hung: bool) -> str:
    """``status`` as of ``Popen.returncode``: an exit code, or minus a signal's number."""
    if hung:
        return FAULT
    if asked:
        return ASKED
    return KILLED if status in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT) else FAULT


def judge(kind: str, suspects: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Update the records after an engine's death; returns those whose requests end with an error.

    ``suspects`` were in the fatal tick, ``others`` were running, but not in it.
    """
    alone = len(suspects) == 1
    if kind == KILLED:
        if alone:
            suspects[0].strikes += KILLED_STRIKE
    elif kind == FAULT:
        for record in suspects:
            record.strikes += 1
            record.crashes += 1
            record.isolate = True
        if not suspects:
            for record in others:
                record.crashes += 1
    out = [r for r in suspects if alone and r.strikes >= STRIKES_OUT]
    out += [r for r in (*suspects, *others) if r.crashes >= CRASHES_OUT and r not in out]
    return out
