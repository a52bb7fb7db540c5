"""Report of the prefix cache, and of where prompts leave it: for the daemon's own user.

It notes only token ids, a few around the place where a prompt left the tree.  It notes no token
ids of private texts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import islice

import numpy as np

from umaserve.cache.entry import Entry
from umaserve.wire import messages as m
from umaserve.wire.header import Header

from .copies import PrefixStore

PROMPTS = 16  # the newest that are told of
TEXTS, DOMAINS = 8, 64  # at most
AROUND = 12  # tokens before and behind a place
LOOKED_AT = 10_000  # entries, about 10 ms; the rest is in the totals alone


class PrefixReport:
    """For the loop's thread; ``store`` is only read."""

    def __init__(self, store: PrefixStore, why_off: str, header: Header) -> None:
        self._store, self._why_off, self._header = store, why_off, header
        self._prompts: deque[m.CacheAnswer] = deque(maxlen=PROMPTS)

    def note(self, serial: int, domain: str | None, tokens: np.ndarray, cached: int) -> None:
        """A prompt has got its sequence, with ``cached`` of its ``tokens`` (int32) in it."""
        answer = m.CacheAnswer(serial, domain, int(tokens.size), cached)
        if domain is not None:
            known, kept = self._store.nearest(domain, tokens, AROUND)
            answer.known = known
            if m.PRIVATE not in domain and known < tokens.size:
                answer.before = tokens[max(known - AROUND, 0) : known].tolist()
                answer.kept = kept
                answer.wanted = tokens[known : known + AROUND].tolist()
        self._prompts.appendleft(answer)

    def tell(self) -> None:
        """How much is kept now, where the front reads it."""
        header, store = self._header, self._store
        header.cache_entries, header.cache_bytes = store.count, store.bytes_held
        header.cache_most_bytes = store.most_bytes
        header.cache_evicted_room, header.cache_evicted_memory = store.evictions.values()

    def message(self, ref: int) -> m.CacheReport:
        """The answer to `AskCache`."""
        store = self._store
        domains: dict[str, m.CachedOf] = {}
        texts: list[tuple[int, int, int, str, Entry]] = []
        for number, (domain, entry) in enumerate(islice(self._entries(), LOOKED_AT)):
            of = domains.setdefault(domain, m.CachedOf(domain))
            of.entries += 1
            of.tokens += entry.tokens.size
            of.bytes += entry.size
            of.disk_bytes += entry.n_bytes if entry.path else 0
            if all(child.hits < entry.hits for child in entry.children.values()):
                texts.append((entry.hits, entry.p1, -number, domain, entry))
        return m.CacheReport(
            ref,
            self._why_off,
            store.count,
            store.bytes_held,
            store.most_bytes,
            heapq.nlargest(DOMAINS, domains.values(), key=lambda each: each.bytes),
            [_text(domain, entry) for *_, domain, entry in heapq.nlargest(TEXTS, texts)],
            list(self._prompts),
        )

    def _entries(self) -> Iterator[tuple[str, Entry]]:
        for domain in self._store.domains():
            if domain.startswith(m.ALONE):
                continue
            for entry in self._store.entries(domain):
                yield domain, entry


def _text(domain: str, last: Entry) -> m.CachedText:
    """The text that ends with this entry."""
    chain = [last]
    while (parent := chain[-1].parent) is not None and parent.parent is not None:
        chain.append(parent)
    size = sum(entry.size for entry in chain)
    begins: list[int] = []
    for entry in () if m.PRIVATE in domain else chain[::-1]:
        begins[entry.p0 :] = entry.tokens[: max(AROUND - entry.p0, 0)].tolist()
    return m.CachedText(domain, last.p1, size, last.hits, begins)
