"""The socket's fields in each HTTP dialect: what a body gives by their names, the daemon is asked.

Each body is compared with a request of the socket that has the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.support.fixtures.fake_daemon import FakeDaemon
from tests.support.gateway import gateway, post, sse
from umaserve.gateway.app import ENDPOINTS
from umaserve.gateway.daemon.event import Event
from umaserve.protocol import (
    Beginning,
    Ending,
    Generate,
    Limits,
    Render,
    parse_message,
)
from umaserve.protocol.tables import chat_fields, settings

SAMPLING: dict[str, Any] = {
    "temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.2, "typical_p": 0.6, "seed": 11,
    "repeat_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    "penalty_last_n": 9, "logit_bias": {"5": 1.0}, "post_sampling_probs": True,
    "ignore_eos": True, "xtc_probability": 0.3, "xtc_threshold": 0.2, "dry_multiplier": 0.4,
    "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": 8,
    "dry_sequence_breakers": [";"], "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2,
}  # fmt: skip
HANDLING: dict[str, Any] = {
    "slo": {"target_ttft_ms": 900, "latency_cap": 2}, "add_bos": False, "parse_special": False,
    "t_max_predict_ms": 5000, "context_shift": True, "n_keep": 4, "cache_prompt": False,
    "lora": [{"id": 0, "scale": 0.5}],
    "cache_scope": "private", "speculate": False, "deterministic": True, "stop": ["END"],
}  # fmt: skip
TEMPLATE: dict[str, Any] = {
    "chat_template_kwargs": {"a": 1}, "add_generation_prompt": False,
    "continue_final_message": False,
}  # fmt: skip
BUDGET: dict[str, Any] = {"thinking_budget": 5, "thinking_budget_message": "enough"}
CONSTRAINTS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}}, {"json_schema": {"type": "null"}},
    {"regex": "a+"}, {"grammar": 'root ::= "a"'},
]  # fmt: skip
HELLO = [{"role": "user", "content": "Hello you"}]


class Dialect(NamedTuple):
    """A route, the least that a body needs, and whether that is a conversation."""

    path: str
    body: dict[str, Any]
    is_chat: bool


DIALECTS = (
    Dialect("/v1/chat/completions", {"messages": HELLO}, True),
    Dialect("/v1/completions", {"prompt": "Hello you"}, False),
    Dialect("/v1/responses", {"input": "Hello you"}, True),
    Dialect("/v1/messages", {"messages": HELLO, "max_tokens": 16}, True),
    Dialect("/api/chat", {"messages": HELLO, "stream": False}, True),
    Dialect("/api/generate", {"prompt": "Hello you", "stream": False}, False),
    Dialect("/completion", {"prompt": "Hello you"}, False),
    Dialect("/generate", {"prompt": "Hello you", "stream": False}, False),
)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.path)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    folder: Path = tmp_path_factory.mktemp("fields")
    with FakeDaemon(str(folder / "d.sock")) as daemon:
        daemon.limits = dict.fromkeys(("max_body_bytes", "max_frame_bytes"), 1 << 20)
        daemon.limits |= {"max_tokens": 512, "max_prompt_bytes": 65536, "n_ctx": 1024}
        daemon.limits |= {"idle_timeout_s": 300, "max_picture_bytes": 0}
        daemon.limits["max_unsent_bytes"] = 1 << 20
        yield daemon


@pytest.fixture(scope="module")
def port(daemon: FakeDaemon) -> Iterator[int]:
    with gateway(daemon.path, asked=False) as port:
        yield port


def lost(
    daemon: FakeDaemon, port: int, dialect: Dialect, given: dict[str, Any], **more: Any
) -> set[str]:
    """Names of the fields that reach the daemon otherwise than from the socket."""
    answer = post(port, dialect.path, {**dialect.body, **given, **more})
    assert answer.status == 200, answer.body
    (seen,) = (each for each in daemon.seen if isinstance(each, Generate))
    daemon.seen.clear()
    prompt = {"messages": HELLO} if dialect.is_chat else {"prompt": "Hello you"}
    wanted = parse_message(msgspec.json.encode({"id": "a", **prompt, **given, **more}), Limits())
    assert isinstance(wanted, Generate)
    return {
        name
        for name, theirs, ours in told(seen, wanted)
        if theirs != ours and (name in given or name == "constraint")
    }


def told(seen: Generate, wanted: Generate) -> Iterator[tuple[str, Any, Any]]:
    for theirs, ours in ((seen, wanted), (seen.chat, wanted.chat)):
        for name in ours.__struct_fields__:
            yield name, plain(getattr(theirs, name)), plain(getattr(ours, name))
    for name, value in wanted.sampling.items():
        yield name, seen.sampling[name], value


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, msgspec.Raw) else value


def test_no_field_is_left_out() -> None:
    """A field of these tables without a value above."""
    for given, table in (
        (SAMPLING, settings.SAMPLING),
        (HANDLING, settings.HANDLING),
        (TEMPLATE, chat_fields.TEMPLATE),
        ([name for each in CONSTRAINTS for name in each], settings.CONSTRAINTS),
    ):
        assert set(given) == {field.name for field in table}


def test_the_gateway_decodes_all_fields_of_events() -> None:
    decoded = set(Event.__struct_encode_fields__)
    assert decoded >= {*Ending.__struct_fields__, *Beginning.__struct_fields__}


@each_dialect
def test_openapi_has_them(dialect: Dialect) -> None:
    (fields,) = (each.fields for each in ENDPOINTS if each.path == dialect.path)
    named = fields | fields.get("options", {}).get("properties", {})
    wanted = {*SAMPLING, *HANDLING}.union(*CONSTRAINTS)
    assert wanted | ({*TEMPLATE, *BUDGET} if dialect.is_chat else set()) <= set(named)


def test_the_page_names_those_of_conversations() -> None:
    page = (Path(__file__).parents[2] / "docs/HTTP.md").read_text("utf-8")
    (text,) = re.findall(r"^\*\*The socket's fields\.\*\*.*?\n\n", page, re.M | re.S)
    assert set(re.findall(r"`(\w+)`", text)) >= {*TEMPLATE, *BUDGET}


@each_dialect
def test_sampling(daemon: FakeDaemon, port: int, dialect: Dialect) -> None:
    body = {"options": SAMPLING} if dialect.path.startswith("/api/") else {}
    assert lost(daemon, port, dialect, SAMPLING, **body) == set()


@each_dialect
def test_handling(daemon: FakeDaemon, port: int, dialect: Dialect) -> None:
    assert lost(daemon, port, dialect, HANDLING) == set()


@each_dialect
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda each: next(iter(each)))
def test_constraints(
    daemon: FakeDaemon, port: int, dialect: Dialect, constraint: dict[str, Any]
) -> None:
    assert lost(daemon, port, dialect, constraint) == set()


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.is_chat], ids=lambda each: each.path)
@pytest.mark.parametrize("given", [TEMPLATE, BUDGET], ids=["template", "budget"])
def test_conversation(
    daemon: FakeDaemon, port: int, dialect: Dialect, given: dict[str, Any]
) -> None:
    assert lost(daemon, port, dialect, given) == set()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions/input_tokens", {"messages": HELLO}),
        ("/v1/responses/input_tokens", {"input": "Hello you"}),
        ("/v1/messages/count_tokens", {"messages": HELLO}),
        ("/apply-template", {"messages": HELLO}),
    ],
)
def test_what_counts_tokens_reads_the_conversation_as_it_is_asked(
    daemon: FakeDaemon, port: int, path: str, body: dict[str, Any]
) -> None:
    answer = post(port, path, {**body, **TEMPLATE, **BUDGET})
    assert answer.status == 200, answer.body
    (seen,) = (each for each in daemon.seen if isinstance(each, Render))
    daemon.seen.clear()
    question = {"type": "render", "messages": HELLO, **TEMPLATE, **BUDGET}
    wanted = parse_message(msgspec.json.encode(question), Limits())
    assert isinstance(wanted, Render) and seen.chat == wanted.chat


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
def test_metadata_comes_back(port: int, path: str) -> None:
    kept = {"job": "7"}
    body = {"prompt": "Hello you", "messages": HELLO, "metadata": kept}
    del body["prompt" if "chat" in path else "messages"]
    assert post(port, path, {**body, "stream": False}).json["metadata"] == kept
    parts = [each for each in sse(post(port, path, {**body, "stream": True}).body)
             if isinstance(each, dict)]  # fmt: skip
    assert [each.get("metadata") for each in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["metadata"] == kept
