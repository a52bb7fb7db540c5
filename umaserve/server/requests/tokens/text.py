"""Bytes of tokens in, whole UTF-8 text out, with stop strings that never show.

Three rules:

1. A character is given out when its last byte is there.  Bytes that can no longer become a
   character turn into U+FFFD, as in ``bytes.decode("utf-8", "replace")``.
2. Text that may still turn out to be the beginning of a stop string waits.  The text ends at the
   first character that completes any stop string.  It is cut where the longest of the stop strings
   that end there begins.  So the result depends on the characters alone and never on how they
   were cut into tokens.
3. A token without text, such as a control token, has a name, which is never given out.  A stop
   string ends the text where it is met by what shows, and where it is met by text and names.
   It has all of such a name in it or nothing: ``>`` alone is not met by ``<|end|>``.

Each stop string is followed with the prefix function of Knuth, Morris and Pratt.  A step costs
amortised constant time per character, and the state is itself the number of characters to hold.
A name is one step, from one character of the stop string to another.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable


def prefix_function(pattern: str) -> list[int]:
    """For every prefix of ``pattern``, the length of its longest proper border."""
    border = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = border[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        border[i] = length
    return border


class _Follower:
    """How much of one stop string the text ends with."""

    __slots__ = ("border", "matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.border = prefix_function(pattern)
        self.matched = 0

    def step(self, symbol: str, divides: Callable[[int], bool] | None = None) -> bool:
        """Take one character, or a name as a whole; True when the stop string is complete with it.

        ``divides`` says whether a match that begins so many characters before the symbol would
        begin within a name; None: there is none near.
        """
        pattern, matched = self.pattern, self.matched
        while not pattern.startswith(symbol, matched) or divides and divides(matched):
            if not matched:
                self.matched = 0
                return False
            matched = self.border[matched - 1]
        self.matched = matched + len(symbol)
        return self.matched == len(pattern)


class TextAssembler:
    """Text of one request, from the bytes of its tokens.

    ``stops`` are the stop strings; empty ones are ignored.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._followers = [_Follower(text) for text in dict.fromkeys(stops) if text]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._names = _Names()
        self.stopped = False
        self.stop: str | None = None  # the stop string that ended the text

    @property
    def matches(self) -> bool:
        """Whether there are stop strings, so that names count."""
        return bool(self._followers)

    @property
    def holding(self) -> bool:
        """True while text or bytes wait for what comes next."""
        return self.holds_text or bool(self._decoder.getstate()[0])

    @property
    def holds_text(self) -> bool:
        """True while characters wait that may begin a stop string."""
        return bool(self._held)

    def push(self, piece: bytes, name: bytes = b"") -> tuple[str, bool]:
        """Append the bytes of one token, or the ``name`` of a token that has none.

        Returns the text that is free to go and whether a stop string was completed.  After that
        the text is over and further bytes are ignored.
        """
        if self.stopped:
            return "", True
        if name and self._followers:
            return self._take_name(name.decode("utf-8", "replace"))
        return self._take(self._decoder.decode(piece))

    def finish(self, name: bytes = b"") -> str:
        """The rest of the text at the end of generation; an unfinished character is U+FFFD.

        ``name`` is that of the token that ended it.
        """
        if self.stopped:
            return ""
        text, stopped = self._take(self._decoder.decode(b"", final=True))
        if name and self._followers and not stopped:
            more, stopped = self._take_name(name.decode("utf-8", "replace"))
            text += more
        if not stopped:
            text += self._held
        self._held = ""
        self.stopped = True
        return text

    def _take(self, new: str) -> tuple[str, bool]:
        followers, names = self._followers, self._names
        if not followers or not new:
            return new, False
        text = self._held + new
        for i, character in enumerate(new, len(self._held) + 1):
            ended = [(len(f.pattern), f.pattern) for f in followers if f.step(character)]
            if names.followers:
                ended += names.step(character)
            if ended:
                shown, stop = max(ended)
                return self._stop(text[: i - shown], stop)
        return self._release(text), False

    def _take_name(self, name: str) -> tuple[str, bool]:
        ended = self._names.take(name, self._followers)
        if ended:
            shown, stop = max(ended)
            return self._stop(self._held[: len(self._held) - shown], stop)
        return self._release(self._held), False

    def _stop(self, text: str, stop: str) -> tuple[str, bool]:
        self.stopped, self.stop = True, stop
        self._held = ""
        return text, True

    def _release(self, text: str) -> str:
        """Give out what can be no part of a stop string, and hold the rest."""
        held = max(f.matched for f in self._followers)
        if self._names.followers:
            held = max(held, self._names.held())
        free = len(text) - held
        self._held = text[free:]
        return text[:free]


class _Names:
    """The stop strings once more, followed over text and names.

    ``followers`` is empty until the first name comes.  Lengths are told in characters that show.
    """

    def __init__(self) -> None:
        self.followers: list[_Follower] = []
        self._taken = 0  # characters since then, with those of the names
        self._spans: deque[tuple[int, int]] = deque()  # the newest names

    def take(self, name: str, others: list[_Follower]) -> list[tuple[int, str]]:
        """A name; ``others`` have followed the text alone."""
        if not self.followers:
            self.followers = [_Follower(f.pattern) for f in others]
            for mine, other in zip(self.followers, others, strict=True):
                mine.matched = other.matched
        span = (self._taken, self._taken + len(name))
        ended = [f for f in self.followers if f.step(name, self._divides)]
        self._spans.append(span)
        self._taken = span[1]
        longest = max(len(f.pattern) for f in self.followers)
        while self._spans[0][1] < self._taken - longest:
            self._spans.popleft()
        return [(self._shown(len(f.pattern)), f.pattern) for f in ended]

    def step(self, character: str) -> list[tuple[int, str]]:
        """A character; the stop strings that end with it, each behind its length."""
        ended = [f for f in self.followers if f.step(character, self._divides)]
        self._taken += 1
        return [(self._shown(len(f.pattern)), f.pattern) for f in ended]

    def held(self) -> int:
        """How many of the last characters may begin a stop string."""
        return max(self._shown(f.matched) for f in self.followers)

    def _shown(self, length: int) -> int:
        """How many of the last characters show, where no name is cut in two."""
        start = self._taken - length
        return length - sum(end - first for first, end in self._spans if first >= start)

    def _divides(self, matched: int) -> bool:
        """Whether so many characters, before the symbol that comes, begin within a name."""
        start = self._taken - matched
        return any(first < start < end for first, end in self._spans)
