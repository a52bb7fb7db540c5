"""Runs the commands of README.md and docs/ as a reader would, in a scratch copy of the project."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from umaserve.assets import demo_model_path
from umaserve.llama import builds

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"sh", "python", "text", "json", "toml"}
TIMEOUT_S = 300.0

# what `umaserve` takes as a first word and does not run until it is stopped
CLIENT_COMMANDS = {
    "generate", "chat", "top", "metrics", "load", "unload", "priority", "doctor", "build",
}  # fmt: skip
# these would run themselves, or the machine, within a test: see `make_dry`
NESTED_TARGETS = {"test", "test-slow", "bench", "lint"}
READERS = {"echo", "ls", "grep", "head"}


@dataclass(frozen=True)
class Block:
    """A fenced block: ``line`` is that of its fence; ``output`` is what the page says it prints."""

    page: Path
    line: int
    language: str
    body: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page.

    A ``text`` block right after ``<!-- prints -->`` is the exact output of the block before it.
    """
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    at, promised = 0, False
    while at < len(lines):
        fence = re.fullmatch(r"\s*```(\S*)", lines[at])
        if lines[at].strip() == "<!-- prints -->":
            promised = True
        elif fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            body = "\n".join(lines[at + 1 : end]) + "\n"
            if promised:
                last = found.pop()
                found.append(Block(page, last.line, last.language, last.body, body))
            found.append(Block(page, at + 1, fence[1], body))
            at, promised = end, False
        elif lines[at].strip():
            promised = False
        at += 1
    return found


def commands(block: Block) -> list[str]:
    """The command lines of a ``sh`` block, continued ones joined, comments left out."""
    joined = re.sub(r"\\\n\s*", "", block.body)
    lines = (line.strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _name(word: str) -> str:
    return word.removeprefix(".venv/bin/")


def _stages(command: str) -> list[list[str]]:
    """The programs of a pipeline, each with its words; ``VAR=value`` in front is left out."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    stages: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            stages.append([])
        elif re.fullmatch(r"[|&;<>()]+", word):
            raise ValueError(f"only pipes are understood here, not {word!r}: {command}")
        elif stages[-1] or not re.match(r"[A-Z_]+=", word):
            stages[-1].append(word)
    return stages


def kind(command: str) -> str:
    """``daemon``, ``dry`` (must not be nested in a test) or ``plain``; ValueError if unknown."""
    kinds = {_kind(words) for words in _stages(command)}
    return "plain" if kinds == {"plain"} else kinds.pop()


def _kind(words: list[str]) -> str:
    name, rest = _name(words[0]), words[1:]
    if name == "python" and rest[:2] == ["-m", "umaserve"]:
        name, rest = "umaserve", rest[2:]
    if name == "make" and rest:
        if rest[0] == "run":
            return "daemon"
        if rest[0] in NESTED_TARGETS:
            return "dry"
        if rest[0] in ("help", "clean"):
            return "plain"
    elif name in ("umaserve", "umad"):
        if "--print-config" in rest or "--help" in rest:
            return "plain"
        if not rest or rest[0].startswith("-") or rest[0] == "serve":
            return "daemon"
        if rest[0] in CLIENT_COMMANDS:
            return "plain"
    elif name == "python" and rest:
        if rest[0] in ("build_llama.py", "-c", "tools/make_model.py", "tools/memory_table.py"):
            return "plain"
        if rest[0] == "-m" and rest[1].startswith("benchmarks."):
            return "dry"
        if rest[0] == "-m" and rest[1].startswith("umaserve."):
            return "plain"
    elif name in READERS or name == "uma-cli":
        return "plain"
    raise ValueError(f"nobody knows how to test {shlex.join(words)!r}: see tests/docs_runner.py")


def default_interrupt() -> None:
    """For ``preexec_fn``: a shell's background jobs ignore SIGINT, and their children do too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Workspace:
    """A copy of the project with a ``.venv`` that is the running interpreter, and a home folder."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "umaserve"
        self.path.mkdir(parents=True)
        top = ("Makefile", "pyproject.toml", "requirements.lock", "README.md", "LICENSE")
        for name in (*top, "build_llama.py"):
            shutil.copy2(ROOT / name, self.path)
        skip = shutil.ignore_patterns("__pycache__", "results")
        for name in ("umaserve", "bindings", "tools", "tests", "benchmarks", "docs"):
            shutil.copytree(ROOT / name, self.path / name, ignore=skip)
        self._make_venv()
        home = directory / "home"
        (home / "models").mkdir(parents=True)
        os.link(
            self.path / "umaserve/assets" / demo_model_path().name,
            home / "models/your-model.gguf",
        )
        self.socket = str(directory / "u.sock")
        self.daemon: subprocess.Popen[bytes] | None = None
        self.log = directory / "daemon.log"
        # a `make test` around this one passes its own flags on
        other = ("UMA_", "MAKE", "MFLAGS", "ARGS")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(other)}
        build = builds.select("cpu") or builds.select()
        if build is not None:
            kept[builds.BUILD_VARIABLE] = build.key
        self.environment = {
            **kept,
            "HOME": str(home),
            "PATH": f"{self.path / '.venv/bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.path),
            "UMA_CACHE_DIR": str(builds.cache_root()),
            "UMA_SOCK": self.socket,
            # two threads that wait for each other crawl on a busy machine of two cores
            "UMA_THREADS": "1",
        }

    def _make_venv(self) -> None:
        folder = self.path / ".venv/bin"
        folder.mkdir(parents=True)
        cli = "-c 'import sys; from umaserve.cli import {0}; sys.exit({0}())'"
        programs = {
            "python": "",
            "umaserve": cli.format("main"),
            "umad": cli.format("main"),
            "uma-cli": cli.format("generate_main"),
        }
        for name, arguments in programs.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            script.chmod(0o755)
        # newer than the files that say what to install, so that make has nothing to install
        (self.path / ".venv/.ready").touch()

    def run(self, command: str) -> str:
        """Run a line to its end; its standard output.  AssertionError if its status is not 0."""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def make_dry(self, command: str) -> str:
        """What a line that cannot run inside a test would do.

        ``make TARGET`` says it with ``-n``; a benchmark's own help must know each flag of the line.
        """
        words = shlex.split(command)
        while re.match(r"\w+=", words[0]):  # what the line sets in the environment
            words.pop(0)
        if words[0] == "make":
            return self.run(f"make -n {shlex.join(words[1:])}")
        module = next(word for word in words if word.startswith("benchmarks."))
        help = self.run(f"{shlex.quote(words[0])} -m {module} --help")
        for word in words:
            flag = word.split("=")[0]
            assert not flag.startswith("--") or flag in help, f"{command}: no {flag}"
        return help

    def start(self, command: str) -> None:
        """Start a daemon and wait until it says that it serves."""
        assert self.daemon is None, "a daemon of this block runs already"
        with self.log.open("wb") as log:
            self.daemon = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, preexec_fn=default_interrupt,
            )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT_S
        while "serving " not in self.log.read_text():
            assert self.daemon.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def ensure(self) -> None:
        """Have a daemon for a client, where the block has not started one."""
        if self.daemon is None:
            self.start("umaserve")

    def stop(self) -> None:
        """End the daemon, if one runs, as Ctrl-C in its terminal does."""
        daemon, self.daemon = self.daemon, None
        if daemon is None:
            return
        try:
            os.kill(self._daemon_pid(), signal.SIGINT)
            assert daemon.wait(TIMEOUT_S) == 0, self.log.read_text()
            assert not os.path.lexists(self.socket)
        finally:
            if daemon.poll() is None:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
        assert "Traceback" not in self.log.read_text(), self.log.read_text()

    def _daemon_pid(self) -> int:
        """Of whoever owns the socket; ``make`` may stand between us and it."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(self.socket)
        return int(Path(self.socket + ".lock").read_text())
