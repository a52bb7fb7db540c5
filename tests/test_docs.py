"""Every command, every Python example and every link of README.md and docs/ works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_runner import LANGUAGES, PAGES, ROOT, Block, Workspace, blocks, commands, kind

BLOCKS = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "sh"]
PYTHON = [block for block in BLOCKS if block.language == "python"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    made = Workspace(tmp_path_factory.mktemp("docs"))
    yield made
    made.stop()


def run_block(workspace: Workspace, block: Block) -> str:
    """Run the lines in order; the daemon that one of them started lives until the end."""
    printed = ""
    try:
        for command in commands(block):
            what = kind(command)
            if what == "daemon":
                workspace.start(command)
            elif what == "dry":
                assert workspace.make_dry(command).strip()
            else:
                if re.search(r"umaserve (generate|chat|top|metrics|load|unload|priority)|uma-cli",
                             command):  # fmt: skip
                    workspace.ensure()
                printed += workspace.run(command)
    finally:
        workspace.stop()
    return printed


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell_block(workspace: Workspace, block: Block) -> None:
    assert commands(block)
    printed = run_block(workspace, block)
    if block.output is not None:
        assert printed == block.output


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_block(workspace: Workspace, tmp_path: Path, block: Block) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.body)
    workspace.ensure()
    try:
        text = workspace.run(f"python {script} 'def fibonacci(n):' {workspace.socket}")
    finally:
        workspace.stop()
    assert text.strip()


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
            kind(command)
    with pytest.raises(ValueError, match="only pipes"):
        kind("echo a && echo b")
    assert kind("umaserve --model ~/m.gguf") == kind("make run") == "daemon"
    assert kind("echo x | .venv/bin/uma-cli --temp 0") == "plain"
    assert kind("make test") == "dry"


def test_continued_lines_are_one_command() -> None:
    block = Block(ROOT / "README.md", 1, "sh", "# why\numaserve \\\n  --n-ctx 64\n\nmake test\n")
    assert commands(block) == ["umaserve --n-ctx 64", "make test"]
