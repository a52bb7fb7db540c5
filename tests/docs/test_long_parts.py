"""The lint step that lists long files and functions."""

from __future__ import annotations

from tools.long_parts import FILE_LINES, FUNCTION_LINES, long_parts


def function(lines: int, docstring: str = "") -> str:
    body = [f'    """{docstring}"""'] if docstring else []
    body += ["    pass"] * (lines - 1 - len(body))
    return "\n".join(["def f():", *body]) + "\n"


def test_a_function_may_fill_a_screen_and_no_more() -> None:
    assert not list(long_parts("umaserve/a.py", function(FUNCTION_LINES)))
    (line,) = long_parts("tests/a.py", function(FUNCTION_LINES + 1))
    assert line == "tests/a.py:1 f: 61 lines, 60 at most"
    said = function(FUNCTION_LINES + 9, "Does it.  Long: its table is.")
    assert not list(long_parts("umaserve/a.py", said))
    assert list(long_parts("umaserve/a.py", function(FUNCTION_LINES + 9, "So long.")))


def test_a_file_says_why_it_is_long() -> None:
    text = "x = 1\n" * FILE_LINES
    assert not list(long_parts("umaserve/a.py", text))
    (line,) = long_parts("umaserve/a.py", text + "y = 2\n")
    assert line == "umaserve/a.py: 301 lines, 300 at most"
    assert not list(long_parts("tests/a.py", text + "y = 2\n"))
    assert not list(long_parts("umaserve/a.py", '"""All of it.\n\nLong: a table."""\n' + text))
    assert not list(long_parts("umaserve/a.py", "# Long: a table.\n" + text))
