"""Why an engine died: libllama's own line, and nothing of the dump that Python adds."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_harness import DaemonProcess, model_file
from umaserve.server.engines.exit import EngineExit, LastWords, describe_exit

CAUSE = "ggml.c:4711: GGML_ASSERT(fake != NULL) failed"
NOISE = ("Extension modules", "Fatal Python error", "most recent call", "Thread 0x", "/build/")


def described(text: str, status: int = -signal.SIGABRT) -> str:
    words = LastWords()
    for line in text.splitlines():
        if line.strip():
            words.take(line.rstrip())
    return describe_exit(EngineExit(status, False, False, "", words.lines()))


def clean(text: str) -> bool:
    return not any(noise in text for noise in NOISE)


@pytest.mark.parametrize("fault", ["os.abort()", "faulthandler._sigsegv()", "ctypes.string_at(1)"])
def test_the_dump_of_python_itself_is_left_out(fault: str) -> None:
    code = (
        "import ctypes, faulthandler, os, threading, time, msgspec\n"
        "faulthandler.enable()\n"
        "def wait(n):\n    return wait(n - 1) if n else time.sleep(600)\n"
        "for _ in range(20):\n"
        "    threading.Thread(target=wait, args=(150,), daemon=True).start()\n"
        "time.sleep(0.3)\n"
        f"os.write(2, b'/build/ggml/src/{CAUSE}\\n')\n"
        f"{fault}\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "Extension modules" in run.stderr and run.stderr.count("Thread 0x") > 10
    text = described(run.stderr, run.returncode)
    assert text.endswith(f": {CAUSE}") and clean(text)


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        (f"/b/{CAUSE}", CAUSE),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            "  what():  no such tensor",
            "terminate called after throwing an instance of 'std::runtime_error' | "
            "what():  no such tensor",
        ),
        ("/x/ggml-cuda.cu:98: CUDA error\n", "ggml-cuda.cu:98: CUDA error"),
        ("engine: x.cpp:3: f(): Assertion `a == b' failed.",
         "engine: x.cpp:3: f(): Assertion `a == b' failed."),
        ("*** stack smashing detected ***: terminated",
         "*** stack smashing detected ***: terminated"),
        ("double free or corruption (out)", "double free or corruption (out)"),
    ],
)  # fmt: skip
def test_what_names_a_cause_is_told_whatever_comes_after(printed: str, cause: str) -> None:
    text = described(f"loading\n{printed}\nsome line\nanother line\nthe last line\nand one more")
    assert text == f"died of SIGABRT (a failed assertion in the library): {cause}"


def test_without_a_cause_the_last_lines_are_told() -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "engine.py", line 7, in main\n    boom()\n'
        "KeyError: 'n_ctx'\n"
    )
    text = described(traceback, 1)
    assert text.startswith("left with exit status 1: ") and text.endswith("KeyError: 'n_ctx'")
    assert described("", 1) == "left with exit status 1"


def test_nobody_is_told_what_an_engine_printed_that_was_killed() -> None:
    exit = EngineExit(-signal.SIGKILL, False, False, "", ("a line",))
    assert "a line" not in describe_exit(exit)


@pytest.mark.parametrize("shown", [False, True])
def test_an_abort_of_libllama_itself(shown: bool) -> None:
    """Its log of errors is kept in memory, and outlives the process only where it is shown."""
    code = (
        "import ctypes, faulthandler, sys\n"
        "from umaserve import llama\n"
        "faulthandler.enable()\n"
        "library = llama.load('auto')\n"
        f"{'library.show_errors()' if shown else ''}\n"
        "lib = library.lib\n"
        "lib.llama_model_load_from_file(b'/no/such.gguf', lib.llama_model_default_params())\n"
        "base = sorted((library.build.path / 'lib').glob('libggml-base.*'))[0]\n"
        "ctypes.CDLL(str(base)).ggml_abort(b'/src/x.cpp', 7, b'GGML_ASSERT(%s) failed', b'n > 0')\n"
    )
    command = [sys.executable, "-c", code]
    folder = Path(__file__).parents[2]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert run.returncode == -signal.SIGABRT, run.stderr
    assert ("/no/such.gguf" in run.stderr) == shown
    text = described(run.stderr, run.returncode)
    assert text.endswith("x.cpp:7: GGML_ASSERT(n > 0) failed") and clean(text)


def test_an_abort_while_loading(tmp_path: Path) -> None:
    model = model_file(tmp_path / "load-aborts.gguf")
    with DaemonProcess(tmp_path, model=model, wait=False) as daemon:
        daemon.expected = 1
        assert daemon.wait() == 1
        assert daemon.log.count(CAUSE) >= 2 and clean(daemon.log)


def test_an_abort_while_running_is_told_to_whose_request_it_was(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, n_ctx=1024) as daemon, daemon.client() as client:
        result = client.generate("[abort@3]", max_tokens=20)
        assert result.error is not None and result.error["code"] == "E_RUNTIME_001"
        assert CAUSE in result.error["message"] and clean(result.error["message"])
        assert CAUSE in daemon.log and clean(daemon.log)


def test_an_abort_of_a_load_is_told_to_who_asked(tmp_path: Path) -> None:
    bad = model_file(tmp_path / "load-aborts.gguf")
    with DaemonProcess(tmp_path, n_ctx=1024) as daemon, daemon.client() as client:
        client.send(type="load", model=bad)
        event = client.answer("loaded")
        assert event["code"] == "E_MODEL_002" and event["message"].endswith(CAUSE)


def test_an_engine_that_is_slow_to_leave_still_says_why_it_could_not_load() -> None:
    exit = EngineExit(-signal.SIGKILL, True, True, "it is an encoder-decoder model (t5)", ())
    assert str(exit) == describe_exit(exit) == "it is an encoder-decoder model (t5)"
