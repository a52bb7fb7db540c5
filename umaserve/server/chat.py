"""``messages`` to prompt text, with the chat template that the model's file carries.

The template is a program by whoever made the file, so it runs in jinja2's immutable sandbox, and
its output is bounded in size and in time.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from umaserve.engine.messages import Ready
from umaserve.protocol import E_PROTO_003, ChatMessage, ProtocolError

MAX_CHARACTERS = 8 * 1024 * 1024
MAX_SECONDS = 2.0

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class TemplateRefusal(Exception):
    """The template called ``raise_exception``."""


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _environment() -> Any:
    # jinja2 costs 40 ms to import, and only chats need it
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _characters(messages: Sequence[ChatMessage]) -> int:
    return sum(len(message.content) for message in messages)


class ChatRenderer:
    """Renders with the template of the model at hand; keeps the compiled one."""

    def __init__(self) -> None:
        self._source: str | None = None
        self._template: Any = None
        self._last: tuple[float, int, int] | None = None  # seconds, messages, characters

    def seconds(self, messages: Sequence[ChatMessage], ready: Ready) -> float:
        """How long `render` would take, judged by the last time; infinite where nothing is known.

        Time is taken to grow with the number of messages or of characters, whichever grew more.
        """
        if self._last is None or self._source != (ready.chat_template or CHATML):
            return math.inf
        seconds, count, characters = self._last
        grown = max(len(messages) / count, _characters(messages) / max(1, characters))
        return seconds * max(1.0, grown)

    def render(self, messages: Sequence[ChatMessage], ready: Ready) -> str:
        """Prompt text, with the model's start token where the template puts it.

        Raises ``ProtocolError`` (``E_PROTO_003``, naming ``messages``) where the template refuses
        the conversation or fails.
        """
        try:
            if self._template is None or self._source != (ready.chat_template or CHATML):
                self._last, self._template = None, None
                self._source = ready.chat_template or CHATML
                self._template = _environment().from_string(self._source)
            began_s = time.monotonic()
            text = self._run(messages, ready)
            text.encode()  # a template's own escapes may make what is no character
            self._last = (time.monotonic() - began_s, len(messages), _characters(messages))
        except TemplateRefusal as error:
            raise self._error(f"the model's chat template refuses them: {error}") from None
        except Exception as error:  # whatever a template can raise, it is not the daemon's fault
            name = type(error).__name__
            raise self._error(f"the model's chat template failed: {name}: {error}") from None
        return text

    def _run(self, messages: Sequence[ChatMessage], ready: Ready) -> str:
        deadline = time.monotonic() + MAX_SECONDS
        parts, size = [], 0
        for part in self._template.generate(
            messages=[{"role": m.role, "content": m.content} for m in messages],
            add_generation_prompt=True,
            bos_token=ready.bos,
            eos_token=ready.eos,
        ):
            parts.append(part)
            size += len(part)
            if size > MAX_CHARACTERS or time.monotonic() > deadline:
                raise TemplateRefusal(f"more than {MAX_CHARACTERS} characters or {MAX_SECONDS:g} s")
        return "".join(parts)

    @staticmethod
    def _error(text: str) -> ProtocolError:
        return ProtocolError(E_PROTO_003, f'"messages": {text}')
