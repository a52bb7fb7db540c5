"""``umaserve doctor``: what this machine has, and what to do about what is missing.

Long: a check for each part of the machine, in the order in which they are shown.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from typing import Any

from umaserve.cli.common import EXIT_CANNOT_SERVE, EXIT_OK, Parser, show
from umaserve.cli.doctor.idle import idle_text
from umaserve.client import Client, ConnectionFailed, OtherUser, ProtocolError, ServerError
from umaserve.client.connect import DEFAULT_SOCKET, socket_path
from umaserve.config import Config, ConfigError, add_flags, flag_values, load_config
from umaserve.models.needs import ModelFile, gib
from umaserve.system.own_python import run_module
from umaserve.system.private_folder import why_shared
from umaserve.texts import sendable_path

PROBE_S = 120.0
LIVE_S = 3.0
LOW_DISK_BYTES = 2 * 1024**3

# distribution: module
PACKAGES = {
    "numpy": "numpy",
    "numba": "numba",
    "cffi": "cffi",
    "trio": "trio",
    "uvicorn": "uvicorn",
    "uvloop": "uvloop",
    "httptools": "httptools",
    "starlette": "starlette",
    "msgspec": "msgspec",
    "rich": "rich",
    "tomli": "tomli",
    "PyYAML": "yaml",
    "platformdirs": "platformdirs",
    "tomlkit": "tomlkit",
    "pycparser": "pycparser",
    "huggingface-hub": "huggingface_hub",
}


class _Report:
    """Prints a line as soon as it is known; remembers whether anything needed is missing."""

    def __init__(self) -> None:
        self.missing = 0
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def _line(self, level: str, colour: int, name: str, text: str, hint: str) -> None:
        mark = f"\x1b[{colour}m{level:<7}\x1b[0m" if self._colour else f"{level:<7}"
        print(mark, end=" ")
        show(f"{name:<10} {text}")
        if hint:
            show(f"{'':7} {'':10} -> {hint}")

    def ok(self, name: str, text: str) -> None:
        self._line("ok", 32, name, text, "")

    def warn(self, name: str, text: str, hint: str = "") -> None:
        self._line("warn", 33, name, text, hint)

    def miss(self, name: str, text: str, hint: str = "") -> None:
        self.missing += 1
        self._line("missing", 31, name, text, hint)


def _parser() -> Parser:
    parser = Parser(
        prog="umaserve doctor",
        usage="umaserve doctor [OPTIONS of serve]",
        description="Say what this machine has, and what to do about what is missing.  Takes the "
        "options of `serve`, and checks what that would need.",
        epilog="exit status: 0 it can serve, 1 something is missing",
    )
    add_flags(parser)
    return parser


def doctor(arguments: list[str]) -> int:
    """Check everything that ``serve`` with the same options would need; 0 if it can serve."""
    options = _parser().parse_args(arguments)
    report = _Report()
    _python(report)
    if not _packages(report):
        print("\nThe rest cannot be looked at before the packages are there.")
        return EXIT_CANNOT_SERVE
    try:
        config = load_config(flag_values(options))
    except ConfigError as error:
        report.miss("config", str(error), "see `umaserve serve --help` and docs/CONFIG.md")
        return EXIT_CANNOT_SERVE
    report.ok("config", f"valid ({config.config or 'no file'})")
    for warning in config.warnings:
        report.warn("config", warning)
    _compiler(report)
    model = _model(report, config)
    _library(report, config, model)
    _metrics(report)
    _socket(report, config.socket)
    if config.socket == DEFAULT_SOCKET != socket_path():
        hint = "serve there with --socket, or set UMA_SOCK for both"
        report.warn("clients", f"they look at {socket_path()} first", hint)
    if config.http != "off":
        _http(report, config)
    if report.missing:
        print("\nIt cannot serve yet: see what is missing above.")
        return EXIT_CANNOT_SERVE
    print("\nReady to serve.")
    return EXIT_OK


def _python(report: _Report) -> None:
    # an older Python cannot even import this package; its name helps in a report all the same
    version = ".".join(map(str, sys.version_info[:3]))
    report.ok("python", f"{version} ({sys.executable})")


def _packages(report: _Report) -> bool:
    from importlib import metadata, util

    absent = [name for name, module in PACKAGES.items() if util.find_spec(module) is None]
    if absent:
        names = " ".join(absent)
        report.miss(
            "packages", f"not installed: {names}", f"{sys.executable} -m pip install {names}"
        )
        return False
    versions = []
    for name in ("numpy", "numba", "cffi", "trio", "msgspec"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(name)
    report.ok("packages", ", ".join(versions))
    return True


def _compiler(report: _Report) -> None:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            report.ok("compiler", path)
            return
    hint = "xcode-select --install" if sys.platform == "darwin" else "install g++ or clang"
    report.warn("compiler", "no C++ compiler; only needed to build libllama", hint)


def _model(report: _Report, config: Config) -> ModelFile | None:
    """Checks what the front can see of the model."""
    from umaserve.cli.models.choose import NoModel, with_model
    from umaserve.server.main import StartError, check_model

    try:
        return check_model(with_model(config, ask=False, tell=lambda text: None))
    except (NoModel, StartError) as error:
        report.miss("model", str(error))
        return None


def _library(report: _Report, config: Config, file: ModelFile | None) -> None:
    """Builds, binding, devices and the model's file, as a child process sees them."""
    import msgspec

    from umaserve.server.engines.model_start import start_message

    start = start_message(config, file or ModelFile("", 0))
    model = start.model_path
    start = msgspec.structs.replace(start, model_path=sendable_path(model))
    command = [*run_module("umaserve.cli.doctor.probe"), msgspec.json.encode(start).decode()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_S, errors="replace", check=False
        )
        out, failed, status = done.stdout, done.returncode != 0, f"status {done.returncode}"
        last = (done.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        out = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
        failed, status, last = True, f"no answer in {PROBE_S:g} s", "a driver may hang"
    for line in out.splitlines():
        if line.startswith("{"):
            _probed(report, json.loads(line), model)
    if failed:
        report.miss(
            "library",
            f"loading libllama failed ({status}): {last}",
            "build it again: umaserve build; or try --backend cpu",
        )


def _probed(report: _Report, fact: dict[str, Any], model: str) -> None:
    what = fact["what"]
    if what == "builds":
        _cache(report, fact["cache"])
        if fact["found"]:  # where there is none, the library's line says what to do
            report.ok("builds", ", ".join(fact["found"]))
        for why in fact["refused"]:
            report.warn("builds", why)
    elif what == "model" and model:
        if "error" in fact:
            report.miss("model", fact["error"])
        else:
            report.ok("model", f"{model} ({fact['architecture']}, {gib(fact['bytes'])})")
    elif what == "context":
        cells, positions = fact["cells"], min(fact["cells"], fact["positions"])
        text = f"{cells} KV cells ({gib(fact['bytes'])}), at most {positions} tokens a session"
        report.ok("context", text)
    elif what == "library":
        if "error" in fact:
            report.miss("library", fact["error"])
        else:
            report.ok("library", f"llama.cpp {fact['version']}, {fact['backend']} ({fact['key']})")
            if fact["why_no_chat"]:
                text = "conversations are refused, prompts are served"
                report.warn("chat", text, fact["why_no_chat"])
    elif what == "devices":
        for device in fact["devices"]:
            total = device["memory_total"]
            memory = f", {gib(total)}" if total else ""
            report.ok("device", f"{device['name']}: {device['description']}{memory}")


def _cache(report: _Report, path: str) -> None:
    why = why_shared(path)
    if why:
        report.warn("cache", f"{path} is not used: {why}")
        return
    folder = path
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.access(folder, os.W_OK):
        report.warn("cache", f"{path} is not writable", "set UMA_CACHE_DIR to a folder that is")
        return
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK_BYTES:
        report.warn("cache", f"{path}: only {gib(free)} free", "a build takes about 2 GiB")
    else:
        report.ok("cache", f"{path} ({gib(free)} free)")


def _metrics(report: _Report) -> None:
    from umaserve.system.process_stats import unmeasured

    absent = unmeasured()
    if absent:
        names = ", ".join(absent)
        report.warn("metrics", f"this system does not tell {names}", "they are null in the metrics")
    else:
        report.ok("metrics", "every one can be measured here")


def _socket(report: _Report, path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        report.miss("socket", f"{folder} does not exist", "create it, or choose another --socket")
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.access(folder, os.W_OK):
            report.ok("socket", f"{path} is free; no daemon runs there")
        else:
            report.miss("socket", f"{folder} is not writable", "choose another --socket")
        return
    except OSError as error:
        report.miss("socket", f"{path}: {error.strerror}", "choose another --socket")
        return
    if not stat.S_ISSOCK(mode):
        report.miss("socket", f"{path} is a file and no socket", "choose another --socket")
        return
    try:
        with Client(path, timeout=LIVE_S) as client:
            info = client.info()
    except OtherUser as error:
        report.miss("socket", str(error).partition(";")[0], "choose another --socket")
        return
    except ConnectionFailed as error:
        if "refused" in str(error).lower():
            report.ok("socket", f"{path} was left behind; `umaserve serve` replaces it")
        else:
            report.warn("socket", str(error))
        return
    except (ServerError, ProtocolError) as error:
        report.warn("socket", f"something else answers at {path}: {error}", "choose another")
        return
    name = (info.get("model") or {}).get("name") or "no model"
    report.ok("socket", f"{path}: a daemon runs (pid {info.get('pid')}, {name})")
    off = (info.get("model") or {}).get("off")
    if off:
        report.ok("loaded", f"{name}: {off}")
    text = idle_text(info)
    if text:
        report.ok("idle", text)


def _http(report: _Report, config: Config) -> None:
    from umaserve.cli.doctor.http import look_at_http

    level, text, hint = look_at_http(config)
    if level == "ok":
        report.ok("http", text)
    elif level == "warn":
        report.warn("http", text, hint)
    else:
        report.miss("http", text, hint)
