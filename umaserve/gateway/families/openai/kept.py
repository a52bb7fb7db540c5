"""Responses that are kept in memory, as many as fit: to go on from, and to be asked for again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from umaserve.gateway.daemon.refusal import Refusal, encode

MOST = 512
MOST_BYTES = 64 * 1024 * 1024


class Entry(NamedTuple):
    """``messages`` are the conversation up to this response, as a chat has it.

    ``response`` is the object that was told, ``items`` are those of its own input.
    """

    messages: list[dict[str, Any]]
    response: dict[str, Any]
    items: list[dict[str, Any]]


class Kept:
    """By the id of a response; those that were used the longest time ago are forgotten first.

    ``owner`` is the name of the API key that asked; nobody else finds what it has.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[str, int, Entry]] = OrderedDict()
        self._size = 0

    def put(self, id: str, owner: str, entry: Entry) -> None:
        """Keep it, and forget what there is no room for."""
        size = len(encode(entry))
        self._entries[id] = (owner, size, entry)
        self._size += size
        while len(self._entries) > MOST or self._size > MOST_BYTES:
            _, (_, oldest, _) = self._entries.popitem(last=False)
            self._size -= oldest

    def get(self, id: str, owner: str) -> Entry | None:
        """``None`` where there is none for this owner."""
        of, _, entry = self._entries.get(id) or ("", 0, None)
        if entry is None or of != owner:
            return None
        self._entries.move_to_end(id)
        return entry

    def items(self, owner: str) -> dict[str, dict[str, Any]]:
        """All items of this owner's responses and of their inputs, by id."""
        entries = [entry for of, _, entry in self._entries.values() if of == owner]
        return {
            item["id"]: item
            for entry in entries
            for item in (*entry.items, *entry.response.get("output", ()))
        }

    def history(self, id: str, owner: str) -> list[dict[str, Any]]:
        """The conversation up to this response, to go on from.  Raises ``Refusal``."""
        entry = self.get(id, owner)
        if entry is None:
            text = '"previous_response_id" names no response that is kept; send its input again'
            raise Refusal(404, "previous_response_not_found", text)
        return entry.messages

    def drop(self, id: str) -> None:
        """Forget it."""
        _, size, _ = self._entries.pop(id)
        self._size -= size
