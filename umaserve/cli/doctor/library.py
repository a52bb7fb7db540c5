"""libllama, its devices and the model's file, as a child process sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import msgspec

from umaserve.cli.doctor.report import Report
from umaserve.config import Config
from umaserve.models.needs import ModelFile, gib
from umaserve.server.engines.start.model_start import start_message
from umaserve.system.own_python import run_module
from umaserve.system.private_folder import why_shared
from umaserve.texts import sendable_path

PROBE_S = 120.0
LOW_DISK_BYTES = 2 * 1024**3


def check_library(report: Report, config: Config, file: ModelFile | None) -> None:
    """Report builds, binding, devices and the model's file, as a child process sees them."""
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


def _probed(report: Report, fact: dict[str, Any], model: str) -> None:
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


def _cache(report: Report, path: str) -> None:
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
