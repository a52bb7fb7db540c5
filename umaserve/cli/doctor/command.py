"""``umaserve doctor``: what this machine has, and what to do about what is missing."""

from __future__ import annotations

import os
import shutil
import stat
import sys

from umaserve.cli.doctor.idle import idle_text
from umaserve.cli.doctor.report import Report
from umaserve.cli.parts.common import EXIT_CANNOT_SERVE, EXIT_OK, Parser
from umaserve.client import Client, ConnectionFailed, OtherUser, ProtocolError, ServerError
from umaserve.client.connect import DEFAULT_SOCKET, socket_path
from umaserve.config import Config, ConfigError, add_flags, flag_values, load_config
from umaserve.models.needs import ModelFile

LIVE_S = 3.0

PACKAGES = (
    "numpy", "numba", "cffi", "trio", "uvicorn", "uvloop", "httptools", "starlette", "msgspec",
    "rich", "tomli", "PyYAML", "platformdirs", "tomlkit", "pycparser", "huggingface-hub",
)  # fmt: skip
MODULES = {"PyYAML": "yaml", "huggingface-hub": "huggingface_hub"}  # of other names


def _parser() -> Parser:
    parser = Parser(
        prog="umaserve doctor",
        usage="umaserve doctor [OPTIONS of serve]",
        description="Check what this machine has, and say how to get what is missing.  Takes the "
        "options of `serve`, and checks what that would need.",
        epilog="exit status: 0 it can serve, 1 something is missing",
    )
    add_flags(parser)
    return parser


def doctor(arguments: list[str]) -> int:
    """Check everything that ``serve`` with the same options would need; 0 if it can serve."""
    options = _parser().parse_args(arguments)
    report = Report()
    # an older Python cannot even import this package; its name helps in a report all the same
    report.ok("python", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")
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
    from umaserve.cli.doctor.library import check_library

    check_library(report, config, model)
    _metrics(report)
    _socket(report, config.socket)
    if config.socket == DEFAULT_SOCKET != socket_path():
        hint = "serve there with --socket, or set UMA_SOCK for both"
        report.warn("clients", f"they look at {socket_path()} first", hint)
    if config.http != "off":
        from umaserve.cli.doctor.http import look_at_http

        level, text, hint = look_at_http(config)
        report.line(level, "http", text, hint)
    if report.missing:
        print("\nIt cannot serve yet: see what is missing above.")
        return EXIT_CANNOT_SERVE
    print("\nReady to serve.")
    return EXIT_OK


def _packages(report: Report) -> bool:
    from importlib import metadata, util

    absent = [name for name in PACKAGES if util.find_spec(MODULES.get(name, name)) is None]
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


def _compiler(report: Report) -> None:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            report.ok("compiler", path)
            return
    hint = "xcode-select --install" if sys.platform == "darwin" else "install g++ or clang"
    report.warn("compiler", "no C++ compiler; only needed to build libllama", hint)


def _model(report: Report, config: Config) -> ModelFile | None:
    """Checks what the front can see of the model."""
    from umaserve.cli.models.choose import NoModel, with_model
    from umaserve.server.main import StartError, check_model

    try:
        return check_model(with_model(config, ask=False, tell=lambda text: None))
    except (NoModel, StartError) as error:
        report.miss("model", str(error))
        return None


def _metrics(report: Report) -> None:
    from umaserve.system.process_stats import unmeasured

    absent = unmeasured()
    if absent:
        names = ", ".join(absent)
        report.warn("metrics", f"this system does not tell {names}", "they are null in the metrics")
    else:
        report.ok("metrics", "every one can be measured here")


def _socket(report: Report, path: str) -> None:
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
    model = info.get("model") or {}
    said = "; ".join(model[key] for key in ("off", "heads") if model.get(key))
    if said:
        report.ok("loaded", f"{name}: {said}")
    text = idle_text(info)
    if text:
        report.ok("idle", text)
