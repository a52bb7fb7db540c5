"""States and lanes of a session: the few numbers that every part shares."""

from __future__ import annotations

# state of a row of the session table
FREE = 0
WAITING = 1  # tokenised; holds no KV sequence yet (or lost it to make room)
RUNNING = 2  # holds a sequence; prefill while n_tokens - n_past > 1, else decode
DONE = 3  # ended; waits for Release

LANE_INTERACTIVE = 0
LANE_BACKGROUND = 1
