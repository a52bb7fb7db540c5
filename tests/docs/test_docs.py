"""Every command, every Python example and every link of README.md and docs/ works."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.docs_runner import (
    LANGUAGES,
    PAGES,
    ROOT,
    RULES,
    Block,
    Rule,
    Workspace,
    blocks,
    commands,
    is_like,
    mentioned,
    rules,
)
from umaserve.cli import COMMANDS
from umaserve.protocol import encode_frame

# tests/docs/test_guide.py follows the guide as a whole
BLOCKS = [block for page in PAGES if page.name != "GUIDE.md" for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "sh"]
DAEMONS = [block for block in SHELL if rules(commands(block)[0])[0].how == "daemon"]
PYTHON = [block for block in BLOCKS if block.language == "python"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    made = Workspace(tmp_path_factory.mktemp("docs"))
    yield made
    made.stop()


@pytest.mark.parametrize("block", DAEMONS, ids=str)
def test_daemon_block(workspace: Workspace, block: Block) -> None:
    """The first line starts a daemon; the others talk to it, and it has to stop as Ctrl-C asks."""
    first, *others = commands(block)
    workspace.show(first)
    for command in others:
        workspace.show(command)
    block.judge(workspace.stop_shown(first))


@pytest.mark.parametrize("block", [block for block in SHELL if block not in DAEMONS], ids=str)
def test_shell_block(workspace: Workspace, block: Block) -> None:
    """Lines that come to an end; those that need a daemon share one."""
    assert commands(block)
    block.judge("".join(workspace.show(command) for command in commands(block)))


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_block(workspace: Workspace, tmp_path: Path, block: Block) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.body)
    workspace.show(f"python {script} 'def fibonacci(n):' {workspace.socket}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_only_mentioned_exist(workspace: Workspace, page: Path) -> None:
    """With every flag that they are given; what has none need not be asked."""
    for command in mentioned(page):
        words = [word for word in command.split() if not re.match(r"[A-Z_]+=", word)]
        if words[0] == "make" or "--" in command:
            out, err = workspace.make_dry(command)
            assert out and not err, command
        elif words[1] == "-m":
            assert find_spec(words[2]), command
        else:
            assert words[1] in COMMANDS, command


def test_a_mentioned_command_with_a_wrong_flag_is_refused(workspace: Workspace) -> None:
    for command in ("umaserve bench --repor x", "umaserve --htt x", "uma-cli --pri x",
                    "python -m benchmarks.scheduler --mode x", "umaserve frob --json",
                    "python -m benchmarks.nothing --model x", "make love"):  # fmt: skip
        with pytest.raises(AssertionError):
            workspace.make_dry(command)
    assert {"umaserve bench --report out.html", "make help"} <= set(mentioned(ROOT / "README.md"))


def test_the_protocol_in_the_readme(workspace: Workspace) -> None:
    """The line it sends gets the lines it shows; ``…`` stands for more of the same kind."""
    shown = [block.body for block in BLOCKS if block.page.name == "README.md"]
    (at,) = (n for n, body in enumerate(shown) if body.startswith('{"id": "a", "prompt"'))
    token, eos, error = shown[at + 1].splitlines()
    workspace.ensure()
    events = talk(workspace.socket, json.loads(shown[at]))
    assert is_like(token, events[0]) and is_like(eos, events[-1]), events
    assert is_like(error, talk(workspace.socket, {"id": "a", "prompt": "x" * 70000})[0])


def talk(path: str, message: dict[str, object]) -> list[str]:
    """The events that answer a message, in the spelling of the pages."""
    events: list[str] = []
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(path)
        wire.sendall(encode_frame(message))
        frames = wire.makefile("rb")
        while not events or '"event": "token"' in events[-1]:
            (size,) = struct.unpack("<I", frames.read(4))
            events.append(json.dumps(json.loads(frames.read(size)), ensure_ascii=False))
    return events


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page: Path) -> None:
    text = page.read_text("utf-8")
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block}: ```{block.language}"
    # an indented block would escape the tests
    outside = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    assert re.findall(r"^\n {4,}\S.*", outside, flags=re.M) == []


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


NOTES = sorted((ROOT / "docs" / "notes").glob("2*.md"))
INDEX = ROOT / "docs" / "notes" / "README.md"


def test_the_index_has_every_note() -> None:
    index = INDEX.read_text("utf-8")
    listed = re.findall(r"^\| ([\d-]+) \| \[[^\]]+\]\(([^)]+)\)", index, re.M)
    assert listed == [(note.name[:10], note.name) for note in NOTES]


@pytest.mark.parametrize("page", [*PAGES, INDEX, *NOTES], ids=lambda page: page.name)
def test_links_point_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        other = page if not name else (page.parent / name).resolve()
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    """Paths in backquotes that begin with a folder of this repository."""
    for name in re.findall(r"`((?:umaserve|tests|tools|docs|bindings|benchmarks)/[\w./-]*)`",
                           page.read_text("utf-8")):  # fmt: skip
        assert (ROOT / name).exists(), name


def test_an_unknown_command_is_not_skipped() -> None:
    for command in ("rm -rf x", "umaserve frobnicate", "python -m http.server", "make love"):
        with pytest.raises(ValueError, match="nobody knows"):
            rules(command)
    with pytest.raises(ValueError, match="only pipes"):
        rules("echo a && echo b")
    assert how("umaserve --model ~/m.gguf") == how("make run") == ["daemon"]
    assert how("echo x | .venv/bin/uma-cli --temp 0") == ["plain", "client"]
    assert how("make test") == ["dry"]


def how(command: str) -> list[str]:
    return [rule.how for rule in rules(command)]


def test_every_rule_is_some_page_s() -> None:
    lines = [command for block in SHELL for command in commands(block)]
    used = [rule for line in [*lines, "python /x/example.py y"] for rule in rules(line)]
    assert [rule.command for rule in RULES if rule not in used] == []


NOTE = "(the model ended its answer before it began)\n"
SCREEN = """\
 Idle: nobody asks
 UMA Serve demo · cpu · up 0:00:04 · /tmp/uma.sock
 CPU █████████░░░░░░░░░░░░ 42%   memory ████████████████░░░░░ 12.3 of 16.0 GB
─ time between tokens, ms ────────────    p50    p95    p99  worst  first    p95
 interactive                             0.90   3.20   8.01   8.01   10.1   21.8
 background                                 -      -      -      -      -      -
"""
OK = "".join(f"ok      {name:<10} fine\n" for name in "abcdefgh")
SERVING = "12:00:00 serving UMA Serve demo on /tmp/uma.sock (cpu; 4096 KV cells, 8 sequences, 32 "


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("uma-cli -p x", ""),
        ("uma-cli -p x", " \n"),
        ("uma-cli -p x", "None"),
        ("python /x/example.py y", "    return aNone"),
        ("python /x/example.py y", "    return a\nNone\n"),
        ("python /x/example.py y", "    return aNone 22\n"),
        ("uma-cli -p x --json --max-tokens 3", '{"id":"1","event":"eos","reason":"stop"}\n'),
        ("uma-cli -p x --json --max-tokens 3", '{"event":"error","code":"E_MODEL_001"}\n'),
        ("echo x | uma-cli --raw", "\n"),
        ("umaserve metrics", "model  UMA Serve demo\n"),
        ("umaserve metrics", 'model  UMA Serve demo\n{"tokens_per_s": null}\n' * 9),
        ("umaserve metrics --all", "model  UMA Serve demo\n" + "p95_ms  1.0\n" * 9),
        ("umaserve load x/your-model.gguf", "serving None\n"),
        ("umaserve doctor", OK),
        ("umaserve doctor", OK + "missing model      none\n\nReady to serve.\n"),
        ("umaserve doctor", OK + "warn    model      none\n\nReady to serve.\n"),
        ("umaserve top --once", SCREEN),
        ("umaserve top --once", " No daemon at /tmp/uma.sock\n"),
        ("umaserve serve --print-config", '[model]\npath = ""  # default\n'),
        ("umaserve", SERVING + "sessions; ready in 9 ms)\n"),
        ("umaserve", SERVING + "sessions; ready in None ms)\n12:00:01 SIGINT: shutting down\n"),
        ("make run", "Error: no make\n"),
        ("make lint", "make: Nothing to be done for 'lint'.\n"),
        ("make test", "make: Nothing to be done for 'test'.\n"),
        ("make bench", "make: Nothing to be done for 'bench'.\n"),
        ("python -m benchmarks.scheduler --quick", "error: no such benchmark\n"),
        ("python build_llama.py", "nothing to do\n"),
        ("python build_llama.py --list", "no build\n"),
        ("python build_llama.py --source x", "unknown option --help\n"),
        ("python tools/memory_table.py", "\n"),
    ],
)
def test_what_nobody_should_see_is_refused(command: str, out: str) -> None:
    with pytest.raises(AssertionError):
        rules(command)[-1].judge(out, "")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.command)
def test_a_note_beside_the_output_is_refused(rule: Rule) -> None:
    with pytest.raises(AssertionError, match="said"):
        replace(rule, out="(?s).*").judge("fine\n", NOTE)
    with pytest.raises(AssertionError, match="said"):
        replace(rule, out="(?s).*").judge("fine\n", "Traceback (most recent call last):\n")


def test_a_promised_output_is_compared() -> None:
    block = Block(ROOT / "README.md", 1, "sh", "x\n", "a … (b)\n")
    block.judge("a 3 (b)\n")
    for printed in ("", "a 3 (c)\n", "1\na 3 (b)\n", "a\n3 (b)\n", "0 a 3 (b)\n", "a 3 (b) \n"):
        with pytest.raises(AssertionError):
            block.judge(printed)


def test_continued_lines_are_one_command() -> None:
    block = Block(ROOT / "README.md", 1, "sh", "# why\numaserve \\\n  --n-ctx 64\n\nmake test\n")
    assert commands(block) == ["umaserve --n-ctx 64", "make test"]
