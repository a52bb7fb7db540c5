"""Samplers and scheduler, compiled in a process of their own while uma-chat is built."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

import build_llama
from tests.support.fixtures.tiny_llama import write_tree
from umaserve.llama import builds
from umaserve.llama.building import programs, samplers
from umaserve.llama.building.progress import Reporter, Step


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch):
    """What runs in the place of the engine's compile step: a program's text."""

    def run_instead(program: str) -> None:
        command = [sys.executable, "-uc", textwrap.dedent(program)]
        monkeypatch.setattr(samplers, "run_module", lambda _: command)

    return run_instead


def test_both_are_made_at_the_same_time(tmp_path: Path, monkeypatch, compiler) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(builds.BUILD_VARIABLE, raising=False)
    meet = tmp_path / "meet.py"
    meet.write_text(textwrap.dedent(f"""
        import pathlib, sys, time
        mine, other = (pathlib.Path({str(tmp_path)!r}, name) for name in sys.argv[1:])
        mine.touch()
        until = time.monotonic() + 60
        while not other.exists() and time.monotonic() < until:
            time.sleep(0.01)
        sys.exit(not other.exists())
    """))
    sources = tmp_path / "native"
    sources.mkdir()
    (sources / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.19)\nproject(uma-chat CXX)\n"
        "add_executable(uma-chat main.cpp)\n"
        f"add_custom_command(TARGET uma-chat PRE_BUILD COMMAND {sys.executable} {meet} b a)\n"
    )
    (sources / "main.cpp").write_text("int main() { return 0; }\n")
    monkeypatch.setattr(builds, "CHAT_SOURCES", sources)
    monkeypatch.setattr(programs, "FOR_CHAT", ())
    builds.chat_digest.cache_clear()
    compiler(f"""
        import subprocess, sys
        print("  50% of the functions")
        sys.exit(subprocess.call([sys.executable, {str(meet)!r}, "a", "b"]))
    """)
    out = io.StringIO()
    build = build_llama.ensure(
        "cpu", source_path=write_tree(tmp_path / "tree"), with_samplers=True, report=Reporter(out)
    )
    builds.chat_digest.cache_clear()
    assert build.chat_program is not None, out.getvalue()
    said = out.getvalue()
    assert "Compiling samplers and scheduler: done in" in said and "failed" not in said
    # the binding that the samplers' engine needs comes first
    assert said.index("Compiling the binding") < said.index("Compiling samplers")


def test_a_failure_is_told_with_its_last_lines_and_costs_no_build(compiler) -> None:
    compiler("""
        import sys
        for n in range(20): print("line", n)
        sys.exit("no more memory")
    """)
    out, done = io.StringIO(), False
    with samplers.compiled_meanwhile(Reporter(out)):
        done = True
    assert done
    *_, first, second, last = out.getvalue().splitlines()
    assert (first, second, last) == ("line 18", "line 19", "no more memory")
    assert "Compiling samplers and scheduler failed with status 1:" in out.getvalue()


def test_an_interrupted_build_ends_it_with_all_its_children(tmp_path: Path, compiler) -> None:
    pids = tmp_path / "pids"
    compiler(f"""
        import os, pathlib, subprocess, sys
        child = subprocess.Popen(["sleep", "600"])
        pathlib.Path({str(pids)!r}).write_text(f"{{os.getpid()}} {{child.pid}}\\n")
        print("ready")
        child.wait()
    """)
    with pytest.raises(KeyboardInterrupt), samplers.compiled_meanwhile(Reporter(io.StringIO())):
        while not pids.exists() or not pids.read_text().endswith("\n"):
            time.sleep(0.01)
        family = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        raise KeyboardInterrupt
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_how_far_it_is_goes_to_the_step(compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Step, "update", lambda step, done, total: seen.append((done, total)))
    compiler("""
        for share in (10, 40, 99): print(f"  {share}% of the functions")
    """)
    with samplers.compiled_meanwhile(Reporter(io.StringIO())):
        pass
    assert seen == [(10, 100), (40, 100), (99, 100)]


def test_two_steps_share_a_terminal() -> None:
    """Each has a bar, a line goes above them, and the last one leaves the terminal as it was."""
    program = textwrap.dedent("""
        from umaserve.llama.building.progress import Reporter
        report = Reporter()
        with report.step("first") as first:
            with report.step("second") as second:
                first.update(1, 4)
                second.update(2, 4, "file.o")
            report.say("between [them]")
            first.update(3, 4)
        report.say("over")
    """)
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    done = subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs,
                            env={**os.environ, "TERM": "xterm"})  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # how Linux tells the end
        pass
    os.close(ours)
    assert done.wait() == 0, said
    text = said.decode()
    assert "first" in text and "second" in text and "between [them]" in text
    assert text.index("second: done in") < text.index("between") < text.index("first: done in")
    assert text.rstrip().endswith("over")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor, hidden and shown
