"""``umaserve connect`` as people use it, on settings of each app and beside a real daemon."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures.commands import TIMEOUT, environment
from tests.support.gateway import gateway
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, eventually
from tests.support.settings_of_apps import SETTINGS
from umaserve.cli import main
from umaserve.cli.connect import check
from umaserve.connect.edits import found
from umaserve.connect.others import APPS
from umaserve.connect.text import parse
from umaserve.llama.builds import cache_root
from umaserve.system.own_key import own_key

VARIABLES = (
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "CONTINUE_GLOBAL_DIR",
    "LLM_USER_PATH", "UMA_API_KEY",
)  # fmt: skip
KEY = "a-key-of-this-test-0"


STATE = os.environ.get("UMA_STATE_DIR", "")  # of the daemon, which makes its key there


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with real(tmp_path_factory.mktemp("daemon"), http="127.0.0.1:0") as daemon:
        port_of(daemon)
        yield daemon


@pytest.fixture
def home(daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("UMA_CACHE_DIR", str(cache_root()))  # where the chat layer lies
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("UMA_STATE_DIR", raising=False)  # copies lie below the home folder
    monkeypatch.setenv("UMA_SOCK", daemon.path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def url(daemon: DaemonProcess) -> str:
    return f"http://127.0.0.1:{port_of(daemon)}"


def files_below(home: Path) -> dict[str, bytes]:
    """All but what `connect` keeps for itself."""
    return {
        path.relative_to(home).as_posix(): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and ".local/state" not in path.as_posix()
    }


def folders_below(home: Path) -> set[str]:
    return {p.relative_to(home).parts[0] for p in home.rglob("*") if p.is_dir()} - {".local"}


@pytest.mark.parametrize("kind", ["theirs", "windows", "empty", "missing"])
@pytest.mark.parametrize("name", SETTINGS)
def test_there_and_back_byte_for_byte(
    home: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, text in SETTINGS[name].items() if kind != "missing" else ():
        text = {"windows": text.replace("\n", "\r\n"), "empty": ""}.get(kind, text)
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_bytes(text.encode())
        (home / file).chmod(0o640)
    before, folders = files_below(home), folders_below(home)
    assert main(["connect", name, "--yes"]) == 0
    shown = capsys.readouterr()
    after = files_below(home)
    assert set(after) == set(SETTINGS[name]) and after != before
    assert all(f"+++ {home / file}" in shown.out for file in after)
    modes = {stat.S_IMODE((home / file).stat().st_mode) for file in after}
    assert modes == ({0o600} if kind == "missing" else {0o640})
    assert main(["connect", name, "--yes"]) == 0
    assert "already" in capsys.readouterr().out and files_below(home) == after
    assert main(["connect", name, "--undo", "--yes"]) == 0
    assert files_below(home) == before and folders_below(home) == folders
    assert main(["connect", name, "--undo", "--yes"]) == 1
    assert "nothing that is not undone" in capsys.readouterr().err


def test_apps_get_the_owners_key(
    home: Path, daemon: DaemonProcess, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("UMA_STATE_DIR", STATE)
    key = own_key()
    assert key
    settings = home / ".claude/settings.json"
    settings.parent.mkdir()
    settings.write_text("{}")
    settings.chmod(0o644)
    try:
        assert main(["connect", "claude-code", "--yes"]) == 0
        assert json.loads(settings.read_text())["env"]["ANTHROPIC_AUTH_TOKEN"] == key
        warning = f"other users can read {settings}, which holds the key; chmod 600 {settings}"
        assert warning in capsys.readouterr().err
        settings.chmod(0o600)
        assert main(["connect", "claude-code", "--yes", "--key", KEY]) == 0
        assert KEY in settings.read_text() and "other users" not in capsys.readouterr().err
        elsewhere = f"http://localhost:{port_of(daemon)}"  # whoever it is that answers there
        assert main(["connect", "claude-code", "--yes", "--url", elsewhere]) == 0
        assert json.loads(settings.read_text())["env"]["ANTHROPIC_AUTH_TOKEN"] == "none"
        assert main(["connect", "codex", "--yes"]) == 0  # a person would have to export it
        assert "env_key" not in (home / ".codex/config.toml").read_text()
    finally:
        main(["connect", "claude-code", "--undo", "--yes"])
        main(["connect", "codex", "--undo", "--yes"])


def told_while_it_ran(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What `--check` prints, one of some that saw their request run: others know no session."""
    for _ in range(5):
        capsys.readouterr()
        assert main(["connect", name, "--check"]) == 0
        shown = capsys.readouterr()
        if ", session " in shown.out:
            break
    return shown.out, shown.err


@pytest.mark.parametrize("name", APPS)
def test_a_request_as_the_app_makes_it(
    home: Path, daemon: DaemonProcess, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["connect", name, "--yes"])
    out, err = told_while_it_ran(name, capsys)
    app = {
        "zed": "Zed", "vscode": "GitHubCopilotChat", "continue": "Continue",
        "claude-code": "claude-cli", "codex": "codex_cli_rs", "opencode": "opencode",
        "qwen-code": "QwenCode", "aider": "OpenAI", "open-webui": "Python", "llm": "llm",
    }[name]  # fmt: skip
    assert f"POST {url(daemon)}/v1/" in out and err == ""
    assert f"the daemon saw: app {app}, session " in out
    named = name in ("claude-code", "codex", "opencode")
    assert ("session none" in out) != named
    assert "lane: interactive; " in out and "tokens of the prompt" in out
    assert "\n  the answer begins: " in out


def test_a_short_request_is_seen_where_the_socket_takes_long(
    home: Path, daemon: DaemonProcess, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    class Late(check.Client):
        def __init__(self, *where: Any, **limits: Any) -> None:
            time.sleep(0.5)  # longer than the request takes
            super().__init__(*where, **limits)

    monkeypatch.setattr(check, "Client", Late)
    main(["connect", "llm", "--yes"])
    assert ", session none" in told_while_it_ran("llm", capsys)[0]


def test_zed_is_told_what_the_loaded_model_can(home: Path, daemon: DaemonProcess) -> None:
    main(["connect", "zed", "--yes"])
    model, settings = (
        daemon.info()["model"],
        json.loads((home / ".config/zed/settings.json").read_text()),
    )
    (told,) = settings["language_models"]["llama.cpp"]["available_models"]
    assert (told["name"], told["max_tokens"]) == (model["name"], model["n_ctx"])
    assert told["supports_tools"] == model["chat"]["supports_tools"]
    assert settings["edit_predictions"]["open_ai_compatible_api"]["prompt_format"] == "qwen"


def test_what_is_here(
    home: Path, daemon: DaemonProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text("model = \n")
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").write_text(
        '{"env": {"ANTHROPIC_BASE_URL": "http://other:1/x"}}'
    )
    (home / "bin").mkdir()
    (home / "bin/llm").write_text("#!/bin/sh\n")
    (home / "bin/llm").chmod(0o755)
    main(["connect", "zed", "--yes"])
    capsys.readouterr()
    assert main(["connect"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"zed connected to {url(daemon)}" in lines
    assert "claude-code set to http://other:1/x" in lines
    assert f"llm not connected {home}/bin/llm" in " ".join(lines)
    (broken,) = [line for line in lines if line.startswith("codex ")]
    assert "cannot be read" in broken and "line 1" in broken
    assert "not found here: vscode, continue, opencode, qwen-code, aider, open-webui" in lines


def test_it_asks_and_no_is_no(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in ("", "n\n", "what?\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert main(["connect", "codex"]) == 1
        assert files_below(home) == {}
        assert "Nothing was changed" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["connect", "codex"]) == 0
    assert set(files_below(home)) == {".codex/config.toml", ".codex/uma-models.json"}
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert main(["connect", "codex", "--undo"]) == 1
    assert set(files_below(home)) == {".codex/config.toml", ".codex/uma-models.json"}


def test_what_will_not_work_is_said_before_the_question(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def ask(question: str) -> str:
        said.append(capsys.readouterr().err)
        return "n"

    monkeypatch.setattr("builtins.input", ask)
    assert main(["connect", "claude-code"]) == 1
    assert "note: the context has 2048 tokens, and an agent's first prompt" in said[0]
    main(["connect", "claude-code", "--yes"])
    capsys.readouterr()
    main(["connect", "claude-code"])  # again, with nothing to change
    assert capsys.readouterr().err.count("the context has 2048 tokens") == 1


def test_the_text_of_an_answer_in_each_family() -> None:
    def delta(**fields: Any) -> dict[str, Any]:
        return {"choices": [{"delta": fields}]}

    events = [
        delta(role="assistant"), delta(reasoning_content="hm "), delta(content="a"),
        {"choices": [{"text": "b"}]}, {"choices": [{"message": {"content": "c"}}]},
        {"choices": []}, {"type": "response.output_text.delta", "delta": "d"},
        {"type": "response.output_text.done", "text": "no"},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "e"}},
        {"type": "content_block_delta", "delta": {"thinking": "f"}}, {"type": "ping"}, b"[DONE]",
    ]  # fmt: skip
    assert "".join(map(check.text_of, events)) == "hm abcdef"


def test_a_link_leads_to_the_same_file_afterwards(home: Path) -> None:
    (home / "dotfiles").mkdir()
    theirs = home / "dotfiles/claude.json"
    theirs.write_text('{"model": "opus"}\n')
    (home / ".claude").symlink_to(home / "dotfiles")
    (home / "dotfiles/settings.json").symlink_to("claude.json")
    main(["connect", "claude-code", "--yes"])
    assert "ANTHROPIC_BASE_URL" in theirs.read_text()
    assert (home / "dotfiles/settings.json").is_symlink() and (home / ".claude").is_symlink()
    main(["connect", "claude-code", "--undo", "--yes"])
    assert theirs.read_text() == '{"model": "opus"}\n'


# --- changes in between --------------------------------------------------------------------------


def test_what_somebody_wrote_since_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / ".claude/settings.json"
    file.parent.mkdir()
    file.write_text('{\n  "model": "opus"\n}\n')
    main(["connect", "claude-code", "--yes"])
    settings = json.loads(file.read_text())
    settings["env"]["ANTHROPIC_MODEL"] = "mine"
    settings["theme"] = "dark"
    file.write_text(json.dumps(settings, indent=4))  # as apps do it
    capsys.readouterr()
    assert main(["connect", "claude-code", "--undo", "--yes"]) == 0
    assert json.loads(file.read_text()) == {
        "model": "opus", "env": {"ANTHROPIC_MODEL": "mine"}, "theme": "dark",
    }  # fmt: skip
    said = capsys.readouterr().err
    assert "has changed since" in said and "stays: env.ANTHROPIC_MODEL" in said


def test_a_file_that_nobody_can_read_any_more_is_left_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / ".codex/config.toml"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    main(["connect", "codex", "--yes"])
    file.write_text("a = \n")
    capsys.readouterr()
    assert main(["connect", "codex", "--undo", "--yes"]) == 1
    assert file.read_text() == "a = \n"
    copy = capsys.readouterr().err.split("it is in ")[1].strip()
    assert Path(copy).read_text() == "a = 1\n" and stat.S_IMODE(os.stat(copy).st_mode) == 0o600


def test_a_file_that_is_gone_since_is_as_before(home: Path) -> None:
    file = home / ".codex/config.toml"
    for before in (None, "# mine\n"):
        if before is not None:
            file.write_text(before)
        main(["connect", "codex", "--yes"])
        file.unlink()
        assert main(["connect", "codex", "--undo", "--yes"]) == 0
        assert (file.read_text() if file.exists() else None) == before


def test_another_address_is_one_change_with_the_first(
    home: Path, daemon: DaemonProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Undone together, since nobody wrote in between."""
    file = home / ".config/zed/settings.json"
    file.parent.mkdir(parents=True)
    file.write_text(SETTINGS["zed"][".config/zed/settings.json"])
    before = file.read_bytes()
    main(["connect", "zed", "--yes"])
    main(["connect", "zed", "--yes", "--url", f"localhost:{port_of(daemon)}/v1/"])
    address = found(parse("jsonc", file.read_bytes()), APPS["zed"].address)
    assert address == f"http://localhost:{port_of(daemon)}"
    main(["connect", "zed", "--undo", "--yes"])
    assert file.read_bytes() == before
    capsys.readouterr()
    assert "nothing that is not undone" in said(capsys, "zed", "--undo", "--yes")


def test_changes_with_others_between_them_are_undone_one_by_one(
    home: Path, daemon: DaemonProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / ".codex/config.toml"
    main(["connect", "codex", "--yes"])
    between = file.read_bytes() + b"\n[tui]\nnotifications = true\n"
    file.write_bytes(between)
    main(["connect", "codex", "--yes", "--url", f"http://localhost:{port_of(daemon)}"])
    capsys.readouterr()
    main(["connect", "codex", "--undo", "--yes"])
    assert file.read_bytes() == between and "An older change is left" in capsys.readouterr().out
    main(["connect", "codex", "--undo", "--yes"])
    assert file.read_bytes().strip() == b"[tui]\nnotifications = true"


def test_settings_that_cannot_be_changed_are_left_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What belongs there is told instead."""
    file = home / ".aider.conf.yml"
    file.write_text("{model: gpt}\n")
    assert main(["connect", "aider", "--yes"]) == 1
    said = capsys.readouterr().err
    assert "in braces" in said and 'model: "openai/local"' in said
    assert files_below(home) == {".aider.conf.yml": b"{model: gpt}\n"}
    (home / ".continue").mkdir()
    (home / ".continue/config.json").write_text("{}")
    assert main(["connect", "continue", "--yes"]) == 1
    assert "would no longer read" in capsys.readouterr().err


# --- daemons that cannot be asked ----------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["connect", *words]) != 0
    return capsys.readouterr().err


@pytest.fixture
def no_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody at 127.0.0.1:8080, whatever runs on this machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr("umaserve.cli.connect.daemon.USUAL", f"http://127.0.0.1:{port}")


def test_no_daemon(
    home: Path, tmp_path: Path, no_usual_one: None, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = ("--socket", str(tmp_path / "none.sock"))
    error = said(capsys, "zed", *nowhere)
    assert "no daemon answers at" in error and "umaserve --http 127.0.0.1:8080" in error
    assert "--url" in said(capsys, "zed", "--check", *nowhere)
    assert "nothing answers at http://127.0.0.1:1:" in said(capsys, "zed", "--url", "127.0.0.1:1")
    assert "is no address" in said(capsys, "zed", "--url", "ftp://x")
    assert files_below(home) == {}
    assert main(["connect", *nowhere]) == 0, "what is here is told without one"


def test_wrong_words(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean zed?" in said(capsys, "zedd")
    assert "it can be zed, vscode, continue," in said(capsys, "xyz")
    assert "which app?" in said(capsys, "--check")
    with pytest.raises(SystemExit):
        main(["connect", "zed", "--undo", "--check"])


def test_a_damaged_record_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["connect", "codex", "--yes"])
    record = home / ".local/state/umaserve/connect/codex/changes.json"
    record.write_text("[[{}]]")
    capsys.readouterr()
    assert f"{record} is damaged" in said(capsys, "codex", "--undo", "--yes")
    assert (home / ".codex/config.toml").exists()


def planted(home: Path, step: dict[str, Any]) -> Path:
    """A record of a change of Codex's settings, with the other fields as `connect` writes them."""
    folder = home / ".local/state/umaserve/connect/codex"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "copy").write_text("echo planted")
    file = home / ".codex/config.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text("now = 1")
    usual = {
        "path": str(file), "language": "toml", "backup": "copy", "edits": [], "folders": [],
        "after": hashlib.sha256(b"now = 1").hexdigest(),
    }  # fmt: skip
    (folder / "changes.json").write_text(json.dumps([[usual | step]]))
    return folder


@pytest.mark.parametrize("name", [".bashrc", ".codex/../.bashrc", ".codex/auth.json"])
def test_only_files_of_the_app_are_given_back(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".codex").mkdir()
    (home / name).write_text("now = 1")
    planted(home, {"path": f"{home}/{name}"})
    assert "is no file of Codex here" in said(capsys, "codex", "--undo", "--yes")
    assert (home / name).read_text() == "now = 1"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"backup": "../../../../../secret"}, "would lie elsewhere"),
        ({"backup": ".."}, "would lie elsewhere"),
        ({"folders": ["/srv"]}, "a folder was not made for"),
        ({"language": "yaml"}, "is no file of Codex"),
        ({"language": "lua"}, "is damaged"),
        ({"edits": [[["a", ["b"]], 1, False]]}, "is damaged"),
        ({"edits": 7}, "is damaged"),
    ],
)
def test_a_record_that_connect_cannot_have_written_is_refused(
    home: Path, step: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "secret").write_text("of mine")
    planted(home, step)
    assert problem in said(capsys, "codex", "--undo", "--yes")
    assert (home / ".codex/config.toml").read_text() == "now = 1"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_copy_that_is_no_file_is_not_given_back(
    home: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = planted(home, {}) / "copy"
    copy.unlink()
    copy.symlink_to("/etc/hostname") if kind == "link" else os.mkfifo(copy)
    assert "not a regular file" in said(capsys, "codex", "--undo", "--yes")
    assert (home / ".codex/config.toml").read_text() == "now = 1"


@pytest.mark.parametrize("way", ["state", "settings"])
def test_folders_that_others_may_write_to_are_not_used(
    home: Path, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(home, {})
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    if way == "state":
        shutil.move(home / ".local/state/umaserve", home / "open/state")
        monkeypatch.setenv("UMA_STATE_DIR", str(home / "open/state"))
        advice = "set UMA_STATE_DIR to a folder of your own"
    else:
        shutil.move(home / ".codex", home / "open/codex")
        (home / ".codex").symlink_to(home / "open/codex")
        advice = "keep these settings in a folder of your own"
    for words in (["--undo", "--yes"], ["--yes"]):
        assert advice in said(capsys, "codex", *words)
    assert (home / ".codex/config.toml").read_text() == "now = 1"


def test_a_daemon_without_http(
    home: Path, tmp_path: Path, no_usual_one: None, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "d").mkdir()
    with DaemonProcess(tmp_path / "d") as quiet:
        error = said(capsys, "zed", "--socket", quiet.path)
        assert "speaks no HTTP" in error and "umaserve gateway" in error
        with gateway(quiet.path) as port:  # one of its own, at the usual address
            monkeypatch.setattr("umaserve.cli.connect.daemon.USUAL", f"http://127.0.0.1:{port}")
            assert main(["connect", "codex", "--yes", "--socket", quiet.path]) == 0
        assert f":{port}/v1" in (home / ".codex/config.toml").read_text()


def test_a_daemon_at_a_unix_socket_alone(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d").mkdir()
    with DaemonProcess(tmp_path / "d", http=f"unix:{tmp_path}/h") as daemon:
        assert "at a Unix socket alone" in said(capsys, "zed", "--socket", daemon.path)


def test_a_daemon_that_wants_a_key(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "d").mkdir()
    keys = tmp_path / "d/keys"
    keys.write_text(f"desk {KEY}\n")
    keys.chmod(0o600)
    with DaemonProcess(tmp_path / "d", http="127.0.0.1:0", api_key_file=str(keys)) as locked:
        words = ["opencode", "--socket", locked.path]
        eventually(lambda: main(["connect", *words]) != 2)
        assert "it wants a key: --key KEY" in said(capsys, *words)
        assert "none of its keys" in said(capsys, *words, "--key", "wrong-key-wrong-key")
        monkeypatch.setenv("UMA_API_KEY", KEY)
        assert main(["connect", *words, "--yes"]) == 0
        assert KEY in (home / ".config/opencode/opencode.json").read_text()
        assert main(["connect", *words, "--check"]) == 0
        assert "app desk, " in capsys.readouterr().out


def test_somebody_else_at_the_address(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:

        def serve() -> None:
            for _ in range(2):
                sock, _ = other.accept()
                with sock:
                    sock.recv(4096)
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        error = said(capsys, "zed", "--url", f"http://127.0.0.1:{other.getsockname()[1]}")
        thread.join()
    assert "something else than a daemon of ours" in error


def test_no_model(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()
    with DaemonProcess(tmp_path / "d", http="127.0.0.1:0") as daemon, daemon.client() as client:
        client.send(type="unload")
        client.answer("unloaded")
        error = said(capsys, "zed", "--socket", daemon.path)
    assert "status 503" in error and "no model is loaded" in error


def test_an_interrupt_at_the_question_changes_nothing(home: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "umaserve", "connect", "codex"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(HOME=str(home), UMA_SOCK=os.environ["UMA_SOCK"]),
    )  # fmt: skip
    assert child.stdout is not None
    text = b""
    while b"[y/N]" not in text:
        part = os.read(child.stdout.fileno(), 4096)
        assert part, "it ended"
        text += part
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 130 and b"Traceback" not in errors
    assert files_below(home) == {}


def test_the_command_starts_without_what_it_does_not_need(home: Path) -> None:
    program = (
        "import sys; from umaserve.cli import main; main(['connect']); "
        "print(*({'numpy', 'numba', 'trio', 'yaml', 'tomlkit'} & set(sys.modules)))"
    )
    done: Any = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT,
        env=environment(HOME=str(home), UMA_SOCK=os.environ["UMA_SOCK"]),
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "", done
