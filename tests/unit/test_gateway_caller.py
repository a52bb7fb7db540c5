"""Who asks, by headers, body and key."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.families.openai.kept import MOST, Entry, Kept
from umaserve.gateway.translate.caller import caller_fields


def fields(headers: dict[str, str], body: dict[str, Any], key: str = "") -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": raw, "state": {"key": key}}
    return caller_fields(Request(scope), body)


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({"X-UMA-Session": "a", "session-id": "b"}, {"user": "c"}, "a"),
        ({"x-claude-code-session-id": "a", "x-session-affinity": "b"}, {}, "a"),
        ({"x-session-affinity": "a"}, {"prompt_cache_key": "b"}, "a"),
        ({"session-id": "a"}, {"prompt_cache_key": "b"}, "a"),
        ({}, {"prompt_cache_key": "a", "user": "b"}, "a"),
        ({}, {"user": "a" * 200}, "a" * 128),
        ({}, {"user": {"id": 1}}, None),
        ({}, {}, None),
    ],
)
def test_sessions(headers: dict[str, str], body: dict[str, Any], session: str | None) -> None:
    assert fields(headers, body).get("session") == session


@pytest.mark.parametrize(
    ("headers", "key", "app"),
    [
        ({"X-UMA-App": "mine", "User-Agent": "curl/8.5"}, "editor", "mine"),
        ({"User-Agent": "curl/8.5"}, "editor", "editor"),
        ({"User-Agent": "claude-cli/1.0 (external, cli)"}, "", "claude-cli"),
        ({"User-Agent": "OpenAI/Python 1.2"}, "", "OpenAI"),
        ({"User-Agent": " "}, "", None),
        ({}, "", None),
    ],
)
def test_apps(headers: dict[str, str], key: str, app: str | None) -> None:
    found = fields(headers, {}, key)
    assert found.get("app") == app and found.get("key", "") == key


def test_a_lane_that_is_auto_is_left_to_the_daemon() -> None:
    assert "priority" not in fields({"X-UMA-Priority": "auto"}, {})


def test_kept_conversations_are_bounded_and_each_keys_own() -> None:
    kept = Kept()
    for number in range(MOST + 1):
        messages = [{"role": "user", "content": str(number)}]
        kept.put(f"r{number}", "editor", Entry.of(messages, {}, []))
    assert kept.history(f"r{MOST}", "editor")[0]["content"] == str(MOST)
    for id, owner in (("r0", "editor"), ("r5", ""), ("none", "editor")):
        assert kept.get(id, owner) is None
        with pytest.raises(Refusal):
            kept.history(id, owner)
