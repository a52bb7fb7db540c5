"""pydantic-ai, through its models for OpenAI's two interfaces and for Anthropic's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients


@pytest.fixture
def programs(tmp_path: Path) -> c.Programs:
    return c.Programs("libraries", tmp_path)


def test_answers(programs: c.Programs, real_url: str) -> None:
    (setup,) = c.setups("pydantic-ai", real_url)
    assert "done" in programs.program("pydantic_ai_answers.py", given=setup)


def test_an_agent(programs: c.Programs, scripted_model: c.Scripted) -> None:
    """With each model, whole and streaming; and an answer of a type of its own."""
    colour = c.tool_call("colour", name="navy", dark=True)
    scripted_model.says([("Which colour?", colour), *c.editing()])
    (setup,) = c.setups("pydantic-ai", scripted_model.url)
    told = (c.TASK, c.WROTE, c.ANSWER, c.NOTE, c.BEFORE, c.AFTER)
    assert "done" in programs.program("pydantic_ai_agent.py", *told, given=setup)
