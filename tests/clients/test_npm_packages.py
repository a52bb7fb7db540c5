"""Packages from npm, each by a program.

The programs are tests/clients/npm/*.mjs.  What the model says is given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import npm_clients, offline
from tests.support.agent_script import ASIDE, THOUGHT
from tests.support.npm_desk import AFTER, ANSWER, desk

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(bool(npm_clients.missing()), reason=npm_clients.missing()),
    pytest.mark.skipif(
        not offline.is_possible(), reason="a program cannot be cut off from the network here"
    ),
]
READ, WRITE = "read_file", "write_file"
CALLS: list[tuple[str, dict[str, Any]]] = [
    (READ, {"path": "colour.txt"}), (WRITE, {"path": "colour.txt", "text": AFTER}),
]  # fmt: skip

DOOR = {"colour": "green", "painted": True}


def told(path: Path, package: str, program: str, **settings: Any) -> Any:
    """What the program tells; the file is as it was asked for."""
    with desk(path, CALLS, **settings) as place:
        found = place.program(package, program)
        assert place.file.read_text() == AFTER
    return found


def test_openai(tmp_path: Path) -> None:
    found = told(tmp_path, "openai (npm)", "openai.mjs")
    assert found["whole"] == found["streamed"] == ASIDE
    assert found["tokens"][0] == found["tokens"][1] > 0
    assert found["agent"] == ANSWER
    assert found["called"] == [READ, WRITE]
    assert found["responded"] == ANSWER and found["model"] is True
    assert found["wrong"] == found["long"] == ["BadRequestError", 400]
    assert found["unknown"] == ["NotFoundError", 404]


def test_anthropic(tmp_path: Path) -> None:
    found = told(tmp_path, "@anthropic-ai/sdk", "anthropic.mjs")
    assert found["whole"] == found["streamed"] == ASIDE
    assert found["tokens"][0] == found["tokens"][1]
    assert found["counted"] == found["tokens"][0][0] > 0
    turn = ["thinking", "tool_use"]
    assert found["kinds"] == [turn, turn, ["thinking", "text"]] and found["agent"] == ANSWER
    assert found["wrong"] == found["long"] == ["BadRequestError", 400]


def test_ollama(tmp_path: Path) -> None:
    found = told(tmp_path, "ollama (npm)", "ollama.mjs")
    assert found["whole"] == found["streamed"] == found["generated"] == ASIDE
    assert found["counts"] == [len(ASIDE)] * 2
    assert found["called"] == [[THOUGHT, READ], [THOUGHT, WRITE]]
    assert found["agent"] == ANSWER
    assert found["format"] == "gguf" and found["running"] is True and found["version"] == "string"
    assert found["pull"] == ["ResponseError", 403]


def test_ai_sdk(tmp_path: Path) -> None:
    found = told(tmp_path, "@ai-sdk/openai-compatible", "ai.mjs")
    assert found["whole"] == ASIDE and found["tokens"] == len(ASIDE)
    assert found["called"] == [READ, WRITE] and found["thought"] == [THOUGHT] * 3
    assert found["generated"] == found["streamed"] == ANSWER
    assert found["reasons"] == ["tool-calls", "tool-calls", "stop"] and found["usage"] is True
    assert found["wrong"] == ["APICallError", 400]  # the class's own name may be `AI_APICallError`


def test_ai_sdk_over_responses(tmp_path: Path) -> None:
    """With a format beside the tools; version 6, whose later steps name earlier items."""
    found = told(tmp_path, "@ai-sdk/openai", "ai_responses.mjs", says=json.dumps(DOOR))
    for each in (found["responses"], found["chat"]):
        assert each["outputs"] == [DOOR] * 2 and each["called"] == [READ, WRITE]
        assert each["reasons"] == ["tool-calls", "tool-calls", "stop"]


def test_mastra(tmp_path: Path) -> None:
    found = told(tmp_path, "Mastra", "mastra.mjs", says=json.dumps(DOOR))
    assert found["outputs"] == [DOOR] * 2
