"""LangChain's OpenAI binding, `langchain-openai`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients


@pytest.fixture
def programs(tmp_path: Path) -> c.Programs:
    return c.Programs("libraries", tmp_path)


def test_answers(programs: c.Programs, real_url: str) -> None:
    (setup,) = c.setups("LangChain", real_url)
    limits = "\nfor each in (model, completions):\n    each.temperature, each.max_tokens = 0, 12\n"
    assert "done" in programs.program("langchain_chat.py", given=setup + limits)


@pytest.mark.parametrize("how", ["whole", "stream", "responses"])
def test_an_agent(programs: c.Programs, scripted_model: c.Scripted, how: str) -> None:
    scripted_model.says(c.editing())
    note = programs.folder / c.NOTE
    note.write_text(c.BEFORE)
    (setup,) = c.setups("LangChain", scripted_model.url)
    said = programs.program("langchain_agent.py", how, c.TASK, c.WROTE, given=setup)
    assert c.ANSWER in said and note.read_text() == c.AFTER
