"""``docs/PROTOCOL.md`` says what the code does, and its example client works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fixtures.fake_daemon import FakeDaemon
from tools import field_tables
from umaserve.protocol import ERRORS, Limits, encode_frame, parse_message
from umaserve.protocol.errors import CLOSING

PAGE = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text("utf-8")


def example_client() -> str:
    (code,) = re.findall(r"<!-- example: client -->\n```python\n(.*?)```", PAGE, re.S)
    return code


def test_the_tables_of_fields_are_those_of_the_code():
    assert field_tables.page(PAGE) == PAGE
    rows = [field_tables.row(field) for table in field_tables.tables() for field in table]
    assert len(rows) > 50 and all(row in PAGE for row in rows)


def test_every_error_has_its_row():
    rows = dict(re.findall(r"^\| `(E_\w+)` \| .* \| (closes|stays) \|$", PAGE, re.M))
    assert rows == {code: "closes" if code in CLOSING else "stays" for code in ERRORS}
    assert set(re.findall(r"E_[A-Z]+_\d{3}", PAGE)) == set(ERRORS)


def test_the_bytes_of_the_framing_example():
    data = encode_frame({"id": "a", "prompt": "Hi"})
    assert f"has {len(data) - 4} bytes" in PAGE
    assert data.hex(" ").startswith("18 00 00 00 7b 22 69 64 22")


def test_the_messages_of_the_page_are_valid():
    blocks = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    table = re.findall(r"^\| `(\{\"type\".*?\})` \|", PAGE, re.M)
    assert len(lines) == 13 and len(table) == 17
    for line in lines:
        message = json.loads(line)
        if "event" not in message:
            parse_message(line.encode(), Limits())
    for line in table:
        parse_message(line.encode(), Limits())


def test_the_example_client_is_small_and_needs_nothing():
    code = example_client()
    assert len(code.splitlines()) <= 30
    assert re.findall(r"import (.*)", code) == ["json, socket, struct, sys"]


@pytest.mark.parametrize(
    ("prompt", "status", "out", "err"),
    [
        ("one two three", 0, "one two three \n", ""),
        ("fail", 1, "oh ", "E_RUNTIME_001: llama_decode failed\n"),
        ("hangup", 1, "bye ", "the daemon closed the connection\n"),
    ],
)
def test_the_example_client_runs(tmp_path, prompt, status, out, err):
    script = tmp_path / "client.py"
    script.write_text(example_client())
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        done = subprocess.run(
            [sys.executable, "-I", str(script), prompt, daemon.path],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_the_python_examples_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.split("## From Python")[1], re.S)
    assert len(blocks) == 2
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        for block in blocks:
            done = subprocess.run(
                [sys.executable, "-c", block],
                capture_output=True,
                text=True,
                timeout=30,
                env={**os.environ, "UMA_SOCK": daemon.path},
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("def fibonacci(n): ")
