"""Edits in YAML and TOML, in files with other ends of lines, and edits that are taken back."""

from __future__ import annotations

from typing import Any

import pytest
import tomli
import yaml

from umaserve.connect import jsonc
from umaserve.connect.edits import Item, Put, Unreadable, put
from umaserve.connect.text import Language, edited, parse, taken_back

MODEL = {"name": "U", "url": "http://x/v1", "headers": {"a": "b"}}
ENTRY = Put(("models", Item("name", "U")), MODEL)
LINES = "name: U\n{0}url: http://x/v1\n{0}headers:\n{0}  a: b\n"


def made(language: Language, text: str, *edits: Put) -> str:
    """With the edits, twice; what the text says is compared with what it should say."""
    out = edited(language, text.encode(), edits)
    assert edited(language, out, edits) == out
    wanted = parse(language, text.encode())
    for each in edits:
        wanted = put(wanted, each)
    read: dict[str, Any] = {"toml": tomli.loads, "yaml": yaml.safe_load, "jsonc": jsonc.parse}
    assert read[language](out.decode().removeprefix("\ufeff")) == wanted
    return out.decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "models:\n  - " + LINES.format("    ")),
        ("# nothing yet\n", "# nothing yet\nmodels:\n  - " + LINES.format("    ")),
        ("---\n", "---\nmodels:\n  - " + LINES.format("    ")),
        ("a: 1", "a: 1\nmodels:\n  - " + LINES.format("    ")),
        # no indentation before dashes, comments behind and below, an odd order
        ("models:\n- name: x # why\n\n# about z\nz: 1\n",
         "models:\n- name: x # why\n- " + LINES.format("  ") + "\n# about z\nz: 1\n"),
        ("models:\n      - name: x\n        t: |\n          two\n          lines\n",
         "models:\n      - name: x\n        t: |\n          two\n          lines\n      - "
         + LINES.format("        ")),
        # one of that name is there
        ("models:\n    -   name: U\n        old: 1\n    # about y\n    - name: y\n",
         "models:\n    -   " + LINES.format("        ") + "    # about y\n    - name: y\n"),
        ("models:\nz: 1\n", "models:\n  - " + LINES.format("    ") + "z: 1\n"),
    ],
)  # fmt: skip
def test_an_entry_of_a_list_in_yaml(before: str, after: str) -> None:
    assert made("yaml", before, ENTRY) == after


@pytest.mark.parametrize("before", ["models: []  # none\nz: 1\n", "models: [{name: x}]\n"])
def test_an_entry_of_a_list_in_brackets(before: str) -> None:
    start, _, end = before.partition("]")
    comma = ", " if "{" in start else ""
    flow = '{"name": "U", "url": "http://x/v1", "headers": {"a": "b"}}'
    assert made("yaml", before, ENTRY) == f"{start}{comma}{flow}]{end}"


def test_values_of_yaml() -> None:
    before = (
        "# sample\n#model: x\n## more\nmodel: gpt # mine\nbase:\ndark: true\nkey: >\n  a\n  b\n"
    )
    edits = (
        Put(("model",), "m"),
        Put(("base",), "http://x"),
        Put(("dark-mode",), False),
        Put(("key",), "k"),
    )
    assert made("yaml", before, *edits) == (
        "# sample\n#model: x\n## more\nmodel: m # mine\nbase: http://x\ndark: true\nkey: k\n"
        "dark-mode: false\n"
    )


def test_values_of_toml() -> None:
    provider = Put(("providers", "u"), {"name": "U", "url": "x"})
    before = (
        '# top\nmodel = "gpt" # mine\n\n[projects."/a b"]\ntrust = \'yes\'\n\n'
        "[providers.other]\nname = 'o'\n\n[z]\nlines = '''\n[not a table]\n'''\n"
    )
    after = made("toml", before, Put(("model",), "m"), Put(("tokens",), 7), provider)
    assert after == (
        "# top\nmodel = \"m\" # mine\ntokens = 7\n\n[projects.\"/a b\"]\ntrust = 'yes'\n\n"
        "[providers.other]\nname = 'o'\n\n[providers.u]\nname = \"U\"\nurl = \"x\"\n\n"
        "[z]\nlines = '''\n[not a table]\n'''\n"
    )  # fmt: skip
    for odd in ("providers = { o = {} }\n", "[providers]\n[providers.u]\na=1\n"):
        made("toml", odd, Put(("model",), "m"), provider)


@pytest.mark.parametrize(
    ("language", "text", "edit", "why"),
    [
        ("yaml", "a: [\n", ENTRY, "line 2"),
        ("yaml", "{models: []}\n", ENTRY, "in braces"),
        ("yaml", "- a\n", ENTRY, "the file holds no object"),
        ("yaml", "models: {}\n", ENTRY, "`models` is not a list"),
        ("yaml", "a: 1\n---\nb: 2\n", ENTRY, "line 2: but found another document"),
        ("toml", "model = \n", Put(("model",), 1), "line 1"),
        ("toml", "providers = 3\n", Put(("providers", "u"), {}), "`providers` is not an object"),
        ("jsonc", '{"env": []}', Put(("env", "A"), "1"), "`env` is not an object"),
        ("jsonc", "\udcff", Put(("env", "A"), "1"), "UTF-8"),
    ],
)  # fmt: skip
def test_why_a_file_is_left_alone(language: Language, text: str, edit: Put, why: str) -> None:
    with pytest.raises(Unreadable) as caught:
        edited(language, text.encode(errors="surrogateescape"), [edit])
    assert why in str(caught.value)


def test_what_stands_there_may_stay() -> None:
    edits = Put(("name",), "Local", if_missing=True), Put(("version",), "1", if_missing=True)
    out = edited("yaml", b"name: mine\n", edits)
    assert out == b"name: mine\nversion: '1'\n"
    now = out + b"x: 1\n"
    assert taken_back("yaml", now, b"name: mine\n", edits) == (b"name: mine\nx: 1\n", [])


def test_what_would_say_something_else_afterwards_is_left_alone() -> None:
    """tomlkit would put the model into the table."""
    edits = Put(("model",), "m"), Put(("p", "u"), {"name": "U"})
    with pytest.raises(Unreadable, match="written in a way that this command cannot change"):
        edited("toml", b"p.o.name = 'x'\n", edits)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("language", "text", "edit"),
    [
        ("jsonc", '{\n  "a": 1 // x\n}\n', Put(("b", "c"), 1)),
        ("yaml", "a: 1\nmodels:\n  - name: x\n", ENTRY),
        ("toml", 'a = 1\n[b]\nc = """\nd\n"""\n', Put(("u", "v"), {"x": 1})),
    ],
)
def test_ends_of_lines_and_the_mark_stay(
    language: Language, text: str, edit: Put, mark: str
) -> None:
    windows = mark + text.replace("\n", "\r\n")
    out = made(language, windows, edit)
    assert out.startswith(mark) and out.count("\ufeff") == len(mark)
    assert "\r\n" in out and "\n" not in out.replace("\r\n", "")
    assert out.replace("\r\n", "\n") == mark + made(language, text, edit)


# --- taken back ----------------------------------------------------------------------------------

LIST = Put((Item("name", "U"),), MODEL)
TABLE = Put(("providers", "u"), {"name": "U"})


@pytest.mark.parametrize(
    ("language", "before", "edits", "mine", "after"),
    [
        ("jsonc", '{\n  "a": 1, // x\n  "m": "old"\n}\n',
         (Put(("m",), "new"), Put(("env", "A"), "1"), Put(("env", "B"), "2")),
         ('"a": 1', '"a": 9'), '{\n  "a": 9, // x\n  "m": "old"\n}\n'),
        ("jsonc", '{"a": 1, "env": {"Z": 0}}', (Put(("env", "A"), "1"),),
         ('"a": 1', '"a": 9'), '{"a": 9, "env": {"Z": 0}}'),
        ("yaml", "a: 1\nmodels:\n- name: x # y\n", (ENTRY,), ("a: 1", "a: 9"),
         "a: 9\nmodels:\n- name: x # y\n"),
        ("yaml", "a: 1\n", (ENTRY,), ("a: 1", "a: 9"), "a: 9\n"),
        ("yaml", "- name: x\n", (LIST,), ("name: x", "name: z"), "- name: z\n"),
        ("toml", "a = 1\n[b]\nc = 2\n", (TABLE, Put(("m",), "x")), ("a = 1", "a = 9"),
         "a = 9\n\n[b]\nc = 2\n"),
    ],
)  # fmt: skip
def test_only_what_was_written_is_taken_back(
    language: Language, before: str, edits: tuple[Put, ...], mine: tuple[str, str], after: str
) -> None:
    now = made(language, before, *edits).replace(*mine)
    back, stays = taken_back(language, now.encode(), before.encode(), edits)
    assert (back.decode(), stays) == (after, [])


def test_what_somebody_has_changed_since_stays() -> None:
    edits = Put(("env", "A"), "1"), Put(("env", "B"), "2"), Put(("m",), "x")
    now = made("jsonc", "{}", *edits).replace('"1"', '"mine"').replace('"x"', '"y"')
    back, stays = taken_back("jsonc", now.encode(), b"{}", edits)
    assert parse("jsonc", back) == {"env": {"A": "mine"}, "m": "y"}
    assert stays == [("m",), ("env", "A")]


def test_a_list_that_was_empty_is_empty_again() -> None:
    before = "a: 1\nmodels: []\n"
    now = made("yaml", before, ENTRY).replace("a: 1", "a: 9")
    back, _ = taken_back("yaml", now.encode(), before.encode(), [ENTRY])
    assert back.decode() == "a: 9\nmodels: []\n"
