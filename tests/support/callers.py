"""Daemons whose model has a template that knows tools or thoughts, and a tool to call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema

from tests.support.chat_questions import templates
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess
from tests.support.small_models import write_model

HELLO = [{"role": "user", "content": "hello"}]
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"enum": ["a.txt", "größe.txt"]}},
    "required": ["path"],
    "additionalProperties": False,
}
FUNCTION = {"name": "read_file", "description": "Reads a file.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
FORM = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Łódź"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def served(path: Path, name: str) -> DaemonProcess:
    """Random weights, which know nothing of tools, with a template that llama.cpp vendors."""
    template = next(each for each in templates() if each.stem == name)
    model = write_model(
        path / "caller.gguf", "gpt2-micro", template=template.read_text("utf-8"), n_ctx=2048
    )
    return real(path, http="127.0.0.1:0", model=model)


def is_call(name: str, arguments: Any) -> None:
    assert name == "read_file"
    jsonschema.validate(arguments, PARAMETERS)


def tokens(daemon: DaemonProcess, text: str) -> list[int]:
    with daemon.client() as client:
        client.send(type="tokenize", id="t", text=text)
        return list(client.answer("tokens")["tokens"])
