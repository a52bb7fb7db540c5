"""Coding agents from npm: each reads a file, edits it and tells of it.

What the model says is given.  All else is real: the agent, front, gateway and uma-chat.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import npm_clients, offline
from tests.support.npm_desk import AFTER, ANSWER, BEFORE, Desk, desk

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(bool(npm_clients.missing()), reason=npm_clients.missing()),
    pytest.mark.skipif(
        not offline.is_possible(), reason="a program cannot be cut off from the network here"
    ),
]
FILE = "FOLDER/colour.txt"
OLD, NEW = "red-4711", "green"
PATCH = f"*** Begin Patch\n*** Update File: colour.txt\n@@\n-colour = {OLD}\n+colour = {NEW}\n"
SMALL = {"n_ctx": 4096}  # less than any agent's first prompt


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def worked(desk: Desk, program: str, instead: tuple[str, str] = ("", "")) -> str:
    """What the agent prints; the file is as it was told."""
    done = desk.agent(program, instead)
    assert done.returncode == 0, done.stderr + done.stdout
    assert desk.file.read_text() == AFTER
    return done.stdout


def test_claude_code(tmp_path: Path) -> None:
    edit = {"file_path": FILE, "old_string": OLD, "new_string": NEW}
    with desk(tmp_path, [("Read", {"file_path": FILE}), ("Edit", edit)]) as place:
        told = json.loads(worked(place, "Claude Code"))
    assert told["result"] == ANSWER and told["num_turns"] == 3
    assert not told["is_error"] and not told["permission_denials"]
    assert told["usage"]["output_tokens"] > len(ANSWER)


def test_claude_code_loads_a_tool(tmp_path: Path) -> None:
    """Most of its tools wait until the model looks for them."""
    edit = {"file_path": FILE, "old_string": OLD, "new_string": NEW}
    search = {"query": "select:WebFetch", "max_results": 5}
    fetch = {"url": "http://127.0.0.1:8080/health", "prompt": "How is it?"}
    calls = [
        ("ToolSearch", search), ("WebFetch", fetch), ("Read", {"file_path": FILE}), ("Edit", edit),
    ]  # fmt: skip
    with desk(tmp_path, calls, sees=r"The tool (\w+) can be called") as place:
        told = json.loads(worked(place, "Claude Code"))
    assert told["result"] == "It was WebFetch. It is green now."
    (denied,) = told["permission_denials"]
    assert denied["tool_name"] == "WebFetch", "it was called"


def test_claude_code_searches_and_has_another_agent(tmp_path: Path) -> None:
    """Its search asks for a tool of Anthropic's servers; what is refused is not asked again."""
    edit = {"file_path": FILE, "old_string": OLD, "new_string": NEW}
    agent = {"description": "look", "prompt": "Look around.", "subagent_type": "Explore"}
    calls = [
        ("ToolSearch", {"query": "select:WebSearch"}), ("WebSearch", {"query": "colours"}),
        ("Agent", agent), ("Read", {"file_path": FILE}), ("Edit", edit),
    ]  # fmt: skip
    may = ("--output-format json", "--output-format json --allowedTools WebSearch")
    with desk(tmp_path, calls) as place:
        told = json.loads(worked(place, "Claude Code", may))
    assert told["result"] == ANSWER and not told["permission_denials"]
    assert told["subagent_stats"]["spawned"] == 1


def test_claude_code_knows_a_prompt_that_is_too_long(tmp_path: Path) -> None:
    with desk(tmp_path, **SMALL) as place:
        done = place.agent("Claude Code")
        assert json.loads(done.stdout)["terminal_reason"] == "prompt_too_long"
        assert place.file.read_text() == BEFORE


def test_codex(tmp_path: Path) -> None:
    patch = f"apply_patch <<'END'\n{PATCH}*** End Patch\nEND\n"
    calls = [("exec_command", {"cmd": "cat colour.txt"}), ("exec_command", {"cmd": patch})]
    with desk(tmp_path, calls) as place:
        events = lines(worked(place, "Codex"))
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert items[-1]["type"] == "agent_message" and items[-1]["text"] == ANSWER
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"] > 0


def test_codex_with_a_model_that_it_knows(tmp_path: Path) -> None:
    """It gives that one tools of other kinds, in a place of their own."""
    def run(command: str) -> tuple[str, dict[str, str]]:
        ask = json.dumps({"cmd": command})
        return "functions__exec", {"input": f"text((await tools.exec_command({ask})).output);"}

    known = (  # and the context that it takes that one to have
        'model = "local"\nmodel_provider = "uma"\nmodel_context_window = 65536',
        'model = "gpt-6.2-sol"\nmodel_provider = "uma"',
    )
    calls = [run("cat colour.txt"), run(f"sed -i s/{OLD}/{NEW}/ colour.txt")]
    with desk(tmp_path, calls) as place:
        events = lines(worked(place, "Codex", known))
    assert events[-2]["item"]["text"] == ANSWER and events[-1]["type"] == "turn.completed"


def test_codex_shortens_what_was_said(tmp_path: Path) -> None:
    """After each turn, as one has more tokens than it takes the context to have."""
    small = ("model_context_window = 65536", "model_context_window = 16384")
    calls = [
        ("exec_command", {"cmd": "cat colour.txt"}),
        ("exec_command", {"cmd": f"sed -i s/{OLD}/{NEW}/ colour.txt"}),
    ]
    with desk(tmp_path, calls) as place:
        events = lines(worked(place, "Codex", small))
    assert events[-2]["item"]["text"] == ANSWER and events[-1]["type"] == "turn.completed"


def test_codex_knows_a_prompt_that_is_too_long(tmp_path: Path) -> None:
    with desk(tmp_path, **SMALL) as place:
        events = lines(place.agent("Codex").stdout)
    assert "ran out of room" in events[-1]["error"]["message"]


def test_opencode(tmp_path: Path) -> None:
    edit = {"filePath": FILE, "oldString": OLD, "newString": NEW}
    with desk(tmp_path, [("read", {"filePath": FILE}), ("edit", edit)]) as place:
        events = lines(worked(place, "OpenCode"))
    texts = [event["part"]["text"] for event in events if event["type"] == "text"]
    assert texts == [ANSWER]
    tools = [event["part"] for event in events if event["type"] == "tool_use"]
    assert [(t["tool"], t["state"]["status"]) for t in tools] == [
        ("read", "completed"), ("edit", "completed"),
    ]  # fmt: skip


def test_continue(tmp_path: Path) -> None:
    edit = {"file_path": FILE, "old_string": OLD, "new_string": NEW}
    with desk(tmp_path, [("Read", {"filepath": "colour.txt"}), ("Edit", edit)]) as place:
        assert worked(place, "Continue").strip() == ANSWER


def test_continue_knows_a_prompt_that_is_too_long(tmp_path: Path) -> None:
    with desk(tmp_path, **SMALL) as place:
        assert "Context length exceeded" in place.agent("Continue").stderr


def test_qwen_code(tmp_path: Path) -> None:
    edit = {"file_path": FILE, "old_string": OLD, "new_string": NEW}
    with desk(tmp_path, [("read_file", {"file_path": FILE}), ("edit", edit)]) as place:
        told = json.loads(worked(place, "Qwen Code"))[-1]
    assert told["result"] == ANSWER and not told["is_error"]
    assert told["stats"]["tools"]["totalSuccess"] == 2
