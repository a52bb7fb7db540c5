"""Packages whose agents have tools, and answers of a format beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import client_programs as c

pytestmark = pytest.mark.clients

DOOR = {"colour": "blue", "painted": True}
SHAPE = json.dumps(
    {
        "type": "object",
        "properties": {"colour": {"type": "string"}, "painted": {"type": "boolean"}},
        "required": ["colour", "painted"],
        "additionalProperties": False,
    }
)
BY_TOOL = "Call for the door."


class Desk:
    """A folder with the note, before a model that paints the door and tells it as JSON."""

    def __init__(self, environment: str, folder: Path, model: c.Scripted) -> None:
        self._programs, self._url = c.Programs(environment, folder), model.url
        self._note = folder / c.NOTE
        self._note.write_text(c.BEFORE)

    def told(self, program: str, package: str, *words: str) -> dict[str, object]:
        """The last line that the program prints."""
        (setup,) = c.setups(package, self._url)
        said = self._programs.program(program, *words, given=setup)
        told: dict[str, object] = json.loads(said.splitlines()[-1])
        return told

    def paints(self, program: str, package: str, *more: str) -> dict[str, object]:
        """What `told` tells of a program that has the model paint the door."""
        told = self.told(program, package, c.TASK, c.WROTE, c.NOTE, c.BEFORE, *more)
        assert self._note.read_text() == c.AFTER
        return told


def painting(answer: str) -> list[tuple[str, str]]:
    """Replies: read the note, edit it, answer so.  With a format, no words stand before a call."""
    write = c.tool_call("write_file", path=c.NOTE, text=c.AFTER)
    return [(c.WROTE, answer), (c.BEFORE.strip(), write), c.editing()[-1]]


def test_openai_agents(tmp_path: Path, scripted_model: c.Scripted) -> None:
    desk = Desk("libraries", tmp_path, scripted_model)
    scripted_model.says(painting(json.dumps(DOOR)))
    assert desk.paints("openai_agents.py", "openai-agents") == DOOR


def test_langgraph(tmp_path: Path, scripted_model: c.Scripted) -> None:
    desk = Desk("libraries", tmp_path, scripted_model)
    scripted_model.says(painting(json.dumps(DOOR)))
    assert desk.paints("langgraph_agent.py", "LangChain") == DOOR


def test_smolagents(tmp_path: Path, scripted_model: c.Scripted) -> None:
    desk = Desk("agents", tmp_path, scripted_model)
    answer = c.tool_call("final_answer", answer=json.dumps(DOOR))
    observed = f"Observation:\n{c.WROTE}"
    scripted_model.says([(observed, answer), *painting(json.dumps(DOOR))])
    assert desk.paints("smolagents_agent.py", "smolagents", SHAPE) == DOOR


def test_dspy(tmp_path: Path, scripted_model: c.Scripted) -> None:
    desk = Desk("agents", tmp_path, scripted_model)
    scripted_model.says(painting(json.dumps({"door": DOOR})))
    assert desk.told("dspy_agent.py", "DSPy", c.TASK, c.WROTE) == DOOR


def test_instructor(tmp_path: Path, scripted_model: c.Scripted) -> None:
    desk = Desk("agents", tmp_path, scripted_model)
    calls = [(name, c.tool_call(name, **DOOR)) for name in ("PartialDoor", "Door")]
    scripted_model.says([(c.WROTE, json.dumps(DOOR)), *calls])
    assert desk.told("instructor_answers.py", "instructor", BY_TOOL, c.WROTE) == DOOR


def test_llama_index(tmp_path: Path, scripted_model: c.Scripted) -> None:
    desk = Desk("agents", tmp_path, scripted_model)
    scripted_model.says(painting(json.dumps(DOOR)))
    assert desk.paints("llama_index_agent.py", "LlamaIndex", SHAPE) == DOOR
