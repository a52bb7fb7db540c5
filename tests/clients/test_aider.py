"""Aider in a git repository: it asks for a file, edits it, and commits with words of the model."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients
TASK = "The door shall be blue."
COMMITTED = "feat: paint the door blue"
EDITS = {
    "whole": f"I paint it.\n\n{c.NOTE}\n```\n{c.AFTER}```\n",
    "diff": f"I paint it.\n\n{c.NOTE}\n```\n<<<<<<< SEARCH\n{c.BEFORE}=======\n{c.AFTER}"
            ">>>>>>> REPLACE\n```\n",
}  # fmt: skip


@pytest.mark.parametrize("way", ["openai", "ollama"])
@pytest.mark.parametrize(("edit", "stream"), [("whole", "--stream"), ("diff", "--no-stream")])
def test_a_task(
    tmp_path: Path, scripted_model: c.Scripted, way: str, edit: str, stream: str
) -> None:
    programs = c.Programs("aider", tmp_path)
    setup = c.setups("Aider", scripted_model.url)[way == "ollama"].strip()
    scripted_model.says(
        [
            ("one-line Git commit messages", COMMITTED),
            (c.BEFORE.strip(), EDITS[edit]),
            (TASK, f"Please add {c.NOTE} to the chat."),
        ]
    )
    note = tmp_path / c.NOTE
    note.write_text(c.BEFORE)
    programs.shell(
        "git init -q; git config user.name a; git config user.email a@localhost;"
        f"git add {c.NOTE}; git commit -qm first"
    )
    said = programs.shell(
        f"{setup} --yes-always --edit-format {edit} {stream} --no-pretty"
        f" --analytics-disable --no-check-update --message {shlex.quote(TASK)}"
    )
    assert "I paint it." in said, said
    assert note.read_text() == c.AFTER, said
    assert programs.shell("git log -1 --format=%s").strip() == COMMITTED, said
