"""Questions for uma-chat in tests, and the program itself."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

import build_llama
from umaserve.chat import questions
from umaserve.chat.questions import ChatModel
from umaserve.llama import builds

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>")


def program() -> str:
    return _program(builds.cache_root())


@functools.cache
def _program(_: Path) -> str:
    """Look once in a folder of builds: a thousand questions would look at each file's owner."""
    build = builds.select()
    if build is None or build.lacks_chat:
        build = build_llama.ensure()
    assert build.chat_program is not None, build.why_no_chat
    return str(build.chat_program)


def templates() -> list[Path]:
    """Those that llama.cpp vendors."""
    found = sorted((Path(program()).parent / "templates").glob("*.jinja"))
    assert len(found) > 50
    return found


def model_of(template: str | None, **changes: Any) -> ChatModel:
    model = ChatModel(
        program=changes.pop("program", "") or program(),
        missing="",
        template=template,
        tool_template=None,
        bos="<s>",
        eos="</s>",
        adds_bos=False,
        adds_eos=False,
        control=CONTROL,
    )
    return msgspec.structs.replace(model, **changes)


def conversation(messages: list[dict[str, Any]], **options: Any) -> bytes:
    """The question for its prompt, with the spans of markup."""
    given: dict[str, Any] = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": None,
        "thinking": None,
        "chat_template_kwargs": {},
        "continue_final_message": False,
        "bound": False,
        **options,
    }
    for name in ("tools", "chat_template_kwargs"):
        given[name] = msgspec.Raw(json.dumps(given[name]).encode())
    return questions.render(messages, SimpleNamespace(**given), spans=True)


def said(text: str) -> bytes:
    return conversation([{"role": "user", "content": text}])


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that deltas make."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for event in events:
        message["content"] += event.get("content", "")
        if "reasoning" in event:
            thought = message.get("reasoning_content", "")
            message["reasoning_content"] = thought + event["reasoning"]
        for part in event.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if part["index"] == len(calls):
                function = {"name": part["name"], "arguments": ""}
                calls.append({"id": part["id"], "type": "function", "function": function})
            calls[part["index"]]["function"]["arguments"] += part["arguments"]
    return message


class Asked:
    """uma-chat by itself, without what bounds it in the daemon."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [program()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._read() == {}, "it is ready"

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, question: bytes) -> dict[str, Any] | None:
        """The answer; ``None`` where there is none, as it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(len(question).to_bytes(4, "little") + question)
        self._process.stdin.flush()
        return self._read()

    def close(self) -> int:
        """Its exit status."""
        self._process.communicate(timeout=60)
        return self._process.returncode

    def _read(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        head = self._process.stdout.read(4)
        if len(head) < 4:
            return None
        return json.loads(self._process.stdout.read(int.from_bytes(head, "little")))
