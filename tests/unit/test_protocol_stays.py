"""The names that docs/PROTOCOL.md promised with 0.2.0 are there, with their defaults.

A line goes from here only with the changelog's "Removed", after the time that the page says.
"""

from __future__ import annotations

from collections import deque

import pytest

from umaserve.client.wire import Router
from umaserve.protocol import (
    ERRORS,
    REASONS,
    Limits,
    Timings,
    Usage,
    encode_frame,
    errors,
    parse_message,
)
from umaserve.protocol.tables.fields import ADMIN_FIELDS, GENERATE_FIELDS
from umaserve.protocol.tables.settings import SLO_FIELDS

REQUIRED = ("id", "prompt", "messages", "tokens")
PLAIN = (  # without a default, or with one that is the daemon's
    "tools tool_choice parallel_tool_calls thinking thinking_budget chat_template_kwargs "
    "add_generation_prompt response_format json_schema regex grammar max_tokens seed stop "
    "logit_bias logprobs slo session prompt_logprobs app key metadata"
)
DEFAULTS = {
    "continue_final_message": False, "deltas": False, "temperature": 0.8, "top_p": 0.95,
    "top_k": 40, "min_p": 0.05, "typical_p": 1.0, "repeat_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "penalty_last_n": 64, "post_sampling_probs": False,
    "ignore_eos": False, "xtc_probability": 0.0, "xtc_threshold": 0.1, "dry_multiplier": 0.0,
    "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"], "mirostat": 0, "mirostat_tau": 5.0,
    "mirostat_eta": 0.1, "stream": True, "priority": "auto", "add_bos": "auto",
    "parse_special": True, "echo": False, "t_max_predict_ms": 0, "return_tokens": False,
    "begin": False, "context_shift": False, "n_keep": 0, "cache_prompt": True,
    "cache_scope": "shared", "speculate": "auto", "deterministic": False,
}  # fmt: skip
ADMIN = {
    "metrics": "id interval_ms sessions",
    "cancel": "id serial",
    "priority": "id serial priority",
    "load": "id model",
    "unload": "id",
    "info": "id template relays",
    "tokenize": "id text add_special parse_special key",
    "render": "id key messages tools thinking chat_template_kwargs continue_final_message",
    "detokenize": "id tokens with_pieces key",
    "embed": "id input encoding_format truncate key",
    "cache": "id",
    "ping": "id",
}
CLOSING = {"E_PROTO_001", "E_PROTO_002", "E_LIMIT_004", "E_IO_001"}
STAYING = (
    "E_PROTO_003 E_PROTO_004 E_PROTO_005 E_LIMIT_001 E_LIMIT_002 E_LIMIT_003 E_MODEL_001 "
    "E_MODEL_002 E_RUNTIME_001 E_RUNTIME_002 E_RUNTIME_003"
)


def test_a_request_has_the_fields_and_defaults_of_0_2_0() -> None:
    fields = {field.name: field.default for field in GENERATE_FIELDS}
    assert set(fields) >= {*REQUIRED, *PLAIN.split(), *DEFAULTS}
    assert {name: fields[name] for name in DEFAULTS} == DEFAULTS
    assert {f.name for f in SLO_FIELDS} >= {"target_ttft_ms", "target_tbt_ms", "latency_cap"}


@pytest.mark.parametrize("kind", ADMIN)
def test_an_admin_message_has_its_fields(kind: str) -> None:
    assert {field.name for field in ADMIN_FIELDS[kind]} >= set(ADMIN[kind].split())


def test_codes_stay_and_close_the_same_connections() -> None:
    promised = {*CLOSING, *STAYING.split()}
    assert set(ERRORS) >= promised
    assert promised.intersection(errors.CLOSING) == CLOSING


def test_an_end_has_its_reasons_counts_and_times() -> None:
    assert set(REASONS) >= {"stop", "length", "cancel", "error", "tool_calls"}
    assert {*Usage.__struct_fields__} >= {"prompt_tokens", "cached_tokens", "completion_tokens"}
    times = {"queue_ms", "ttft_ms", "total_ms", "tbt_p50_ms", "tbt_p95_ms"}
    assert {*Timings.__struct_fields__} >= times


def test_a_field_of_a_later_version_is_ignored() -> None:
    parse_message(b'{"id":"a","prompt":"Hi","of_a_later_version":[1]}', Limits())


def test_the_client_ignores_what_a_later_daemon_adds() -> None:
    router = Router()
    router.streams["a"] = events = deque()
    router.feed(encode_frame({"id": "a", "event": "of_a_later_version", "word": 1}))
    router.feed(encode_frame({"id": "a", "event": "token", "text": "Hi", "token_id": 7, "new": 1}))
    router.feed(encode_frame({"id": "a", "event": "error", "code": "E_NEW_001", "message": "no"}))
    token, error = events
    assert (token.text, token.token_id, error.code) == ("Hi", 7, "E_NEW_001")
    assert not router.answers
