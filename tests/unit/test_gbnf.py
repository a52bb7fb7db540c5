"""What of a grammar is refused before libllama sees it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.engine.constraints.grammar.check import MAX_BYTES, BadGrammar, check

CHESS = r"""
# a game of chess, moves only
root  ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move  ::= (pawn | nonpawn | castle) [+#]?
pawn  ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle  ::= "O-O" "-O"? # either side
"""
ROWS = "\n".join(f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(40))


def is_token(text: str) -> bool:
    return text in ("<think>", "<[7]>")


@pytest.mark.parametrize(
    "text",
    [
        CHESS,
        'root ::= "a"',
        'root ::=\n  "a" |\n  "b"\n',
        'root ::= "a"{3} "b"{2,} "c"{0,5} "d"{1,3}',
        'root ::= [^"\\\\\\x7F\\u00e4-\\U0001F600]* "é" .',
        "root ::= <think> !<think>* <[7]>",
        'root ::= "(" root ")" | ""',
        "root ::= a\r\na ::= [-a-z] [a-]",
        "root ::= (\n  [a] # a comment\n  | [b]\n)",
        "root ::=",
    ],
)
def test_these_are_grammars(text: str) -> None:
    check(text, is_token)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "root"),
        ('start ::= "a"', "root"),
        ('root ::= "a" | other', "'other' is not defined"),
        ('root = "a"', "::= is expected"),
        ('root ::= "a', '" is missing'),
        ("root ::= [a", "] is missing"),
        ("root ::= []", "matches nothing"),
        (r'root ::= "\q"', "unknown escape"),
        (r'root ::= "\x1"', "unknown escape"),
        ('root ::= ("a"', ") is expected"),
        ('root ::= "a")', "cannot stand here"),
        ("root ::= *", "nothing to be repeated"),
        ('root ::= "a"{', "is expected"),
        ('root ::= "a"{3,2}', "the least first"),
        ('root ::= "a"{2001}', "repetitions"),
        ('root ::= ("a"{0,100}){100}', "too many repetitions"),
        ("root ::= <nothing>", "no token"),
        ("root ::= <[9]>", "no token"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= ("a"?)*', "left recursion"),
        ('root ::= e root "x"\ne ::= f f\nf ::= "" | "q"', "left recursion"),
        (ROWS.replace("r0 ", "root ") + '\nr40 ::= "x"', "too many ways"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "parentheses"),
        ('root ::= "a\0b"', "NUL"),
        ("#" * (MAX_BYTES + 1), "bytes"),
        ("root ::= r0" + "".join(f'\nr{i} ::= "x"{{2000}}' for i in range(200)), "too large"),
        ("root ::= " + "".join(f"r{i}\nr{i} ::= " for i in range(3000)) + '"x"', "chain"),
    ],
)
def test_these_are_none(text: str, why: str) -> None:
    with pytest.raises(BadGrammar, match="(?s)" + re.escape(why)):
        check(text, is_token)


def test_a_mistake_has_a_place() -> None:
    with pytest.raises(BadGrammar, match="line 3, column 8"):
        check('root ::= a\n\na ::= [x ', is_token)


@given(st.text(alphabet='root ::=ab"[]()|*+?{}0,<>!.\\n#\n', max_size=60))
@settings(max_examples=500)
def test_whatever_comes_is_taken_or_refused(text: str) -> None:
    try:
        check("root ::= " + text, is_token)
    except BadGrammar as error:
        assert str(error)
