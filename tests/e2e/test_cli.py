"""The commands as processes, against a stand-in daemon."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from tests.support.fixtures.commands import TIMEOUT, environment, outcome, run, start
from tests.support.fixtures.fake_daemon import FakeDaemon
from umaserve.cli import COMMANDS
from umaserve.cli.chat import command as chat
from umaserve.cli.parts import foreign


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(str(tmp_path / "d.sock")) as daemon:
        yield daemon


# --- the front door ------------------------------------------------------------------------------


def assert_fits(text):
    """A terminal would break longer lines inside words."""
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_help_lists_every_command():
    done = run("--help", COLUMNS="80")
    assert_fits(done.stdout)
    assert done.returncode == 0
    assert set(COMMANDS) == {
        "serve",
        "generate",
        "chat",
        "top",
        "metrics",
        "load",
        "unload",
        "priority",
        "doctor",
        "build",
        "bench",
        "connect",
        "gateway",
        "cache",
        "service",
        "models",
        "pull",
        "router",
        "run",
        "ps",
        "list",
        "stop",
    }
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    done = run(command, "--help", COLUMNS="80")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ") and done.stderr == ""
    assert_fits(done.stdout)


def test_help_in_a_chat_fits_a_terminal():
    assert_fits(chat.HELP)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_version(command):
    from umaserve import __version__

    assert outcome(run(*command, "--version")) == (0, f"umaserve {__version__}\n", "")


def test_what_hints_name_is_there():
    for words in foreign.COMMANDS.values():
        for name in re.findall(r"umaserve ([a-z]+)", words):
            assert name in COMMANDS
    assert not {*foreign.COMMANDS, *foreign.REASONS} & {*COMMANDS}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generat"], "umaserve has no `generat`; did you mean `umaserve generate`?"),
        (["show", "x"], "umaserve has no `show`; did you mean `umaserve models`?"),
        (["rm", "x"], "umaserve has no `rm`; a model is a file of yours, and `umaserve models"),
        (["launch"], "umaserve has no `launch`; did you mean `umaserve connect`?"),
        (["qwen3-4b"], "umaserve has no `qwen3-4b`; did you mean `umaserve run qwen3-4b`?"),
        (["hf:a/b"], "did you mean `umaserve run hf:a/b`?"),
        (["zzz"], "see `umaserve --help`"),
        (["--n-ctxx", "5"], "umaserve serve: unknown flag --n-ctxx; did you mean --n-ctx?"),
        (["--n-ctx", "big"], "flag --n-ctx: 'big' is not possible: it takes \"auto\" or a whole"),
        (["--n", "5"], "unknown flag --n"),
        (["serve", "--mlock", "model"], "unexpected argument 'model'"),
        (["serve", "--port", "8080"], "unknown flag --port; here it is --http HOST:PORT"),
        (["-c", "4096"], "unknown flag -c; here it is --n-ctx N"),
        (["generate", "-n", "5", "-p", "x"], "unknown flag -n; here it is --max-tokens N"),
        (["generate", "-p", "x", "y"], "-p has the prompt already; what is 'y'?"),
        (["generate", "--tmp", "1"], "unknown flag --tmp; did you mean --temp?"),
        (["generate", "--temp", "hot"], "argument --temp: invalid float value: 'hot'"),
        (["priority", "a", "vip"], "invalid choice: 'vip'"),
    ],
)
def test_mistakes_on_the_command_line(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_mistakes_in_environment_and_file(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[model]\nn_cxt = 1\n")
    done = run("serve", UMA_CONFIG=str(path))
    assert (done.returncode, done.stderr) == (
        2,
        f"umaserve: {path}: unknown key 'n_cxt' in [model]; did you mean n_ctx?\n",
    )
    done = run("serve", "--print-config", UMA_SOKC="x")
    assert done.returncode == 0
    assert "did you mean UMA_SOCK?" in done.stderr


def test_print_config(tmp_path):
    done = run("--print-config", "--parallel", "3", UMA_N_CTX="512")
    assert done.returncode == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "parallel = 3 # flag --parallel" in lines
    assert "n_ctx = 512 # environment UMA_N_CTX" in lines
    assert "max_queue = 256 # default" in lines


def test_serve_without_a_dependency_says_so():
    code = (
        "import sys; sys.modules['trio'] = None; "
        "from umaserve.cli import main; sys.exit(main(['serve', '--model', 'demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "umaserve: trio is not installed; `umaserve doctor` says what to do\n",
    )


def test_help_names_the_private_way():
    for words in (["generate", "--help"], ["chat", "--help"]):
        assert "can read it in the process list" in " ".join(run(*words).stdout.split())
    assert "what is private goes to standard input" in " ".join(
        run("generate", "--help").stdout.split()
    )


# --- generate ------------------------------------------------------------------------------------


def test_generate_prints_the_text_alone(daemon):
    assert outcome(run("generate", "-p", "one two", daemon=daemon)) == (0, "one two ", "")


def test_generate_reads_standard_input(daemon):
    assert outcome(run("generate", daemon=daemon, stdin="fröm stdin\n\n")) == (
        0,
        "fröm stdin ",
        "",
    )
    assert daemon.seen[-1].prompt == "fröm stdin\n"


def test_generate_sends_its_flags(daemon):
    flags = (
        "-p x --max-tokens 3 --temp 0 --top-p 0.5 --top-k 7 --min-p 0.1 --seed 9 --stop A "
        "--stop B --no-stream --no-speculate --priority background"
    )
    assert outcome(run("generate", *flags.split(), daemon=daemon)) == (0, "x ", "")
    (message,) = daemon.seen
    assert (message.max_tokens, message.stop, message.stream, message.priority) == (
        3,
        ("A", "B"),
        False,
        "background",
    )
    sampling = message.sampling
    asked = {"temperature": 0.0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": 9}
    assert {name: sampling[name] for name in asked} == asked
    assert not message.speculate


@pytest.mark.parametrize(
    ("flags", "has_template", "roles"),
    [
        ([], True, ["user"]),
        (["--system", "be brief"], True, ["system", "user"]),
        (["--system", "be brief"], False, ["system", "user"]),
        (["--raw"], True, None),
        ([], False, None),
    ],
)
def test_generate_talks_to_a_model_that_is_made_for_it(daemon, flags, has_template, roles):
    daemon.has_template = has_template
    done = run("generate", "-p", "hi there", *flags, daemon=daemon)
    assert done.returncode == 0 and not done.stderr
    (message,) = daemon.seen
    if roles is None:
        assert message.prompt == "hi there" and message.messages is None
    else:
        assert [m.role for m in message.messages] == roles
        assert message.messages[-1].content == "hi there"


def test_generate_waits_for_a_model_that_is_loading(daemon):
    daemon.has_template, daemon.looks_while_loading = True, 2
    done = run("generate", "-p", "hi", daemon=daemon)
    assert done.returncode == 0 and done.stderr == "(the model is loading)\n"
    assert daemon.seen[0].messages[0].content == "hi"


def test_generate_says_that_an_answer_is_empty(daemon):
    done = run("generate", "-p", "empty", daemon=daemon)
    assert done.returncode == 0 and not done.stdout
    assert "ended its answer before it began" in done.stderr


@pytest.mark.parametrize("words", [["hello", "there"], ["--max-tokens", "9", "hello there"]])
def test_a_prompt_needs_no_flag(daemon, words):
    assert outcome(run("generate", *words, daemon=daemon)) == (0, "hello there ", "")


@pytest.mark.parametrize(
    "words",
    [["m.gguf"], ["serve", "m.GGUF"], ["-m", "m.gguf"], ["serve", "--model=m.gguf"]],
)
def test_a_model_is_named_as_people_name_it(words):
    done = run(*words, "--print-config")
    assert done.returncode == 0
    assert re.search(r'path = "m\.gguf" +# flag --model', done.stdout, re.IGNORECASE)


def test_serve_takes_a_name_without_a_flag():
    done = run("serve", "qwen3-4b", "--print-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r'path = "qwen3-4b" +# flag --model', done.stdout)


def test_a_client_waits_a_moment_for_a_daemon_that_starts(tmp_path):
    path = str(tmp_path / "late.sock")
    command = [sys.executable, "-m", "umaserve", "generate", "-p", "hi", "--socket", path]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert "waiting a moment" in child.stderr.readline()
        with FakeDaemon(path):
            assert child.wait(20) == 0
        assert child.stdout.read().strip() == "hi"


def test_raw_and_system_exclude_each_other(daemon):
    done = run("generate", "-p", "x", "--raw", "--system", "y", daemon=daemon)
    assert done.returncode == 2 and "--raw" in done.stderr and not daemon.seen


def test_generate_without_flags_leaves_the_defaults_to_the_server(daemon):
    daemon.has_template = True
    run("generate", "-p", "x", daemon=daemon)
    (message,) = daemon.seen
    assert message.max_tokens is None and message.sampling["temperature"] == 0.8


@pytest.mark.parametrize("flags", [[], ["--raw"]])
def test_a_text_that_is_completed_has_an_end(daemon, flags):
    daemon.has_template = bool(flags)
    words = ["w"] * 300
    done = run("generate", *flags, daemon=daemon, stdin=" ".join(words))
    assert done.returncode == 0 and done.stdout.split() == words[:256]
    assert done.stderr == "(cut after 256 tokens; --max-tokens N sets another number)\n"
    done = run("generate", *flags, "--max-tokens", "280", daemon=daemon, stdin=" ".join(words))
    assert outcome(done) == (0, "w " * 280, "")  # whoever sets a number knows it
    done = run("generate", *flags, "--json", daemon=daemon, stdin=" ".join(words))
    assert done.stderr == "" and json.loads(done.stdout.splitlines()[-1])["reason"] == "length"


@pytest.mark.parametrize("given", [["-p", "explain:"], ["explain:"]])
def test_standard_input_goes_behind_the_prompt(daemon, tmp_path, given):
    run("generate", *given, daemon=daemon, stdin="def f():\n    return 1\n")
    assert daemon.seen[-1].prompt == "explain:\n\ndef f():\n    return 1"
    run("generate", *given, daemon=daemon, stdin="")
    assert daemon.seen[-1].prompt == "explain:"
    assert start("generate", *given, daemon=daemon).wait(TIMEOUT) == 0  # /dev/null
    assert daemon.seen[-1].prompt == "explain:"
    (tmp_path / "code.py").write_text("x = 1")
    with open(tmp_path / "code.py") as file:
        command = [sys.executable, "-m", "umaserve", "generate", *given]
        subprocess.run(
            command, stdin=file, check=True, capture_output=True, env=environment(daemon)
        )
    assert daemon.seen[-1].prompt == "explain:\n\nx = 1"


def test_an_input_that_nobody_writes_is_told(daemon):
    with subprocess.Popen(
        [sys.executable, "-m", "umaserve", "generate", "-p", "hi"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(daemon),
    ) as child:
        assert b"waiting for standard input" in child.stderr.readline()
        assert child.communicate(b"there\n", timeout=TIMEOUT)[0] == b"hi there "


def test_generate_as_json(daemon):
    done = run("generate", "-p", "a b", "--json", daemon=daemon)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["event"] for e in events] == ["token", "token", "eos"]
    assert events[0] == {"id": events[0]["id"], "event": "token", "text": "a ", "token_id": 0}
    assert events[2]["reason"] == "stop"
    counts = {"prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 2}
    assert events[2]["usage"] == counts
    assert events[2]["timings"]["ttft_ms"] == 1.0
    done = run("generate", "-p", "drafts b", "--json", daemon=daemon)
    drafts = {"drafted_tokens": 9, "accepted_tokens": 4}
    assert json.loads(done.stdout.splitlines()[-1])["usage"] == counts | drafts


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["-p", "fail"], 2, "error: E_RUNTIME_001: llama_decode failed"),
        (["-p", "x" * 70000], 2, "error: E_LIMIT_001: prompt is 70000 bytes"),
        (["-p", "x", "--temp", "99"], 3, '"temperature" must be a number from -10 to 10'),
        (["-p", "garbage"], 3, "not JSON"),
        (["-p", "x", "--temp", "nan"], 3, "cannot be written as JSON"),
        ([b"-p", b"\xff"], 3, "not valid Unicode"),
        (["-p", "hangup"], 2, "closed the connection before the answer was complete"),
        (["-p", ""], 2, "the prompt is empty"),
        (["-p", "x", "--socket", "/tmp/no/such.sock"], 2, "start one with `umaserve --socket"),
    ],
)
def test_generate_exit_statuses(daemon, flags, status, words):
    done = run("generate", *flags, daemon=daemon)
    assert done.returncode == status
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_generate_errors_as_json_too(daemon):
    done = run("generate", "-p", "fail", "--json", daemon=daemon)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "event": "error",
        "code": "E_RUNTIME_001",
        "message": "llama_decode failed",
    }
    assert done.returncode == 2


def test_an_interrupt_cancels_on_the_server_first(daemon):
    child = start("generate", "-p", "slow", daemon=daemon)
    assert child.stdout.read(5) == b"slow "
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=TIMEOUT)
    assert (child.returncode, err) == (130, b"")
    (message, _) = daemon.seen
    assert daemon.cancelled == [message.id]


def test_an_interrupt_while_the_daemon_is_mute(daemon):
    child = start("generate", "-p", "mute", daemon=daemon)
    daemon.wait_for(lambda: daemon.seen)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=TIMEOUT)
    assert (child.returncode, err) == (130, b"")
    assert len(daemon.cancelled) == 1


def test_a_closed_pipe_is_quiet_and_cancels(daemon):
    child = start("generate", "-p", "slow", daemon=daemon)
    assert child.stdout.read(5) == b"slow "
    child.stdout.close()
    assert child.wait(TIMEOUT) == 0
    assert child.stderr.read() == b""
    child.stderr.close()
    assert len(daemon.cancelled) == 1


def test_uma_cli_is_generate(daemon):
    done = subprocess.run(
        [sys.executable, "-c", "from umaserve.cli import generate_main as m; raise SystemExit(m())"]
        + ["-p", "one two"],
        capture_output=True,
        text=True,
        env=environment(daemon),
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two ", "")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["one two"], b"one two \r\n"),
        (["one two", "--no-stream"], b"one two \r\n"),
        (["one two", "--max-tokens", "1"], b"one \r\n"),
        (["fail"], b"oh \r\nerror: E_RUNTIME_001: llama_decode failed\r\n"),
        (["hangup"], b"bye \r\nerror: the daemon at"),
        (["empty"], b"(the model ended its answer"),
    ],
)
def test_on_a_terminal_what_comes_next_has_its_own_line(daemon, words, printed):
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "umaserve", "generate", "-p", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(daemon),
    )
    os.close(slave)
    child.wait(TIMEOUT)
    seen = os.read(master, 1000)
    os.close(master)
    assert seen.startswith(printed) and seen.endswith(b"\r\n") and b"\r\n\r\n" not in seen


@pytest.mark.parametrize("command", [["generate", "-p", "x"], ["metrics"], ["unload"]])
def test_client_commands_import_nothing_heavy(daemon, command):
    code = (
        "import sys; from umaserve.cli import main; status = main(sys.argv[1:]); "
        "print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'numpy', 'numba', 'trio', 'msgspec', 'cffi', 'rich', 'jinja2', 'asyncio', 'inspect'}), "
        "file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True,
        text=True,
        env=environment(daemon),
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
