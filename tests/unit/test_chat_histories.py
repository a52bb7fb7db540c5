"""Histories with parts that no template takes: each vendored template renders their words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.chat_questions import Asked, conversation, model_of, templates
from umaserve.protocol import Generate, Limits, parse_message
from umaserve.protocol.history import CALL, PICTURE, TEXT_ONLY

USER = {"role": "user", "content": "What does it say?"}
ANSWER = {"role": "assistant", "content": "It says 42."}
SEES = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
CRITIC = {"role": "critic", "content": "Too long."}
LEFT_OUT = PICTURE.format("", TEXT_ONLY)
CUT = '{"path": "a'


def calling(arguments: Any, *more: dict[str, Any]) -> list[dict[str, Any]]:
    """A turn that calls a tool, and what came of it."""
    function = {"name": "read_file", "arguments": arguments}
    call = {"type": "function", "id": "abcdefgh1", "function": function}
    result = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "read_file", "content": "42"}
    return [{"role": "assistant", "content": "", "tool_calls": [call, *more]}, result]


def prompt_of(chat: Asked, messages: list[dict[str, Any]]) -> str | None:
    """What a history becomes; ``None`` where the template refuses it."""
    body = json.dumps({"id": "a", "messages": messages}).encode()
    taken = parse_message(body, Limits())
    assert isinstance(taken, Generate)
    answer = chat.ask(conversation(json.loads(msgspec.json.encode(taken.messages))))
    assert answer is not None
    return answer.get("prompt")


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
def test_what_a_template_takes_it_takes_with_such_parts(template: Path) -> None:
    with Asked() as chat:
        assert chat.ask(model_of(template.read_text("utf-8")).question())
        plain = [USER, *calling('{"path": "a"}'), ANSWER, USER]
        if prompt_of(chat, plain) is None:
            pytest.skip("the template refuses such a conversation anyway")
        prompt = prompt_of(chat, [SEES, *calling(CUT), ANSWER, CRITIC, USER])
        assert prompt and LEFT_OUT in prompt and "Too long." in prompt
        for empty in ("", None, "[1]"):
            assert prompt_of(chat, [USER, *calling(empty), ANSWER, USER])
        other = {"type": "computer", "id": "abcdefgh2"}
        assert prompt_of(chat, [USER, *calling('{"path": "a"}', other), ANSWER, USER])
        (said, _) = calling("{}")
        said = {**said, "tool_calls": [other]}
        prompt = prompt_of(chat, [USER, said, USER])
        assert prompt and CALL.format("computer") in prompt
