"""What service files say, as text; tests/e2e/test_service.py has a manager read systemd's."""

from __future__ import annotations

import os
import plistlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from umaserve.cli.serve import _parser
from umaserve.cli.service.launchd import Launchd
from umaserve.cli.service.settings import Service, service
from umaserve.cli.service.units import LABEL, launch_agent, systemd_units
from umaserve.config import load_config

ROOT = Path(__file__).resolve().parents[2]


def made(environ: dict[str, str] | None = None, **flags: Any) -> Service:
    """The service of these settings."""
    environ = environ or {}
    config = load_config(flags, environ)
    return service(["/bin/umaserve"], flags, config, environ, False)


def test_flags_stay_and_paths_hold_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = made(
        model="a/b.gguf", use_mmap=False, use_mlock=True, model_dir=["a,/b", "c"], n_ctx="512",
        cache_dir="off", http="unix:h.sock", socket="s.sock", trace="~/t.jsonl",
        lora="x=c.gguf, y=/d.gguf:0.5", mmproj="auto", draft_model="e.gguf",
    )  # fmt: skip
    assert set(got.command[2:]) == {
        f"--model={tmp_path}/a/b.gguf", "--no-mmap", "--mlock", "--n-ctx=512", "--cache-dir=off",
        f"--model-dir={tmp_path}/a,/b", f"--model-dir={tmp_path}/c",
        f"--http=unix:{tmp_path}/h.sock", f"--trace={os.path.expanduser('~')}/t.jsonl",
        f"--lora=x={tmp_path}/c.gguf,y=/d.gguf:0.5", "--mmproj=auto",
        f"--draft-model={tmp_path}/e.gguf",
    }  # fmt: skip
    assert got.command[:2] == ("/bin/umaserve", "serve")
    assert got.socket == f"{tmp_path}/s.sock"


def test_settings_of_the_environment_become_flags_and_flags_beat_them() -> None:
    environ = {
        "UMA_N_SEQ": "3", "UMA_N_CTX": "1024", "UMA_SOCK": "/run/x.sock", "UMA_CACHE_DIR": "/c",
        "UMA_DEBUG": "1", "HOME": "/h", "UMA_MAX_QUEUE": "",
    }  # fmt: skip
    got = made(environ=environ, n_ctx="512")
    assert set(got.command[2:]) == {"--parallel=3", "--n-ctx=512"}
    assert got.socket == "/run/x.sock"
    assert got.environment == {"UMA_CACHE_DIR": "/c", "UMA_DEBUG": "1"}


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("UMA_USE_MLOCK", "1", "--mlock"), ("UMA_USE_MMAP", "false", "--no-mmap"),
        ("UMA_LOG_JSON", "yes", "--log-json"), ("UMA_PRETOUCH", "0", "--no-pretouch"),
    ],
)  # fmt: skip
def test_switches_of_the_environment_are_flags_that_serve_takes(
    name: str, value: str, flag: str
) -> None:
    command = made(environ={name: value}).command
    assert command[2:] == (flag,)
    _parser().parse_args(list(command[2:]))  # or it ends the process


@pytest.mark.parametrize(
    "model", ["hf:OWNER/REPO:Q4_K_M", "ollama:llama3", "llama.cpp:m.gguf", "demo"]
)
def test_a_reference_to_a_model_is_no_path(model: str) -> None:
    got = service(["u"], {"model": model}, load_config({}, {}), {}, False)
    assert got.command == ("u", "serve", f"--model={model}")


def test_where_models_lie_is_passed_on() -> None:
    environ = {"HF_HOME": "/m", "OLLAMA_MODELS": "/o", "UMA_STATE_DIR": "/s", "PATH": "/bin"}
    environ_of_unit = made(environ=environ).environment
    assert environ_of_unit == {k: v for k, v in environ.items() if k != "PATH"}


def test_units_as_they_are_written() -> None:
    units = systemd_units(made(n_ctx="512", drain_s="5"))
    assert "ListenStream=%t/uma.sock\n" in units["umaserve.socket"]
    assert "SocketMode=0600\n" in units["umaserve.socket"]
    text = units["umaserve.service"]
    assert "ExecStart=/bin/umaserve serve --n-ctx=512 --drain-s=5\n" in text
    assert "TimeoutStopSec=25\n" in text and "Type=notify\n" in text
    assert "WantedBy=default.target" in text


def test_words_are_quoted_as_systemd_reads_them() -> None:
    words = ("/a b/u%", "serve", "--model=$x \"y\" \\ %h 'z';")
    odd = Service(words, "/r/100%.sock", {"A": "1 %2"})
    units = systemd_units(odd)
    want = 'ExecStart="/a b/u%%" serve "--model=$$x \\"y\\" \\\\ %%h \'z\';"\n'
    assert want in units["umaserve.service"]
    assert 'Environment="A=1 %%2"\n' in units["umaserve.service"]
    assert "ListenStream=/r/100%%.sock\n" in units["umaserve.socket"]


@pytest.mark.parametrize("path", ["/a\nb", "/a ", "/a\\"])
def test_a_socket_that_no_unit_can_name_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="cannot name the socket"):
        systemd_units(Service(("u",), path, {}))


def test_on_demand_nothing_starts_at_login() -> None:
    units = systemd_units(Service(("u",), "", {}, on_demand=True))
    assert "[Install]" not in units["umaserve.service"]
    assert "WantedBy=sockets.target" in units["umaserve.socket"]


def test_the_launch_agent() -> None:
    given = Service(("/a b/u", "serve", "--n-ctx=512"), "/s & t.sock", {"A": "<1>"}, drain_s=5.0)
    read = plistlib.loads(launch_agent(given, "/l/umaserve.log"))
    assert read["Label"] == LABEL
    assert read["ProgramArguments"] == ["/a b/u", "serve", "--n-ctx=512", "--socket=/s & t.sock"]
    assert read["EnvironmentVariables"] == {"A": "<1>"}
    assert read["RunAtLoad"] is True and read["KeepAlive"] == {"SuccessfulExit": False}
    assert read["ExitTimeOut"] == 25
    assert read["StandardErrorPath"] == read["StandardOutPath"] == "/l/umaserve.log"
    with pytest.raises(ValueError, match="needs systemd"):
        Launchd().files(Service(("u",), "", {}, on_demand=True))


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "umaserve", "service", *words],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "darwin", reason="launchd is always there")
def test_without_a_service_manager_it_says_what_to_do(tmp_path: Path) -> None:
    done = run("install", PATH=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "there is no systemd" in done.stderr and "@reboot" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["instal"], "did you mean install?"),
        (["install", "--nctx", "5"], "did you mean --n-ctx?"),
        (["install", "--n-ctx", "five"], "--n-ctx"),
        (["logs", "-n", "x"], "-n"),
    ],
)
def test_wrong_words_are_told(words: list[str], said: str, tmp_path: Path) -> None:
    done = run(*words, XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 2 and said in done.stderr
    assert os.listdir(tmp_path) == []


def test_help_names_the_actions() -> None:
    done = run("--help")
    assert done.returncode == 0 and "install" in done.stdout and "logs" in done.stdout
