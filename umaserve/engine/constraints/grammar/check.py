"""Whether libllama can take a client's grammar (GBNF).  It is checked here: libllama prints what it
refuses into the log, and some grammars make it compute or call itself without an end.

The rules are built as its parser builds them (``llama-grammar.cpp``), so that what is counted here
is what it will have.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64  # of parentheses in each other: each is a call within a call there
MAX_REPETITION = 2000  # libllama's own bound
MAX_ELEMENTS = 200_000  # of all rules, with what repetitions add
MAX_PATHS = 2_000  # ways to the first characters of a rule: all are tried, for every token

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_CHAR = re.compile(
    r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])|[^\\]', re.DOTALL
)
_TOKEN = re.compile(r"!?<(?:\[([0-9]{1,10})\]|[^>]*)>")
_TIMES = re.compile(
    r"\{(?:[ \t]|#[^\r\n]*)*([0-9]+)(?:[ \t]|#[^\r\n]*)*(,?)(?:[ \t]|#[^\r\n]*)*([0-9]*)"
    r"(?:[ \t]|#[^\r\n]*)*\}"
)

# a rule: alternatives, each a list of elements.  An element is the number of another rule, or
# CHARS for anything that takes up text.
CHARS = -1
Alternatives = list[list[int]]


class BadGrammar(ValueError):
    """It cannot be used; the text says why."""


def check(text: str, token_of: Callable[[str], bool]) -> None:
    """Raises `BadGrammar`.  ``token_of`` says whether ``<text>`` or ``<[id]>`` is one token."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise BadGrammar(f"it has more than {MAX_BYTES} bytes")
    if "\0" in text:
        raise BadGrammar("it has a NUL character")
    rules = _Parser(text, token_of).parse()
    _check_depths(rules)


class _Parser:
    def __init__(self, text: str, token_of: Callable[[str], bool]) -> None:
        self._text = text
        self._token_of = token_of
        self._names: dict[str, int] = {}
        self._rules: dict[int, Alternatives] = {}
        self._count = 0
        self._elements = 0

    def parse(self) -> list[Alternatives]:
        at = self._skip(0, lines=True)
        while at < len(self._text):
            at = self._rule(at)
        missing = [name for name, number in self._names.items() if number not in self._rules]
        if missing:
            raise BadGrammar(f"the rule {missing[0]!r} is not defined")
        if "root" not in self._names:
            raise BadGrammar("it has no rule with the name 'root'")
        return [self._rules[number] for number in range(self._count)]

    def _fail(self, what: str, at: int) -> BadGrammar:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        return BadGrammar(f"line {line}, column {column}: {what}")

    def _skip(self, at: int, *, lines: bool) -> int:
        found = (_SPACE_LINES if lines else _SPACE).match(self._text, at)
        return found.end() if found else at

    def _number(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self._new()
        return self._names[name]

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _keep(self, number: int, rule: Alternatives) -> None:
        self._elements += sum(map(len, rule)) + len(rule)
        if self._elements > MAX_ELEMENTS:
            raise BadGrammar("it is too large, with its repetitions")
        self._rules[number] = rule

    def _rule(self, at: int) -> int:
        name = _NAME.match(self._text, at)
        if name is None:
            raise self._fail("the name of a rule is expected", at)
        at = self._skip(name.end(), lines=False)
        if not self._text.startswith("::=", at):
            raise self._fail("::= is expected", at)
        at = self._skip(at + 3, lines=True)
        number = self._number(name[0])
        at = self._alternatives(at, number, 0)
        end = re.compile(r"\r\n?|\n|\Z").match(self._text, at)
        if end is None:
            raise self._fail("this cannot stand here", at)
        return self._skip(end.end(), lines=True)

    def _alternatives(self, at: int, number: int, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise self._fail(f"there are more than {MAX_DEPTH} parentheses in each other", at)
        rule: Alternatives = [[]]
        at = self._sequence(at, rule[-1], depth)
        while self._text.startswith("|", at):
            rule.append([])
            at = self._sequence(self._skip(at + 1, lines=True), rule[-1], depth)
        self._keep(number, rule)
        return at

    def _sequence(self, at: int, out: list[int], depth: int) -> int:
        text, last, weight = self._text, -1, 1  # where the last symbol begins, and its rules
        while at < len(text):
            sign = text[at]
            if sign in "*+?{":
                low, high, at = self._times(at)
                if last < 0:
                    raise self._fail("there is nothing to be repeated", at)
                weight = self._repeat(out, last, low, high, weight, at)
            elif sign == "(":
                before, number = self._count, self._new()
                at = self._alternatives(self._skip(at + 1, lines=True), number, depth + 1)
                if not text.startswith(")", at):
                    raise self._fail(") is expected", at)
                at, last, weight = at + 1, len(out), max(1, self._count - before)
                out.append(number)
            else:
                found = self._symbol(at, out)
                if found < 0:
                    return at
                last, weight = found, 1
                at = self._at
            at = self._skip(at, lines=depth > 0)
        return at

    def _symbol(self, at: int, out: list[int]) -> int:
        """Append the single symbol at ``at`` to ``out``; return its index there, -1 for none."""
        text, sign, begin = self._text, self._text[at], len(out)
        if sign == '"':
            at, count = self._chars(at + 1, '"')
            out += [CHARS] * count
        elif sign == "[":
            at += 1 + text.startswith("^", at + 1)
            at, count = self._chars(at, "]")
            if not count:
                raise self._fail("[] matches nothing", at)
            out.append(CHARS)
        elif sign in "<!":
            token = _TOKEN.match(text, at)
            if token is None or not self._token_of(token[0].lstrip("!")):
                raise self._fail("this is no token", at)
            at = token.end()
            out.append(CHARS)
        elif sign == ".":
            at += 1
            out.append(CHARS)
        else:
            name = _NAME.match(text, at)
            if name is None:
                return -1
            at = name.end()
            out.append(self._number(name[0]))
        self._at = at
        return begin

    def _chars(self, at: int, end: str) -> tuple[int, int]:
        """Behind the closing ``end``, and how many characters stood before it."""
        count, begin = 0, at
        while not self._text.startswith(end, at):
            found = _CHAR.match(self._text, at)
            if found is None:
                why = "unknown escape" if at < len(self._text) else f"{end} is missing"
                raise self._fail(why, at if at < len(self._text) else begin)
            at, count = found.end(), count + 1
        return at + 1, count

    def _times(self, at: int) -> tuple[int, int, int]:
        sign = self._text[at]
        if sign in "*+?":
            return {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[sign] + (at + 1,)
        found = _TIMES.match(self._text, at)
        if found is None or found[3] and not found[2]:
            raise self._fail("{times}, {least,} or {least,most} is expected", at)
        low = min(int(found[1][:9]), 10**6)
        high = -1 if found[2] else low
        if found[3]:
            high = min(int(found[3][:9]), 10**6)
            high = -1 if high > MAX_REPETITION else high
        if low > MAX_REPETITION or 0 <= high < low:
            raise self._fail(f"at most {MAX_REPETITION} repetitions, the least first", at)
        return low, high, found.end()

    def _repeat(
        self, out: list[int], last: int, low: int, high: int, weight: int, at: int
    ) -> int:
        """Repeat ``out[last:]``; returns of how many rules that is made."""
        total = high if high > 0 else max(low, 1)
        if weight * total > MAX_REPETITION:
            raise self._fail("too many repetitions in each other", at)
        before = out[last:]
        del out[last:]
        out += before * low
        self._elements += len(before) * low
        inner = -1
        for i in range(1 if high < 0 else high - low):
            number = self._new()
            inner_rule = [*before]
            if high < 0:
                inner_rule.append(number)
            elif i > 0:
                inner_rule.append(inner)
            self._keep(number, [inner_rule, []])
            inner = number
        if inner >= 0:
            out.append(inner)
        return weight * total


def _check_depths(rules: list[Alternatives]) -> None:
    """Raise `BadGrammar` where a rule begins with itself or in too many ways."""
    empty = [False] * len(rules)
    changed = True
    while changed:
        changed = False
        for number, rule in enumerate(rules):
            if not empty[number] and any(
                all(each != CHARS and empty[each] for each in part) for part in rule
            ):
                empty[number] = changed = True
    paths = [0] * len(rules)
    for start in range(len(rules)):
        if not paths[start]:
            _count_paths(rules, empty, paths, start)


def _first_rules(rule: Alternatives, empty: list[bool]) -> list[int]:
    """The rules that it may begin with, one for each way."""
    found = []
    for part in rule:
        for each in part:
            if each == CHARS:
                break
            found.append(each)
            if not empty[each]:
                break
    return found


def _count_paths(
    rules: list[Alternatives], empty: list[bool], paths: list[int], start: int
) -> None:
    under_way, stack = {start}, [(start, _first_rules(rules[start], empty))]
    done: dict[int, int] = {}
    while stack:
        number, todo = stack[-1]
        if len(stack) > 1000:
            raise BadGrammar("its rules begin with each other in a chain that is too long")
        if done.get(number, 0) < len(todo):
            inner = todo[done.get(number, 0)]
            done[number] = done.get(number, 0) + 1
            if inner in under_way:
                raise BadGrammar("a rule begins with itself (left recursion)")
            if not paths[inner]:
                under_way.add(inner)
                stack.append((inner, _first_rules(rules[inner], empty)))
            continue
        paths[number] = len(rules[number]) + sum(paths[each] for each in todo)
        if paths[number] > MAX_PATHS:
            raise BadGrammar("a rule begins in too many ways")
        under_way.discard(number)
        stack.pop()
