"""Edits in JSON with comments: the value is what was asked for, and all else is as it was."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from umaserve.connect import jsonc
from umaserve.connect.edits import Drop, Item, Put, Unreadable, drop, found, has, put

NAMES = st.sampled_from(["a", "b", 'q"uote', "ä", ""])
FIELDS = NAMES | st.just("id")  # an entry is known by its id
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(-1, 1),
    st.text('ab"\\/*,{\n\u2028é', max_size=4),
    NAMES,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(FIELDS, inner, max_size=3)
    ),
    max_leaves=12,
)
SPACES = st.sampled_from(
    ["", " ", "\n", "\n  ", "\n\t", " // ©1 }\n", "/* ©2, */", '\n  // ©3 "\n  ', "/* ©\n4 */\n"]
)
COMMENTS = re.compile(r"©\s?\d")
STEPS = st.one_of(NAMES, st.builds(Item, st.just("id"), NAMES))


@st.composite
def texts(draw: st.DrawFn, value: Any) -> str:
    """``value`` with comments and white space in all places, and commas behind last members."""
    space = lambda: draw(SPACES)  # noqa: E731
    if isinstance(value, dict):
        parts = [
            f"{space()}{json.dumps(name)}{space()}:{space()}{draw(texts(each))}{space()}"
            for name, each in value.items()
        ]
        return "{" + _joined(draw, parts, space()) + "}"
    if isinstance(value, list):
        parts = [f"{space()}{draw(texts(each))}{space()}" for each in value]
        return "[" + _joined(draw, parts, space()) + "]"
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


def _joined(draw: st.DrawFn, parts: list[str], space: str) -> str:
    comma = "," if parts and draw(st.booleans()) else ""
    return ",".join(parts) + comma + space


@st.composite
def files(draw: st.DrawFn) -> str:
    value = draw(st.dictionaries(FIELDS, VALUES, max_size=4))
    return draw(SPACES) + draw(texts(value)) + draw(SPACES)


def possible(path: list[str | Item]) -> bool:
    """An entry is an object, so that no other entry is in it."""
    return not any(isinstance(a, Item) and isinstance(b, Item) for a, b in pairwise(path))


@st.composite
def changes(draw: st.DrawFn) -> Put:
    path = tuple(draw(st.lists(STEPS, min_size=1, max_size=4).filter(possible)))
    value = draw(VALUES)
    if isinstance(path[-1], Item):
        value = {"id": path[-1].name, "x": value}
    return Put(path, value)


def same(a: Any, b: Any) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@settings(max_examples=600, suppress_health_check=list(HealthCheck))
@given(files(), changes())
@example('{"a": 1, // ©1\n}', Put(("b",), 2))
@example('{\n  "a": 1 // ©1\n  // ©2\n}', Put(("b",), 2))
@example('{"a": {}, "a": {"b": 1}}', Put(("a", "c"), 2))
def test_the_value_is_as_if_it_had_been_put_there(text: str, change: Put) -> None:
    try:
        wanted = put(jsonc.parse(text), change)
    except Unreadable as error:
        with pytest.raises(Unreadable, match=re.escape(str(error))):
            jsonc.edit(text, change)
        return
    made = jsonc.edit(text, change)
    assert same(jsonc.parse(made), wanted)
    assert jsonc.edit(made, change) == made
    if has(jsonc.parse(text), change.path):  # a value that is replaced takes its comments along
        return
    assert COMMENTS.findall(text) == COMMENTS.findall(made)
    back = made
    for length in range(len(change.path), 0, -1):
        path = change.path[:length]
        if has(jsonc.parse(text), path):
            break
        value = jsonc.parse(back)
        back = jsonc.without(back, Drop(path))
        assert same(jsonc.parse(back), drop(value, Drop(path)))
    assert same(jsonc.parse(back), put_back(jsonc.parse(text), jsonc.parse(back)))
    assert COMMENTS.findall(text) == COMMENTS.findall(back)


def put_back(before: Any, after: Any) -> Any:
    """``null`` that the edit went into is an empty object or list now; all else is as before."""
    if before is None and after in ({}, []):
        return after
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return {name: put_back(before[name], after[name]) for name in before}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [put_back(*both) for both in zip(before, after, strict=True)]
    return before


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    value = data.draw(VALUES)
    text = data.draw(texts(value))
    assert same(jsonc.parse(text), value)


@settings(max_examples=300)
@given(st.text(alphabet='{}[]":,/*\n\\ ae1-.tru', max_size=24))
def test_what_is_no_json_is_refused(text: str) -> None:
    """Whatever the standard library reads is read in the same way; nothing else raises."""
    try:
        strict = json.loads(text)
    except ValueError:
        try:
            jsonc.parse(text)
        except Unreadable as error:
            assert str(error).startswith("line ")
        return
    assert same(jsonc.parse(text), strict)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1: the name of a member is missing, or } is"),
        ('{\n"a" 1}', "line 2: a colon is missing"),
        ('{"a":\n}', "line 2: a value is missing, or is no JSON"),
        ('{"a": 1\n"b": 2}', "line 2: a comma or } is missing"),
        ("{} x", "line 1: there is something behind the end"),
        ("{ /* x", "line 1: a comment has no end"),
        ("[" * 300, "line 1: too many values are within each other"),
    ],
)
def test_why_a_text_is_not_read(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(why)):
        jsonc.parse(text)


# --- how it looks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("", ("a", "b"), 1, '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("// only a comment", ("a",), 1, '// only a comment\n{\n  "a": 1\n}\n'),
        ("{}", ("a",), 1, '{\n  "a": 1\n}'),
        ("{\n\t// none yet\n}\n", ("a",), 1, '{\n\t// none yet\n\t"a": 1\n}\n'),
        ('{"a": 1}', ("b",), [2], '{"a": 1, "b": [2]}'),
        ('{\n    "a": 1, // why\n}\n', ("b",), 2, '{\n    "a": 1, // why\n    "b": 2,\n}\n'),
        ('{\n  "a": 1 // why\n}\n', ("b",), 2, '{\n  "a": 1, // why\n  "b": 2\n}\n'),
        ('{\n  "a": 1 // why\n}\n', ("a",), 2, '{\n  "a": 2 // why\n}\n'),
        ('{"a": null}', ("a", "b"), 1, '{"a": {\n  "b": 1\n}}'),
        ("[\n  1\n]\n", (Item("name", "x"),), {"name": "x"},
         '[\n  1,\n  {\n    "name": "x"\n  }\n]\n'),
    ],
)  # fmt: skip
def test_it_is_written_as_the_rest_is(
    before: str, path: tuple[str | Item, ...], value: Any, after: str
) -> None:
    assert jsonc.edit(before, Put(path, value)) == after


def test_an_entry_is_known_by_its_name() -> None:
    text = '[{"name": "x", "url": 1 /* old */}, {"name": "y"}] // end\n'
    path = (Item("name", "x"),)
    made = jsonc.edit(text, Put((*path, "url"), 2))
    assert made == '[{"name": "x", "url": 2 /* old */}, {"name": "y"}] // end\n'
    assert found(jsonc.parse(made), (*path, "url")) == 2
    assert jsonc.without(made, Drop(path)) == '[ {"name": "y"}] // end\n'
