"""Lines of an answer that end between words, on a terminal of a given width."""

from __future__ import annotations

from prompt_toolkit.utils import get_cwidth

FENCE = "```"


class Wrapper:
    """Takes a text in pieces of any size and returns what to write.

    A piece is written at once.  Where its word turns out too long for the line, the word is erased
    and written again on the next.  Code between fences stays as it is.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width - 1, 1)  # a terminal wraps by itself in its last column
        self._line = ""  # as the model wrote it
        self._column = 0
        self._word = ""  # the last one, which may go on
        self._is_code = False

    def feed(self, text: str) -> str:
        """Return what to write for the next piece."""
        return "".join(map(self._take, text))

    def _take(self, letter: str) -> str:
        if letter == "\n":
            if self._line.lstrip().startswith(FENCE):
                self._is_code = not self._is_code
            self._line, self._column, self._word = "", 0, ""
            return letter
        self._line += letter
        width = get_cwidth(letter)
        if letter == " ":
            self._word = ""
            if self._column + 1 > self._width and not self._wraps_not():
                return self._next_line("")
        else:
            self._word += letter
            if self._column + width > self._width and not self._wraps_not():
                written = get_cwidth(self._word) - width
                if written < self._column:  # a word that fills a line is cut by the terminal
                    erased = f"\x1b[{written}D\x1b[K" if written else ""
                    return erased + self._next_line(self._word)
                self._column = 0
        self._column += width
        return letter

    def _next_line(self, word: str) -> str:
        self._column = get_cwidth(word)
        return "\n" + word

    def _wraps_not(self) -> bool:
        return self._is_code or self._line.lstrip().startswith(FENCE)
