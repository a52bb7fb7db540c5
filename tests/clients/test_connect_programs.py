"""Aider and `llm`, with the settings that ``umaserve connect`` makes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients
TASK = "The door shall be blue."
EDIT = f"I paint it.\n\n{c.NOTE}\n```\n{c.AFTER}```\n"


def connect(programs: c.Programs, app: str, url: str) -> str:
    words = [sys.executable, "-m", "umaserve", "connect", app, "--yes", "--url", url]
    return programs.shell(shlex.join([*words, "--key", c.KEY]))


def test_aider(tmp_path: Path, scripted_model: c.Scripted) -> None:
    programs = c.Programs("aider", tmp_path)
    connect(programs, "aider", scripted_model.url)
    scripted_model.says([("one-line Git commit messages", "feat: paint"), (TASK, EDIT)])
    note = tmp_path / c.NOTE
    note.write_text(c.BEFORE)
    programs.shell(
        "git init -q; git config user.name a; git config user.email a@localhost;"
        f"git add {c.NOTE}; git commit -qm first"
    )
    said = programs.shell(
        f"aider {c.NOTE} --yes-always --edit-format whole --no-pretty --analytics-disable"
        f" --no-check-update --message {shlex.quote(TASK)}"
    )
    assert note.read_text() == c.AFTER, said
    assert "Unknown context window size" not in said, "it knows the tokens of the model"


def test_llm(tmp_path: Path, real_url: str) -> None:
    programs = c.Programs("libraries", tmp_path)
    assert "llm -m uma hello" in connect(programs, "llm", real_url)
    assert programs.shell("llm -m uma hello -o max_tokens 20").strip()
    (logged,) = json.loads(programs.shell("llm logs list --json -n 1"))
    assert logged["output_tokens"] <= 20
