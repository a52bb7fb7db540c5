"""Prompts and answers that repeat what they have read, and others that do not: for drafts.

An answer is a text that a model could well give to its prompt.  Four kinds repeat the prompt:

- ``edit``: a part of one of our source files, and the same part with a name changed everywhere and
  a line put in;
- ``quote``: paragraphs of one of our docs, and an answer that quotes three of them, with words of
  its own between;
- ``tool``: what a search in our source found (JSON), and calls that repeat the places and lines;
- ``rewrap``: paragraphs of one of our docs, and the same ones in shorter lines.

Two do not: ``other`` answers paragraphs of our docs with a part of a source file, ``words`` random
words with other random words.

All are made from this checkout and a seed: the same seed gives the same texts in the same order.
They are ASCII, since a server holds back the bytes of a character that is not whole.
"""

from __future__ import annotations

import functools
import json
import keyword
import random
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from umaserve.bench.prompts import Prompts

COPIES, PIECES = ("edit", "quote"), ("tool", "rewrap")  # whole lines repeat, and a few tokens
PLAIN = ("other", "words")
WORD = 6  # characters of a word of a prompt, the space counted
QUOTES = 3  # paragraphs that an answer quotes
WIDE, NARROW = 96, 60  # columns, before and after a document is wrapped again
KEY = 3  # pieces that have to be alike before the next is taken to be

_ROOT = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"\b[a-z_][a-z_0-9]{3,}\b")
_PIECE = re.compile(r"\s+|\w+|[^\w\s]")
_STRANGE = re.compile(r"[^\n -~]")
_MARKUP = tuple("#|<`-=!>123456789 ")  # a paragraph that begins so is none of prose


class Text(NamedTuple):
    """What is asked, and what the answer is to be."""

    kind: str
    prompt: str
    answer: str


class Texts:
    """A source of texts.  ``words``: of a prompt; ``answer``: most characters of an answer."""

    def __init__(self, seed: int, words: int, answer: int) -> None:
        self._random = random.Random(seed)
        self._words = Prompts(seed)
        self._size, self._answer = WORD * words, answer
        self._makers: dict[str, Callable[[], tuple[str, str]]] = {
            "edit": self._edit, "quote": self._quote, "tool": self._tool, "rewrap": self._rewrap,
            "other": self._other, "words": self._only_words,
        }  # fmt: skip

    def make(self, kind: str) -> Text:
        """The next text of that kind."""
        prompt, answer = self._makers[kind]()
        return Text(kind, prompt, answer[: self._answer].rstrip())

    def _edit(self) -> tuple[str, str]:
        while not (names := _names(source := self._part(_sources()))):
            pass
        old, new = self._random.choice(names), "_".join(self._own(2))
        lines = re.sub(rf"\b{old}\b", new, source).split("\n")
        at = self._random.randrange(max(len(lines) // 2, 1))
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines.insert(at, f"{indent}# {' '.join(self._own(6))}")
        wish = f"Rename {old} to {new}, add a line that says why, and write the whole file."
        return f"{wish}\n\n```python\n{source}\n```\n\n```python\n", "\n".join(lines)

    def _quote(self) -> tuple[str, str]:
        paragraphs = self._document()
        chosen = self._random.sample(paragraphs, min(QUOTES, len(paragraphs)))
        most = max(WORD, self._answer // len(chosen) - 12 * WORD)
        quotes = [f'{" ".join(self._own(8))}:\n\n"{p[:most].rstrip()}"\n\n' for p in chosen]
        document = "\n\n".join(paragraphs)
        return f"{document}\n\nWhat does this say? Quote it.\n\n", "".join(quotes)

    def _tool(self) -> tuple[str, str]:
        new = "_".join(self._own(2))
        found = []
        while len(json.dumps(found)) < self._size:
            path, text = self._random.choice(_sources())
            lines = [(n, line.strip()) for n, line in enumerate(text.split("\n"), 1)]
            line, shown = self._random.choice([each for each in lines if _NAME.search(each[1])])
            found.append({"path": path, "line": line, "text": shown})
        calls = [
            {"tool": "edit", "path": place["path"], "line": place["line"], "old": place["text"],
             "new": _NAME.sub(new, place["text"], count=1)}
            for place in found
        ]  # fmt: skip
        result = json.dumps({"tool": "search", "found": found}, indent=1)
        begin = f"{' '.join(self._own(10))}:\n"
        return f"{result}\n\nEdit each place.\n\n", begin + json.dumps(calls, indent=1)

    def _rewrap(self) -> tuple[str, str]:
        # two texts may have the same paragraph, of which this makes two
        document = [" ".join(self._own(8)), *self._document()]
        wide, narrow = ("\n\n".join(_wrapped(p, n) for p in document) for n in (WIDE, NARROW))
        return f"Wrap this at {NARROW} columns.\n\n{wide}\n\n", narrow

    def _other(self) -> tuple[str, str]:
        document = "\n\n".join(self._document())
        return f"{document}\n\nWrite a program.\n\n", self._part(_sources(), self._answer)

    def _only_words(self) -> tuple[str, str]:
        n = self._answer // WORD
        return self._words.words(self._size // WORD) + "\n\n", " ".join(self._own(n))

    def _own(self, n: int) -> list[str]:
        """Words that the prompt need not have."""
        return [re.sub(r"\W", "", word) for word in self._words.words(n + 1).split()[1:]]

    def _part(self, texts: list[tuple[str, str]], size: int = 0) -> str:
        """Whole lines of one of the texts, of about ``size`` characters; a prompt's, if 0."""
        size = size or self._size
        while len(text := self._random.choice(texts)[1]) <= size:
            pass
        begin = text.rfind("\n", 0, self._random.randrange(len(text) - size)) + 1
        end = text.rfind("\n", begin, begin + size)
        return text[begin : end if end > begin else begin + size]

    def _document(self) -> list[str]:
        """Paragraphs, each a line, that stand behind one another in our docs."""
        paragraphs = _paragraphs()
        at, out, size = self._random.randrange(len(paragraphs)), list[str](), 0
        while size < self._size:
            out.append(paragraphs[(at + len(out)) % len(paragraphs)])
            size += len(out[-1])
        return out


def repeated_share(text: Text) -> float:
    """Of the answer's pieces (words, spaces, signs): the share that a reader could have known.

    Such a piece follows the last three pieces as it did when they stood in prompt or answer before.
    """
    pieces = _PIECE.findall(text.prompt + text.answer)
    begin = len(_PIECE.findall(text.prompt))
    after: dict[tuple[str, ...], str] = {}
    known = 0
    for i in range(KEY, len(pieces)):
        key = tuple(pieces[i - KEY : i])
        known += i >= begin and after.get(key) == pieces[i]
        after[key] = pieces[i]
    return known / (len(pieces) - begin)


def _names(source: str) -> list[str]:
    """Names that stand in the source more than once, in the order of their first places."""
    found = _NAME.findall(source)
    return [
        name
        for name in dict.fromkeys(found)
        if found.count(name) > 1 and not keyword.iskeyword(name)
    ]


@functools.cache
def _sources() -> list[tuple[str, str]]:
    """Path and text of our source files."""
    return _read(sorted(_ROOT.glob("umaserve/**/*.py")))


@functools.cache
def _paragraphs() -> list[str]:
    """The prose of our docs, a line each."""
    texts = [text for _, text in _read(sorted(_ROOT.glob("docs/*.md")))]
    prose = [" ".join(p.split()) for text in texts for p in text.split("\n\n") if len(p) > WIDE]
    return [p for p in prose if not p.startswith(_MARKUP) and "```" not in p]


def _wrapped(paragraph: str, columns: int) -> str:
    return textwrap.fill(paragraph, columns, break_long_words=False, break_on_hyphens=False)


def _read(paths: list[Path]) -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(_ROOT)), _STRANGE.sub("", path.read_text("utf-8")))
        for path in paths
        if path.stat().st_size > 500  # bytes: the others have next to no text
    ]
