"""Texts of rows: who may share each, and how many times its cost it is worth."""

from __future__ import annotations

import secrets

import numpy as np

from umaserve.wire import messages as m
from umaserve.wire import table as t

LEASE = 4.0  # times as much what a session has is worth, and a part so large what is in background


class RowTexts:
    """``domains`` are those of rows whose text may be kept, by slot.

    A row that is parked or rated has a domain of its own where nobody may share its text.
    """

    def __init__(self, table: t.SessionTable) -> None:
        self.domains: dict[int, str] = {}
        self._table = table
        self._leases: dict[int, float] = {}
        self.alone: set[int] = set()  # rows whose text is for nobody else
        self._secret = secrets.token_hex(8)  # no client's session has such a name

    def arrive(self, slot: int, domain: str | None, session: bool) -> None:
        """A request has got a row; ``domain`` of None: nothing of it is kept."""
        self._leases[slot] = LEASE if session else 1.0
        if domain is not None:
            self.domains[slot] = domain
        else:
            self.domains.pop(slot, None)

    def name(self, slot: int) -> None:
        """See to it that what is kept of a row has a domain."""
        if slot not in self.domains:
            serial = int(self._table.serial[slot])
            self.domains[slot] = f"{m.ALONE}parked {self._secret} {serial}"
            self.alone.add(slot)

    def unname(self, slot: int) -> str | None:
        """Take the domain of its own from a row that has one; the caller forgets its texts."""
        if slot not in self.alone:
            return None
        self.alone.discard(slot)
        return self.domains.pop(slot)

    def lease(self, slot: int) -> float:
        """How many times its cost a row's text is worth: a session's more, in background less."""
        lease = self._leases.get(slot, 1.0)
        return lease / LEASE if self._table.lane[slot] else lease

    def tokens(self, slot: int) -> np.ndarray:
        """Tokens (int32) of a row but for its last, which has to be computed."""
        return self._table.tokens[slot, : int(self._table.n_tokens[slot]) - 1]
