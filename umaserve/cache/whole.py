"""States of memories that cannot be cut: recurrent, hybrid, sliding windows.

A whole state is what libllama saved of a text.  It is of use to texts that begin with all of it.
A mark has only the part that cannot be cut, as it was after some tokens.  A text that begins as the
mark's is restored from a mark and the whole state of a longer text.  The rest of that state is cut.
"""

from __future__ import annotations

import numpy as np

from .entry import NOTHING, Entry, Key, Part, common
from .store import Store

MARK = "mark "  # in front of a mark's domain on disk, where a text's state has the same tokens
LEAST_NEW = 64  # tokens of a prompt to be computed: for fewer no tick is cut in two
NEAR = 16  # tokens before a prompt's end that the next turn may not have in common
GENERATION = 64  # tokens that a template may put behind the last message, at most
APART = 8  # tokens between two states
SPACING, PARTS = 512, 8  # between states on the way: so many tokens, or a part of the prompt
FAR = 4  # times as long as what is restored, at most, is a state of which the rest is cut


def checkpoints(tokens: np.ndarray, ends: np.ndarray, known: int) -> list[int]:
    """Return the numbers of a prompt's tokens (int32) after which its state is saved, in order.

    ``ends``: ids that end a message.  ``known``: tokens that need not be computed.  The state
    behind the first message may serve other chats, and the state behind the last message serves the
    next turn.  States between serve a history that is edited.  Where no id tells the last message's
    end, its state is saved a few tokens before the prompt's end.
    """
    size = int(tokens.size)
    if size - known < LEAST_NEW:
        return []
    behind = np.flatnonzero(np.isin(tokens, ends)) + 1
    wanted = {size - NEAR}
    if behind.size:
        last = int(behind[-1])
        wanted = {int(behind[0]), last if last >= size - GENERATION else size - NEAR}
    wanted |= _spread(behind, max(known, int(behind[0]) if behind.size else 0), size)
    seen = tokens < 0  # of pictures: with M-RoPE all cells of a picture are at its first position
    return [at for at in sorted(wanted) if known + APART <= at < size and not seen[at - 1]]


def _spread(behind: np.ndarray, at: int, size: int) -> set[int]:
    """Places behind ``at``: ends of messages half a gap apart or more, or whole gaps without."""
    gap, found = max(SPACING, size // PARTS), set()
    while at + gap // 2 < size - NEAR:
        near = behind[(behind > at + gap // 2) & (behind <= at + gap + gap // 2)]
        at = int(near[0]) if near.size else at + gap
        found.add(at)
    return {at for at in found if at < size - NEAR}


class WholeTexts(Store):
    """Texts of each domain with their states and marks; none rests on another."""

    def match(self, domain: str, tokens: np.ndarray) -> list[Part]:
        """The longest beginning of ``tokens`` (int32) that can be restored, as the only part."""
        found: list[Part] = []
        marks = [mark for mark in self._of(domain, True) if _begins(mark, tokens)]
        for entry in self._of(domain, False):
            same = common(entry.tokens, tokens)
            part = Part(entry, entry.p1) if same == entry.p1 else _marked(entry, same, marks)
            if part is not None:
                found.append(part)
        # the most, or as much by copying less
        return sorted(found, key=lambda part: (-part.end, part.entry.p1))[:1]

    def usable(self, domain: str, tokens: np.ndarray) -> int:
        """Return the number of ``tokens`` (int32) before the last state or mark; 0 = none."""
        return max((each.p1 for each in self.entries(domain) if _begins(each, tokens)), default=0)

    def last_mark(self, domain: str, tokens: np.ndarray) -> Entry | None:
        """Return the last mark in memory of the beginnings of ``tokens`` (int32), if any."""
        marks = [each for each in self._of(domain, True) if each.data.size]
        fitting = [mark for mark in marks if _begins(mark, tokens)]
        return max(fitting, key=lambda mark: mark.p1, default=None)

    def nearest(self, domain: str, tokens: np.ndarray, most: int) -> tuple[int, list[int]]:
        """Not all of what is the same can be restored."""
        kept = [(common(each.tokens, tokens), each) for each in self._of(domain, False)]
        if not kept:
            return 0, []
        end, entry = max(kept, key=lambda each: each[0])
        return end, entry.tokens[end : end + most].tolist()

    def use(self, parts: list[Part], lease: float = 1.0) -> None:
        """A mark that was needed stays as well."""
        super().use(parts, lease)
        super().use([Part(part.mark, part.end) for part in parts if part.mark], lease)

    def add(
        self, domain: str, tokens: np.ndarray, p0: int, data: np.ndarray, cost_ms: float,
        lease: float = 1.0,
    ) -> Entry | None:  # fmt: skip
        """Keep the state after a text; None where it is there already, or has no room.

        States of its beginnings go where marks stand for them, as far as all marks stay in reach.
        """
        if p0 or not tokens.size:
            return None
        entry = self._put(domain, tokens, data, cost_ms, lease, False)
        if entry is not None:
            marked = {mark.p1 for mark in self._of(domain, True) if _begins(mark, tokens)}
            least = min(marked, default=0)  # the shortest text that needs a longer state
            kept = self._of(domain, False)
            shorter = [each for each in kept if each is not entry and _begins(each, tokens)]
            for each in sorted(shorter, key=lambda each: each.p1):
                if each.p1 in marked and tokens.size <= FAR * least:
                    self._remove(each)
                else:
                    least = each.p1
        return entry

    def mark(
        self, domain: str, tokens: np.ndarray, data: np.ndarray, cost_ms: float, lease: float = 1.0
    ) -> Entry | None:
        """Keep what cannot be cut, as it is after a text; None as with `add`."""
        return self._put(domain, tokens, data, cost_ms, lease, True)

    def find(self, domain: str, tokens: np.ndarray, p0: int, cost_ms: float) -> Entry | None:
        """Take over a state that is on disk, or a mark (``MARK``); None where it is there."""
        is_mark = domain.startswith(MARK)
        return self._put(domain.removeprefix(MARK), tokens, NOTHING, cost_ms, 1.0, is_mark)

    def _of(self, domain: str, is_mark: bool) -> list[Entry]:
        """Return the marks of a domain, or its states."""
        return [each for each in self.entries(domain) if each.is_mark == is_mark]

    def _put(
        self, domain: str, tokens: np.ndarray, data: np.ndarray, cost_ms: float, lease: float,
        is_mark: bool,
    ) -> Entry | None:  # fmt: skip
        root = self._root(domain)
        entry = Entry(tokens.copy(), 0, data, root, cost_ms, is_mark=is_mark)
        if self._key(entry) in root.children:
            return None
        super().use([Part(entry, entry.p1)], lease)
        return self._keep(entry)

    def _key(self, entry: Entry) -> Key:
        return entry.is_mark, entry.tokens.tobytes()


def _marked(entry: Entry, same: int, marks: list[Entry]) -> Part | None:
    """Return the longest beginning of ``entry`` with a mark, of at most ``same`` tokens."""
    fitting = [mark for mark in marks if mark.p1 <= same and entry.p1 <= FAR * mark.p1]
    if not fitting:
        return None
    longest = max(fitting, key=lambda mark: mark.p1)
    return Part(entry, longest.p1, longest)


def _begins(entry: Entry, tokens: np.ndarray) -> bool:
    """Return whether ``tokens`` begin with all of ``entry``.

    Its last token is compared first: the entries of other chats mostly differ there.
    """
    size = entry.p1
    if not 0 < size <= tokens.size or entry.tokens[-1] != tokens[size - 1]:
        return False
    return np.array_equal(entry.tokens, tokens[:size])
