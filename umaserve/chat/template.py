"""One conversation to prompt text, with the chat template that the model's file carries.

The template runs in jinja2's immutable sandbox.  Nothing here bounds its time: whoever calls
`TemplateRenderer.render` in another process does.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

MAX_CHARACTERS = 8 * 1024 * 1024

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class TemplateRefusal(Exception):
    """The template called ``raise_exception``, or its text is too long."""


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _environment() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class TemplateRenderer:
    """Renders with one template after the other; keeps the last one compiled."""

    def __init__(self) -> None:
        self._environment = _environment()
        self._source: str | None = None
        self._template: Any = None

    def render(
        self, source: str | None, messages: list[dict[str, str]], bos: str, eos: str
    ) -> str:
        """Prompt text, with the model's start token where the template puts it.

        ``source`` is the template; ``None`` stands for ChatML.  Raises ``TemplateRefusal``, and
        whatever else a template can raise.
        """
        source = source or CHATML
        if self._template is None or self._source != source:
            self._template = None
            self._template = self._environment.from_string(source)
            self._source = source
        parts, size = [], 0
        for part in self._template.generate(
            messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos
        ):
            parts.append(part)
            size += len(part)
            if size > MAX_CHARACTERS:
                raise TemplateRefusal(f"its text has more than {MAX_CHARACTERS} characters")
        text = "".join(parts)
        text.encode()  # a template's own escapes may make what is no character
        return text
