"""Bytes of tokens in, whole UTF-8 text out, with stop strings that never show.

Two rules:

1. A character is given out when its last byte is there.  Bytes that can no longer become a
   character turn into U+FFFD, as in ``bytes.decode("utf-8", "replace")``.
2. Text that may still turn out to be the beginning of a stop string waits.  The text ends at the
   first character that completes any stop string, and is cut where the longest of the stop strings
   that end there begins.  So the result depends on the characters alone and never on how they
   were cut into tokens.

Each stop string is followed with the prefix function of Knuth, Morris and Pratt: a step costs
amortised constant time per character, and the state is itself the number of characters to hold.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

_utf8 = codecs.getincrementaldecoder("utf-8")


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

    def step(self, character: str) -> bool:
        """Take one character; True when the stop string is complete with it."""
        pattern, matched = self.pattern, self.matched
        while matched and pattern[matched] != character:
            matched = self.border[matched - 1]
        if pattern[matched] == character:
            matched += 1
        self.matched = matched
        return matched == len(pattern)


class TextAssembler:
    """Text of one request, from the bytes of its tokens.

    ``stops`` are the stop strings, as text or as UTF-8 bytes; empty ones are ignored.
    """

    def __init__(self, stops: Iterable[bytes | str] = ()) -> None:
        texts = (s if isinstance(s, str) else s.decode("utf-8", "replace") for s in stops)
        self._followers = [_Follower(text) for text in dict.fromkeys(texts) if text]
        self._decoder = _utf8(errors="replace")
        self._held = ""
        self.stopped = False

    @property
    def holding(self) -> bool:
        """True while text or bytes wait for what comes next."""
        return self.holds_text or bool(self._decoder.getstate()[0])

    @property
    def holds_text(self) -> bool:
        """True while characters wait that may begin a stop string."""
        return bool(self._held)

    def push(self, piece: bytes) -> tuple[str, bool]:
        """Append the bytes of one token.

        Returns the text that is free to go and whether a stop string was completed; after that
        the text is over and further bytes are ignored.
        """
        if self.stopped:
            return "", True
        return self._take(self._decoder.decode(piece))

    def finish(self) -> str:
        """The rest of the text at the end of generation; an unfinished character is U+FFFD."""
        if self.stopped:
            return ""
        text, stopped = self._take(self._decoder.decode(b"", final=True))
        if not stopped:
            text += self._held
        self._held = ""
        self.stopped = True
        return text

    def _take(self, new: str) -> tuple[str, bool]:
        followers = self._followers
        if not followers or not new:
            return new, False
        text = self._held + new
        for i, character in enumerate(new, len(self._held) + 1):
            ended = [f for f in followers if f.step(character)]
            if ended:
                self.stopped = True
                self._held = ""
                return text[: i - max(len(f.pattern) for f in ended)], True
        free = len(text) - max(f.matched for f in followers)
        self._held = text[free:]
        return text[:free], False
