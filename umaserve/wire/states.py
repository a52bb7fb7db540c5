"""States, lanes and ageing of a session, for every part of the daemon."""

from __future__ import annotations

# state of a row of the session table
FREE = 0
WAITING = 1  # tokenised; holds no KV sequence yet (or lost it to make room)
RUNNING = 2  # holds a sequence; prefill while n_tokens - n_past > 1, else decode
DONE = 3  # ended; waits for Release
FULL = 4  # as DONE, but keeps its cells: the front may have its context shifted (`Shift`)

LANE_INTERACTIVE = 0
LANE_BACKGROUND = 1

# who decides about a lane (the column ``auto``), and what was decided
LABELLED = 0  # the client has, or a person
AUTO = 1  # the policy; interactive
AUTO_SUNK = 2  # background until its program has allowance again, or its answer begins
AUTO_NEW = 3  # the policy, which has not seen it yet

# what the column ``isolate`` says of a row; 0 = it runs with others
SUSPECT = 1  # it may have killed an engine: alone in its ticks until it has proved harmless
APART = 2  # alone in its ticks and in a context of its own, to its end

# Value of the policy's column ``aside`` for a row that no tick feeds now.  Its next token is a
# picture's, or the context has other adapters.
NOT_FED = -2

AGED_NS = 5_000_000_000  # a background request that waited so long goes before interactive ones


def has_aged(since_ns: int, now_ns: int) -> bool:
    """Return whether a request that waits since then has aged, for a row or for cells."""
    return now_ns - since_ns >= AGED_NS
