"""LiteLLM, through its providers for OpenAI, Anthropic and Ollama."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients


@pytest.fixture
def programs(tmp_path: Path) -> c.Programs:
    return c.Programs("libraries", tmp_path)


def test_answers(programs: c.Programs, real_url: str) -> None:
    (setup,) = c.setups("LiteLLM", real_url)
    assert "done" in programs.program("litellm_answers.py", given=setup)


def test_an_agent(programs: c.Programs, scripted_model: c.Scripted) -> None:
    """Each provider, whole and streaming."""
    scripted_model.says(c.editing())
    (setup,) = c.setups("LiteLLM", scripted_model.url)
    told = (c.TASK, c.WROTE, c.ANSWER, c.NOTE, c.BEFORE, c.AFTER)
    assert "done" in programs.program("litellm_agent.py", *told, given=setup)
