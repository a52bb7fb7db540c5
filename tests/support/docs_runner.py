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

from tests.support.waiting import until
from umaserve.assets import demo_model_path
from umaserve.client import Client
from umaserve.llama import builds

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"sh", "python", "text", "json", "toml", "mermaid"}
TIMEOUT_S = 300.0

DEFAULT_SOCKET = "/tmp/uma.sock"  # where the pages say that a daemon is

CLOCK = r"\d\d:\d\d:\d\d "
# Text, and no `None` that is Python's rather than the answer's: one at the start of a line or right
# after a word.
ANSWER = r"(?s)(?!.*(?:^|[^ =([`])None(?: \d+)?\s*\Z).*\S.*"
# a daemon that nobody told of a model
UNTOLD = (
    r"(?:umaserve: no model was named or chosen, so this serves the demonstration; .*\n)?"
    r"umaserve: real models for this machine: .*\n"
)
SERVED = (
    rf"(?:{UNTOLD})?"
    rf"(?:{CLOCK}(?:loading \S+: [a-z ]+(?:\(once.*\)| \d+%)?|http://\S+ answers .*)\n)*"
    rf"{CLOCK}serving UMA Serve demo on \S+(?: and http://\S+)? "
    r"\(\w+; \d+ KV cells, \d+ sequences, \d+ sessions; ready in \d+ ms\)\n"
    rf"(?:{CLOCK}http://\S+ answers .*\n)?"
    rf"{CLOCK}SIGINT: shutting down\n"
    rf"{CLOCK}stopped\n"
)
READY = r"libllama \S+ \(\w+\) is ready: /\S.*\n"
HELP = r"(?s)usage: .*--help.*"


@dataclass(frozen=True)
class Rule:
    """Of a program with its words (a regular expression): how it is run, and what a person sees.

    ``how`` is ``plain``, ``client`` (needs a daemon), ``daemon``, or ``dry`` for what would run the
    tests, or the machine, within a test: see `Workspace.make_dry`.  ``out`` has to match all that
    it prints, ``err`` all of standard error (a daemon's two are one).  ``writes`` is a file in the
    project's folder, and what it has to hold in the end.
    """

    command: str
    how: str
    out: str
    err: str = ""
    writes: tuple[str, str] | None = None

    def judge(self, out: str, err: str) -> None:
        """AssertionError if that is not what a person has to see."""
        assert re.fullmatch(self.out, out), f"{self.command} printed\n{out}\nnot {self.out}"
        assert re.fullmatch(self.err, err), f"{self.command} said\n{err}\nnot {self.err}"


# the first that matches counts
RULES = (
    Rule(r"echo .+", "plain", r".+\n"),
    Rule(r"head -\d+ \w+", "plain", r"(.*\n)+"),
    Rule(
        r"uma-cli .+ --json .*", "client",
        r'(\{"id":.*"event":"token","text":".+\}\n)+\{"id":.*"event":"eos".*\}\n',
    ),
    Rule(r"(uma-cli|umaserve generate) .+ --max-tokens .+", "client", ANSWER),
    # a sampled answer has no end now and then, and the person is told
    Rule(
        r"(uma-cli|umaserve generate) .+", "client", ANSWER,
        r"(\(cut after 2048 tokens; --max-tokens N sets another number\)\n)?",
    ),
    Rule(r"umaserve metrics", "client", r"model +UMA Serve demo\n([\w.]+ +\S.*\n){10,}"),
    Rule(r"umaserve metrics --all", "client", r"model +UMA Serve demo\n([\w.]+ +\S.*\n){80,}"),
    Rule(
        r"umaserve load \S+", "client",
        r"serving \S+/your-model\.gguf\n", r"loading: start\n(loading: [a-z ]+\n)*",
    ),
    Rule(
        r"umaserve models", "plain",
        r"(?s)(no model was found\.\nmodels for .*looked in:\n  .*| *size .*)\n",
    ),
    Rule(
        r"umaserve models --model-dir \S+", "plain",
        r"(?s) *size +params +quant +context +fits +tokens +name *\n.*"
        r" \d+ +yes +(-|(about |at least )?\d+/s) +your-model\.gguf *\n.*fits: .*",
    ),
    Rule(
        # what a machine lacks may be warned of, and what to do about it
        r"umaserve doctor", "client",
        r"(ok +\w+ +\S.*\n|warn +(cache|metrics|builds|compiler) +\S.*\n( +-> .*\n)?){8,}"
        r"\nReady to serve\.\n",
    ),
    Rule(
        r"umaserve top --once", "client",
        r" (Idle|Fast|Slow|Busy|Reading|Overloaded): .*\n UMA Serve demo · \w+ · up [\d:]+ · .*\n"
        r" CPU .* memory .*\n─ time between tokens, ms ─+( +[a-z]+\d*)+\n"
        r" interactive( +\S+)+\n background( +\S+)+\n"
        r"(─ apps.*\n( .+\n)+)?─ requests: \d+ now · .*\n(.*\n)+",
    ),
    Rule(
        r"umaserve serve --print-config", "plain",
        r'\[model\]\npath = ""  +# default\n((\[[a-z.]+\]|\w+ = \S.*  # \w.*)?\n){40,}',
    ),
    Rule(
        r"umaserve serve --scorecard score\.csv .*", "daemon", SERVED,
        writes=("score.csv", r"time,model,\S+\n(\d+\.\d+,(UMA Serve demo)?,\S+\n)+"),
    ),
    Rule(
        r"umaserve serve --trace trace\.jsonl", "daemon", SERVED,
        writes=("trace.jsonl", r"(\{.+\}\n)+"),
    ),
    Rule(r"make run|umaserve( serve)?( --.*)?", "daemon", SERVED),
    Rule(r"make lint", "dry",
         r".* ruff check .*\n.* tools.long_parts\n(.*/check-jsonschema .*\n){2}"
         r".* actionlint .*\n.* mypy\n"),
    Rule(r"make (test|test-slow|test-clients|test-real)", "dry", r"(?s).* pytest .*-m .*"),
    Rule(r"make bench.*", "dry", r"(?s).* pytest benchmarks .*"),
    Rule(r"python -m benchmarks\..+", "dry", HELP),
    # with a source and a backend that few machines have
    Rule(r"python build_llama\.py --source .*", "dry", HELP),
    Rule(r"python build_llama\.py", "plain", READY),
    Rule(r"python build_llama\.py --list", "plain", r"([* ] \S+  \(.+\)\n)+"),
    Rule(r"python tools/memory_table\.py( --tables| --auto)?", "plain", r"(?s).+ [GM]iB.*\n"),
    Rule(r"python \S+/example\.py .*", "client", ANSWER),
)  # fmt: skip


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

    def judge(self, printed: str) -> None:
        """AssertionError if what the page says of its output is not there."""
        if self.output is not None:
            assert is_like(self.output, printed), f"{printed}\nnot\n{self.output}"


def is_like(shown: str, printed: str) -> bool:
    """``…`` stands for anything within a line."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), printed) is not None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page.

    A ``text`` block right after ``<!-- prints -->`` is the output of the block before it, word for
    word; ``…`` stands for what each machine has of its own.
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


def mentioned(page: Path) -> list[str]:
    """Command lines that a reader may type, though no test runs them: those of ``text`` blocks,
    and those in backquotes.  Of a pipeline the first program, and nothing of a program by itself.
    """
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    found = {" ".join(line.split()) for line in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)}
    for block in blocks(page):
        if block.language == "text":
            found |= set(commands(block))
    program = r"(\w+=\S+ )*(\.venv/bin/)?(umaserve|uma-cli|make|python3?) +[^|<> ][^|<>]*"
    matches = (re.match(program, line) for line in sorted(found))
    # a text in Python has no flags to look up
    return [match[0].strip() for match in matches if match and " -c " not in match[0]]


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


def rules(command: str) -> list[Rule]:
    """One for each program of the line; ValueError for a program that has none."""
    found = []
    for words in _stages(command):
        line = " ".join(words).removeprefix(".venv/bin/")
        fitting = [rule for rule in RULES if re.fullmatch(rule.command, line)]
        if not fitting:
            raise ValueError(f"nobody knows what {line!r} shows: see tests/support/docs_runner.py")
        found.append(fitting[0])
    return found


def default_interrupt() -> None:
    """For ``preexec_fn``: a shell's background jobs ignore SIGINT, and their children do too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Workspace:
    """A copy of the project with a ``.venv`` that is the running interpreter, and a home folder."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "umaserve"
        self.path.mkdir(parents=True)
        locks = ["requirements.lock", "requirements-test.lock"]
        top = ["Makefile", "pyproject.toml", "README.md", "LICENSE", "build_llama.py"]
        for name in top + locks:
            shutil.copy2(ROOT / name, self.path)
        skip = shutil.ignore_patterns("__pycache__", "results")
        for name in ("umaserve", "bindings", "tools", "tests", "benchmarks", "demo_model", "docs"):
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
        self._helps: dict[tuple[str, ...], tuple[str, str]] = {}
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
        for stamp in (".ready", ".ready-test"):
            (self.path / ".venv" / stamp).touch()

    def run(self, command: str) -> tuple[str, str]:
        """Run a line to its end; its standard output and error.  AssertionError if it fails."""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def make_dry(self, command: str) -> tuple[str, str]:
        """What a line that cannot run inside a test would do.

        ``make TARGET`` says it with ``-n``; the help of a program must know each flag of the line.
        """
        (words,) = _stages(command)
        if words[0] == "make":
            out, err = self.run(f"make -n {shlex.join(words[1:])}")
            for word in words[2:]:
                assert word.removeprefix("ARGS=") in out, f"{command}\n{out}"
            return out, err
        program = words[: 3 if words[1] in ("-m", "service") else 2]
        if program[0] == "umaserve" and program[1].startswith("-"):
            program[1] = "serve"
        out, err = self._help(tuple(program[:1] if program[0] == "uma-cli" else program))
        for word in words[1:]:
            flag = word.split("=")[0]
            if re.fullmatch(r"--[\w-]+", flag):
                assert re.search(rf"(?<![\w-]){flag}(?![\w-])", out), f"{command}: no {flag}"
        return out, err

    def _help(self, program: tuple[str, ...]) -> tuple[str, str]:
        if program not in self._helps:
            self._helps[program] = self.run(f"{shlex.join(program)} --help")
        return self._helps[program]

    def show(self, command: str) -> str:
        """Do what a line says, with a daemon where it needs one.  What it prints, or nothing of a
        daemon, which runs on.  AssertionError if a person would not see what they have to."""
        found = rules(command)
        hows = {rule.how for rule in found}
        for rule in found:
            if rule.writes:
                (self.path / rule.writes[0]).unlink(missing_ok=True)
        if "daemon" in hows:
            self.stop()
            self.start(command)
            return ""
        if "client" in hows:
            self.ensure()
        out, err = self.make_dry(command) if "dry" in hows else self.run(command)
        found[-1].judge(out, err)
        self._judge_files(found)
        return out.replace(self.socket, DEFAULT_SOCKET)

    def _judge_files(self, found: list[Rule]) -> None:
        for rule in found:
            if rule.writes:
                name, content = rule.writes
                text = (self.path / name).read_text("utf-8")
                assert re.fullmatch(content, text), f"{name} holds\n{text}\nnot {content}"

    def start(self, command: str) -> None:
        """Start a daemon and wait until it says that it serves."""
        assert self.daemon is None, "a daemon of this block runs already"
        # `make run` has HTTP; the usual port may be another's
        http = {"UMA_HTTP": "127.0.0.1:0"} if command.startswith("make") else {}
        with self.log.open("wb") as log:
            self.daemon = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.path, env=self.environment | http, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, preexec_fn=default_interrupt,
            )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT_S
        while "serving " not in self.log.read_text():
            assert self.daemon.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

        # figures are of requests, so there has to be one; and a daemon that serves has to answer
        with Client(self.socket) as client:
            assert client.complete("def fibonacci(n):", max_tokens=8).text

    def ensure(self) -> None:
        """Have a daemon for a client; one is enough for many blocks."""
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

    def stop_shown(self, command: str) -> str:
        """End the daemon of a line; what it printed while it served, less how far its load was."""
        found = rules(command)
        for rule in found:
            if rule.writes:
                until((self.path / rule.writes[0]).exists, TIMEOUT_S)
        served = re.sub(UNTOLD, "", self.log.read_text())
        served = re.sub(rf"{CLOCK}(loading|http://\S+ answers) .*\n", "", served)
        served = re.sub(r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:8080", served)
        self.stop()
        found[-1].judge(self.log.read_text(), "")
        self._judge_files(found)
        return served.replace(self.socket, DEFAULT_SOCKET)

    def _daemon_pid(self) -> int:
        """Of whoever owns the socket; ``make`` may stand between us and it."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(self.socket)
        return int(Path(self.socket + ".lock").read_text())
