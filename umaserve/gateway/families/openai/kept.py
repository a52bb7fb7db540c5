"""Conversations that ``previous_response_id`` names: kept in memory, as many as fit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from umaserve.gateway.daemon.refusal import Refusal, encode

MOST = 512
MOST_BYTES = 64 * 1024 * 1024


class _Entry(NamedTuple):
    owner: str
    messages: list[dict[str, Any]]
    size: int


class Kept:
    """By the id of a response; those that were used the longest time ago are forgotten first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0

    def put(self, id: str, owner: str, messages: list[dict[str, Any]]) -> None:
        """``owner`` is the name of the API key that asked; nobody else finds it."""
        entry = _Entry(owner, messages, len(encode(messages)))
        self._entries[id] = entry
        self._size += entry.size
        while len(self._entries) > MOST or self._size > MOST_BYTES:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size

    def get(self, id: str, owner: str) -> list[dict[str, Any]]:
        """The conversation up to this response.  Raises ``Refusal``."""
        entry = self._entries.get(id)
        if entry is None or entry.owner != owner:
            text = '"previous_response_id" names no response that is kept; send its input again'
            raise Refusal(404, "previous_response_not_found", text)
        self._entries.move_to_end(id)
        return entry.messages
