"""A conversation as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fixtures.commands import TIMEOUT, environment, outcome, run
from tests.support.fixtures.fake_daemon import FakeDaemon
from umaserve.cli.chat.conversation import Conversation, Turn
from umaserve.cli.chat.talk import Talk
from umaserve.protocol import Load


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        yield daemon


def talks(daemon):
    """What the daemon was sent: for each question the (role, content) of all messages."""
    return [[(m.role, m.content) for m in seen.messages] for seen in daemon.seen]


def asked(*said):
    """Questions and answers in turns, as messages."""
    return list(zip(("user", "assistant") * len(said), said, strict=False))


def test_chat_keeps_the_history(daemon):
    script = "hello there\n\n/system be brief\nsecond\n/system\nthird\n/reset\nfourth\n/nope\n"
    done = run("chat", "--temp", "0", daemon=daemon, stdin=script + "/exit\nnever\n")
    assert done.returncode == 0
    assert done.stdout == "hello there \nsecond \nthird \nfourth \n"
    assert "there is no /nope" in done.stderr
    history = ("hello there", "hello there ", "second", "second ", "third")
    assert talks(daemon) == [
        asked(*history[:1]),
        [("system", "be brief"), *asked(*history[:3])],
        asked(*history),
        asked("fourth"),
    ]
    sessions = [seen.session for seen in daemon.seen]
    assert len(set(sessions[:3])) == 1 and sessions[3] != sessions[0]


def test_the_system_message_outlives_a_reset(daemon):
    run("chat", "--system", "be brief", daemon=daemon, stdin="one\n/reset\ntwo\n")
    assert talks(daemon) == [[("system", "be brief"), *asked(text)] for text in ("one", "two")]


def test_a_question_is_asked_again_and_taken_back(daemon):
    script = "one\ntwo\n/retry\n/undo\nthree\n/undo\n/undo\n/undo\n/retry\nfour\n"
    done = run("chat", "--seed", "7", daemon=daemon, stdin=script)
    assert talks(daemon) == [
        asked("one"),
        asked("one", "one ", "two"),
        asked("one", "one ", "two"),
        asked("one", "one ", "three"),
        asked("four"),
    ]
    assert [seen.sampling["seed"] for seen in daemon.seen] == [7, 7, 8, 7, 7]
    assert done.stderr == (
        "(gone: two)\n(gone: three)\n(gone: one)\n(there is nothing to take back)\n"
        "(there is no question yet)\n"
    )


def test_options_are_shown_and_set(daemon):
    script = "/set\n/set temp 0.5\n/set top_k 7\n/set seed x\n/set nope 1\none\n/set temp -\ntwo\n"
    done = run("chat", "--seed", "3", daemon=daemon, stdin=script)
    assert [seen.sampling["temperature"] for seen in daemon.seen][0] == 0.5
    assert [seen.sampling["top_k"] for seen in daemon.seen] == [7, 7]
    assert [seen.sampling["seed"] for seen in daemon.seen] == [3, 3]
    assert run("chat", daemon=daemon, stdin="three\n")
    default = daemon.seen[-1].sampling["temperature"]
    assert daemon.seen[1].sampling["temperature"] == default != 0.5
    for text in (
        "seed            3            a whole number", "temp            -            a number",
        "(temp is 0.5 from now on)", "(temp is the daemon's default from now on)",
        "seed takes a whole number", "there is no nope; it can be temp, top-p",
    ):  # fmt: skip
        assert text in done.stderr


def test_the_model_is_told_and_replaced(daemon, tmp_path):
    file = tmp_path / "other.gguf"
    file.touch()
    daemon.n_ctx = 500
    script = f"/model\n/model {file}\n/model nosuchmodel\nhello\n"
    done = run("chat", daemon=daemon, stdin=script)
    assert "(fake; conversations of up to 500 tokens)\n" in done.stderr
    assert done.stdout.startswith("serving fake\n") and done.stdout.endswith("hello \n")
    assert [seen.model for seen in daemon.seen if isinstance(seen, Load)][0] == str(file)
    assert "nosuchmodel" in done.stderr


def test_a_failed_question_is_asked_again_alone(daemon):
    done = run("chat", daemon=daemon, stdin="one\nfail now\n/retry\n/undo\ntwo\n")
    failed = asked("one", "one ", "fail now")
    assert talks(daemon)[1:] == [failed, failed, asked("one", "one ", "two")]
    assert "(gone: fail now)" in done.stderr


def test_an_answer_survives_a_retry_that_fails(daemon):
    conversation = Conversation()
    conversation.turns = [Turn("fail", "an old answer")]
    assert Talk(daemon.path, {}, conversation, gives_up=False).retry() == 2
    assert conversation.turns == [Turn("fail", "an old answer")]


texts = st.text(st.characters(codec="utf-8"), max_size=12)


@given(st.none() | texts.filter(bool), st.lists(st.tuples(texts, texts), max_size=6))
@settings(max_examples=50)
def test_what_is_saved_is_loaded(tmp_path_factory, system, turns):
    path = str(tmp_path_factory.mktemp("saved") / "it.json")
    conversation = Conversation(system)
    conversation.turns = [Turn(*turn) for turn in turns]
    conversation.save(path)
    loaded = Conversation.load(path)
    assert (loaded.system, loaded.turns) == (conversation.system, conversation.turns)


@given(st.lists(st.tuples(texts, texts), max_size=8), st.lists(st.booleans(), max_size=8))
def test_the_oldest_are_left_out_by_halves(turns, pops):
    conversation = Conversation()
    conversation.turns = [Turn(*turn) for turn in turns]
    sent = turns
    for pop in pops:
        if pop:
            conversation.pop()
            sent = sent[:-1]
        else:
            count = conversation.leave_out_oldest()
            left = sent[count:]
            assert (count > 0) == bool(sent)
            assert 2 * size_of(left) <= size_of(sent)
            assert count < 2 or 2 * size_of(sent[count - 1 :]) > size_of(
                sent
            )  # no more than needed
            sent = left
        asked_for = [m["content"] for m in conversation.messages("next")]
        assert asked_for == [text for turn in sent for text in turn] + ["next"]


def size_of(turns):
    return sum(len(text) for turn in turns for text in turn)


def test_several_lines_between_quotes_are_one_message(daemon):
    script = 'a\n"""one\n  two\n\nthree"""\n"""\nx\ny\n"""\nlast\n"""never closed\n'
    run("chat", daemon=daemon, stdin=script)
    messages = [seen.messages[-1].content for seen in daemon.seen]
    assert messages == ["a", "one\n  two\n\nthree", "x\ny", "last", "never closed"]


def test_a_conversation_is_saved_and_goes_on_elsewhere(daemon, tmp_path):
    file = tmp_path / "mine.json"
    run("chat", "--system", "s", daemon=daemon, stdin=f"one\n/save {file}\ntwo\n/save {file}\n")
    assert file.stat().st_mode & 0o777 == 0o600
    messages = json.loads(file.read_text())["messages"]
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 2]
    done = run("chat", daemon=daemon, stdin=f"other\n/load {file}\nthree\n/undo\n/load\n/save\n")
    said = [("system", "s"), *asked("one", "one ", "two", "two ", "three")]
    assert talks(daemon)[-1] == said
    assert "(2 turns loaded; the last question was: two)" in done.stderr
    assert "/load needs the name of a file" in done.stderr
    assert "/save needs the name of a file" in done.stderr
    done = run("chat", daemon=daemon, stdin=f"/save {file}0\n/load {file}0\n")
    assert "(0 turns loaded)" in done.stderr


def test_a_file_of_another_kind_is_neither_loaded_nor_replaced(daemon, tmp_path):
    other = tmp_path / "other.txt"
    uneven = tmp_path / "uneven.json"
    uneven.write_text(json.dumps({"messages": [{"role": "assistant", "content": "x"}]}))
    for content in ("my notes", '{"messages": 3}', "\N{LATIN SMALL LETTER U WITH DIAERESIS}"):
        other.write_bytes(content.encode("latin-1"))
        script = f"one\n/save {other}\n/load {other}\n/load {uneven}\n/load {tmp_path}/none\ntwo\n"
        done = run("chat", daemon=daemon, stdin=script)
        assert other.read_bytes() == content.encode("latin-1")
        assert done.stderr.count("the file is no saved conversation") == 2
        assert "have to take turns" in done.stderr and "No such file" in done.stderr
        assert talks(daemon)[-1] == asked("one", "one ", "two")


def test_what_is_no_file_is_neither_waited_for_nor_replaced(daemon, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"one\n/save {pipe}\n/load {pipe}\n/load /dev/zero\ntwo\n"
    done = run("chat", daemon=daemon, stdin=script)
    assert done.stderr.count("it is a named pipe, not a regular file") == 2
    assert "it is a device, not a regular file" in done.stderr
    assert talks(daemon)[-1] == asked("one", "one ", "two")


def test_a_full_context_leaves_out_the_oldest(daemon, tmp_path):
    """40 words: three turns of 12 fit, and the fourth has no room."""
    daemon.n_ctx = 40
    texts = [" ".join([f"w{i}"] * 6) for i in range(6)]
    file = tmp_path / "all.json"
    done = run("chat", daemon=daemon, stdin="\n".join([*texts, "/stats", f"/save {file}", ""]))
    assert done.stdout.split("\n")[:-1] == [f"{text} " for text in texts]
    assert "the context is full: the oldest" in done.stderr
    assert "of 40 tokens of the context" in done.stderr and "left out)" in done.stderr
    last = [content for role, content in talks(daemon)[-1] if role == "user"]
    assert last == texts[-len(last) :] and 1 < len(last) < 6
    assert len(json.loads(file.read_text())["messages"]) == 12


def test_a_message_too_long_by_itself_says_so(daemon):
    daemon.n_ctx = 10
    done = run("chat", daemon=daemon, stdin="a b\n" + "x " * 11 + "\nshort one\n")
    assert "too long by itself" in done.stderr
    assert done.returncode == 0 and done.stdout.endswith("short one \n")


def test_an_answer_that_is_cut_says_why(daemon):
    done = run("chat", "--max-tokens", "2", daemon=daemon, stdin="a b c\n")
    assert outcome(done) == (
        0, "a b \n", '(cut: --max-tokens 2 is reached; "go on" asks for the rest)\n'
    )  # fmt: skip
    daemon.n_ctx = 8
    done = run("chat", daemon=daemon, stdin="a b c d e f\n")
    assert "cut: the context of 8 tokens is full" in done.stderr


def test_an_empty_answer_says_so(daemon):
    done = run("chat", daemon=daemon, stdin="empty\nmore\n")
    assert "ended its answer before it began" in done.stderr
    assert talks(daemon)[-1] == asked("more")


def test_figures_of_the_last_answer(daemon):
    done = run("chat", daemon=daemon, stdin="/stats\na b c\n/stats\n")
    assert done.stderr == (
        "(there is no answer to tell of)\n"
        "model         fake\n"
        "last answer   3 tokens, 2000.0 a second, the first after 1 ms\n"
        "conversation  1 turn, 6 tokens of the context\n"
    )


def test_chat_waits_for_a_model_that_is_loading(daemon):
    daemon.looks_while_loading = 3
    done = run("chat", daemon=daemon, stdin="hello\n")
    assert outcome(done) == (0, "hello \n", "(the model is loading)\n")


def test_a_daemon_that_goes_away_in_an_answer_is_asked_again(daemon):
    done = run("chat", daemon=daemon, stdin="waver then\n")
    assert outcome(done) == (
        0,
        "bye \nwaver then \n",
        "(the daemon went away in the middle of this answer; asking again)\n",
    )
    done = run("chat", daemon=daemon, stdin="hangup\n")
    assert done.returncode == 2 and "closed the connection" in done.stderr


def test_a_restart_and_another_model_cost_nothing(daemon, tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-m", "umaserve", "chat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), "UMA_SOCK": str(tmp_path / "again.sock")},
    )
    assert child.stdin and child.stdout
    for name, said in (("fake", b"one"), ("another", b"two")):
        with FakeDaemon(str(tmp_path / "again.sock"), name) as serving:
            child.stdin.write(said + b"\n")
            child.stdin.flush()
            assert child.stdout.readline() == said + b" \n"
    assert talks(serving) == [asked("one", "one ", "two")]
    _, errors = child.communicate(timeout=TIMEOUT)
    assert errors == b"(the model is another now)\n" and child.returncode == 0


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
