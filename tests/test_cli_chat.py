"""A conversation as a process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.fixtures.commands import TIMEOUT, environment, outcome, run
from tests.fixtures.fake_daemon import FakeDaemon


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        yield daemon


def test_chat_keeps_the_history(daemon):
    script = "hello there\n\n/system be brief\nsecond\nthird\n/reset\nfourth\n/nope\n/exit\nnever\n"
    done = run("chat", "--temp", "0", daemon=daemon, stdin=script)
    assert done.returncode == 0
    assert done.stdout == "hello there \nsecond \nthird \nfourth \n"
    assert "there is no /nope" in done.stderr
    talks = [[(m.role, m.content) for m in seen.messages] for seen in daemon.seen]
    system = ("system", "be brief")
    assert talks == [
        [("user", "hello there")],
        [system, ("user", "second")],
        [system, ("user", "second"), ("assistant", "second "), ("user", "third")],
        [system, ("user", "fourth")],
    ]
    sessions = [seen.session for seen in daemon.seen]
    assert sessions[1] == sessions[2]
    assert len(set(sessions)) == 3


def test_chat_on_input_that_is_no_text(daemon):
    done = run("chat", daemon=daemon, stdin=b"a\xffb\n")
    assert outcome(done) == (0, "a\N{REPLACEMENT CHARACTER}b \n", "")


def test_chat_goes_on_after_an_error(daemon):
    done = run("chat", daemon=daemon, stdin="fail\nand again\n")
    assert done.returncode == 0
    assert done.stdout == "oh \nand again \n"
    assert "E_RUNTIME_001" in done.stderr
    done = run("chat", daemon=daemon, stdin="fail\n")
    assert done.returncode == 2


def test_an_interrupt_cuts_the_answer_not_the_chat(daemon):
    child = subprocess.Popen(
        [sys.executable, "-m", "umaserve", "chat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(daemon),
    )
    child.stdin.write(b"slow\n")
    child.stdin.flush()
    assert child.stdout.read(5) == b"slow "
    child.send_signal(signal.SIGINT)
    daemon.wait_for(lambda: daemon.cancelled)
    out, err = child.communicate(b"more\n", timeout=TIMEOUT)
    assert out.endswith(b"more \n") and b"cut short" in err
    assert child.returncode == 0
    last = daemon.seen[-1].messages
    assert [m.role for m in last] == ["user", "assistant", "user"]
    assert last[1].content.startswith("slow ")
