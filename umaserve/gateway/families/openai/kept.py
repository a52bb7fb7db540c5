"""Responses that are kept in memory, as many as fit: to go on from, and to be asked for again.

They are kept as JSON, since objects take many times the bytes of their text.  When there is no
room, the API key that holds most bytes loses its oldest response.  So a key within its share loses
nothing to others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from sys import getsizeof
from typing import Any, NamedTuple

from umaserve.gateway.daemon.event import decode_any
from umaserve.gateway.daemon.refusal import Refusal, encode

MOST = 512  # responses of a key
MOST_BYTES = 64 * 1024 * 1024  # of all keys
PLACE_BYTES = 512  # of an entry's tuples and of its place in the dicts

Items = tuple[tuple[str, bytes], ...]


class Entry(NamedTuple):
    """A response as JSON: the object that was told, and the conversation up to it.

    ``input`` and ``output`` are its items by their ids.
    """

    messages: bytes
    response: bytes
    input: Items
    output: Items

    @classmethod
    def of(
        cls,
        messages: list[dict[str, Any]],
        response: dict[str, Any],
        items: Iterable[dict[str, Any]],
    ) -> Entry:
        """``messages`` are a chat's, ``items`` those of the response's own input."""
        output = response.get("output", ())
        return cls(_packed(messages), _packed(response), _by_id(items), _by_id(output))

    def size(self) -> int:
        """Bytes that it takes."""
        held = getsizeof(self.messages) + getsizeof(self.response) + PLACE_BYTES
        for pair in (*self.input, *self.output):
            held += getsizeof(pair) + getsizeof(pair[0]) + getsizeof(pair[1]) + 8
        return held


def _by_id(items: Iterable[dict[str, Any]]) -> Items:
    return tuple((item["id"], _packed(item)) for item in items)


def _packed(value: Any) -> bytes:
    """JSON without the room that the encoder leaves behind it."""
    return bytes(memoryview(encode(value)))


class Kept:
    """Responses by their ids, and by the name of the API key that asked; nobody else finds them."""

    def __init__(self) -> None:
        # of each key its responses with their sizes, in order of use, the oldest first
        self._shares: dict[str, OrderedDict[str, tuple[int, Entry]]] = {}

    def put(self, id: str, owner: str, entry: Entry) -> None:
        """Keep it where it fits, and forget those there is no room for."""
        size = entry.size()
        if size > MOST_BYTES:
            return
        own = self._shares.setdefault(owner, OrderedDict())
        own[id] = size, entry
        if len(own) > MOST:
            own.popitem(last=False)
        sizes = {name: sum(each for each, _ in of.values()) for name, of in self._shares.items()}
        while sum(sizes.values()) > MOST_BYTES:
            largest = max(sizes, key=sizes.__getitem__)
            oldest = next(iter(self._shares[largest]))
            sizes[largest] -= self._shares[largest][oldest][0]
            self.drop(oldest, largest)

    def get(self, id: str, owner: str) -> Entry | None:
        """``None`` where there is none for this owner."""
        own = self._shares.get(owner, OrderedDict())
        if id not in own:
            return None
        own.move_to_end(id)
        return own[id][1]

    def items(self, ids: set[str], owner: str) -> Mapping[str, bytes]:
        """The newest items with these ids of this owner's responses and their inputs, as JSON."""
        return {
            id: item
            for _, entry in self._shares.get(owner, OrderedDict()).values()
            for id, item in (*entry.input, *entry.output)
            if id in ids
        }

    def history(self, id: str, owner: str) -> list[dict[str, Any]]:
        """The conversation up to this response, to go on from.  Raises ``Refusal``."""
        entry = self.get(id, owner)
        if entry is None:
            text = '"previous_response_id" names no response that is kept; send its input again'
            raise Refusal(404, "previous_response_not_found", text)
        messages: list[dict[str, Any]] = decode_any(entry.messages)
        return messages

    def drop(self, id: str, owner: str) -> None:
        """Forget it."""
        del self._shares[owner][id]
        if not self._shares[owner]:
            del self._shares[owner]
