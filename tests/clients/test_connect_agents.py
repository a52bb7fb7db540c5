"""Real agents with the settings that ``umaserve connect`` makes; each reads a file and edits it.

What the model says is given.  All else is real: the agent, front, gateway and uma-chat.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import npm_clients, offline
from tests.support.npm_desk import AFTER, ANSWER, KEY, TASK, desk

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(bool(npm_clients.missing()), reason=npm_clients.missing()),
    pytest.mark.skipif(
        not offline.is_possible(), reason="a program cannot be cut off from the network here"
    ),
]
FILE = "FOLDER/colour.txt"
OLD, NEW = "red-4711", "green"
# the program's words, and the calls of its tools
AGENTS: dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]] = {
    "claude-code": (
        "claude --permission-mode acceptEdits --output-format text -p",
        [
            ("Read", {"file_path": FILE}),
            ("Edit", {"file_path": FILE, "old_string": OLD, "new_string": NEW}),
        ],
    ),
    "codex": (
        f"UMA_API_KEY={KEY} codex exec --skip-git-repo-check --sandbox workspace-write",
        [
            ("exec_command", {"cmd": "cat colour.txt"}),
            ("exec_command", {"cmd": f"sed -i s/{OLD}/{NEW}/ colour.txt"}),
        ],
    ),
    "opencode": (
        "opencode run",
        [
            ("read", {"filePath": FILE}),
            ("edit", {"filePath": FILE, "oldString": OLD, "newString": NEW}),
        ],
    ),
    "continue": (
        "CONTINUE_METRICS_ENABLED=0 CONTINUE_CLI_AUTO_UPDATED=true cn --auto -p",
        [
            ("Read", {"filepath": "colour.txt"}),
            ("Edit", {"file_path": FILE, "old_string": OLD, "new_string": NEW}),
        ],
    ),
    "qwen-code": (
        "qwen --approval-mode auto-edit -p",
        [
            ("read_file", {"file_path": FILE}),
            ("edit", {"file_path": FILE, "old_string": OLD, "new_string": NEW}),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("app", AGENTS)
def test_an_agent_works_once_it_is_connected(tmp_path: Path, app: str) -> None:
    command, calls = AGENTS[app]
    with desk(tmp_path, calls) as place:
        place.connect(app)
        done = place.run(["sh", "-c", f"{command} {json.dumps(TASK)}"])
        assert done.returncode == 0, done.stderr + done.stdout
        assert ANSWER in done.stdout and place.file.read_text() == AFTER
        assert "Model metadata" not in done.stderr  # which Codex says of models it does not know
        place.connect(app, "--undo")
        files = [path for path in place.home.rglob("*") if path.is_file()]
        left = [path for path in files if path.parent.name != "cache"]  # what the agent has found
        told = [path for path in left if b"127.0.0.1:8080" in path.read_bytes()]
    assert [path for path in told if path.suffix in (".json", ".jsonc", ".yaml", ".toml")] == []


def test_claude_code_is_told_the_context(tmp_path: Path) -> None:
    with desk(tmp_path, n_ctx=50_000) as place:
        place.connect("claude-code")
        done = place.run(["claude", "-p", "/context"])
        menu = json.loads((place.home / ".claude/cache/gateway-models.json").read_text())
    (model,) = menu["models"]
    assert model["id"] == f"anthropic-local/{model['display_name']}"
    assert "local" in done.stdout and "/ 50k" in done.stdout, done.stdout
