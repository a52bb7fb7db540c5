"""Requests by example, by mistake and by property."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fixtures.chunks import decode_in_chunks
from tests.support.fixtures.untimed import untimed
from umaserve.protocol import (
    ERRORS,
    Cancel,
    DetokenizeRequest,
    Embed,
    Generate,
    Info,
    Limits,
    Load,
    Metrics,
    Ping,
    ProtocolError,
    SetPriority,
    TokenizeRequest,
    Unload,
    encode_frame,
    parse_message,
    requests,
)
from umaserve.protocol.tables import chat_fields, fields

LIMITS = Limits()


def parse(message: object, limits: Limits = LIMITS):
    return parse_message(json.dumps(message).encode(), limits)


def refused(message: object, limits: Limits = LIMITS) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        parse(message, limits)
    return caught.value


# --- fields of a prompt ---------------------------------------------------------------------------


def test_a_prompt_may_be_token_ids():
    message = parse({"id": "a", "tokens": [5, 0, 7]})
    assert (message.tokens, message.prompt, message.messages) == ([5, 0, 7], None, None)


def test_what_a_request_says_beside_its_prompt():
    usual = parse({"id": "a", "prompt": "x"})
    assert (usual.parse_special, usual.echo, usual.app, usual.cache_scope) == (
        True, False, None, "shared",
    )  # fmt: skip
    said = parse(
        {"id": "a", "prompt": "x", "parse_special": False, "echo": True, "app": "editor",
         "cache_scope": "private", "context_shift": False}
    )  # fmt: skip
    assert (said.parse_special, said.echo, said.app, said.cache_scope) == (
        False, True, "editor", "private",
    )  # fmt: skip
    assert (usual.context_shift, usual.n_keep) == (False, 0)
    shifted = parse({"id": "a", "prompt": "x", "context_shift": True, "n_keep": -1})
    assert (shifted.context_shift, shifted.n_keep) == (True, -1)
    drafts = [{}, {"speculate": "auto"}, {"speculate": None}, {"speculate": True}]
    assert all(parse({"id": "a", "prompt": "x", **said}).speculate for said in drafts)
    assert not parse({"id": "a", "prompt": "x", "speculate": False}).speculate


# --- requests ------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_engine():
    from umaserve.wire.messages import Sampling

    sampling = parse({"id": "a", "prompt": "x"}).sampling
    ours = dict(sampling)
    assert ours.pop("seed") is None
    theirs = msgspec.structs.asdict(Sampling())
    theirs.pop("seed")
    assert ours == theirs


@pytest.mark.parametrize(
    ("given", "name", "means"),
    [
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 0}, "top_k", 0),
        ({"top_p": 0}, "top_p", 0.0),
        ({"top_p": 1}, "top_p", 1.0),
        ({"min_p": 0}, "min_p", 0.0),
        ({"typical_p": 0}, "typical_p", 0.0),
        ({"temperature": -1}, "temperature", 0.0),
        ({"mirostat": 0.0}, "mirostat", 0),
        ({"dry_base": 0}, "dry_base", 1.75),
    ],
)
def test_values_that_switch_a_step_off(given, name, means):
    assert parse({"id": "a", "prompt": "x", **given}).sampling[name] == means


@pytest.mark.parametrize(
    ("stop", "means"),
    [("", ()), ([""], ()), (["a", ""], ("a",)), ([str(i) for i in range(40)], None)],
)
def test_stop_strings_that_are_none_and_many(stop, means):
    got = parse({"id": "a", "prompt": "x", "stop": stop})
    assert got.stop == (tuple(stop) if means is None else means)


def test_other_values_that_are_none():
    got = parse({"id": "a", "prompt": "x", "grammar": "", "regex": "", "t_max_predict_ms": -1})
    assert got.constraint is None and got.t_max_predict_ms == 0


def test_a_byte_order_mark_is_skipped():
    assert parse_message(b'\xef\xbb\xbf{"id":"a","prompt":"x"}', LIMITS).prompt == "x"


def test_every_field_is_read():
    """Long: one table of all fields."""
    got = parse(
        {
            "id": "a",
            "prompt": "x",
            "max_tokens": 7,
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3,
            "min_p": 0.1,
            "typical_p": 0.9,
            "seed": -(2**63),
            "stop": "END",
            "repeat_penalty": 1.1,
            "presence_penalty": -1,
            "frequency_penalty": 2,
            "penalty_last_n": -1,
            "logit_bias": {"5": 1.5, "6": False},
            "logprobs": 0,
            "ignore_eos": True,
            "xtc_probability": 0.5,
            "xtc_threshold": 0.2,
            "dry_multiplier": 0.8,
            "dry_base": 2,
            "dry_allowed_length": 3,
            "dry_penalty_last_n": -1,
            "dry_sequence_breakers": ["\n", "###"],
            "mirostat": 2,
            "mirostat_tau": 4,
            "mirostat_eta": 0.3,
            "post_sampling_probs": True,
            "stream": False,
            "priority": "background",
            "slo": {"target_ttft_ms": 100, "target_tbt_ms": 20.5, "latency_cap": 1.5},
            "session": "s",
            "cache_prompt": False,
            "metadata": {"k": [1, None]},
            "no such field": [],
        }
    )
    assert isinstance(got, Generate)
    assert (got.id, got.prompt, got.messages, got.max_tokens) == ("a", "x", None, 7)
    assert got.stop == ("END",)
    assert (got.stream, got.priority, got.session, got.cache_prompt) == (
        False,
        "background",
        "s",
        False,
    )
    assert msgspec.structs.astuple(got.slo) == (100, 20.5, 1.5)
    assert msgspec.json.decode(got.metadata) == {"k": [1, None]}
    assert got.sampling == {
        "temperature": 0.0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repeat_penalty": 1.1,
        "presence_penalty": -1.0,
        "frequency_penalty": 2.0,
        "penalty_last_n": -1,
        "logit_bias": ((5, 1.5), (6, -math.inf)),
        "seed": -(2**63),
        "logprobs": 0,
        "ignore_eos": True,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ("\n", "###"),
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.3,
        "post_sampling_probs": True,
    }


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("mirostat", 1, '"mirostat" must be 0 (off) or 2, not 1'),
        ("dry_base", 10.5, '"dry_base" must be a number from 0 to 10, not 10.5'),
        ("dry_sequence_breakers", [""], '"dry_sequence_breakers[0]" must be a string of 1 to 40'),
        ("dry_sequence_breakers", ["x"] * 17, '"dry_sequence_breakers" must be a list of at most'),
        ("xtc_threshold", 1.5, '"xtc_threshold" must be a number from 0 to 1, not 1.5'),
    ],
)
def test_settings_out_of_range_are_named(name, value, words):
    error = refused({"id": "a", "prompt": "x", name: value})
    assert error.code == "E_PROTO_003"
    assert error.message.startswith(words)


def test_null_means_the_default_everywhere():
    from umaserve.protocol.tables.fields import GENERATE_FIELDS

    nulls = {f.name: None for f in GENERATE_FIELDS if f.name not in ("id", "prompt")}
    assert parse({"id": "a", "prompt": "x", **nulls}) == parse({"id": "a", "prompt": "x"})


def test_messages_with_text_parts():
    got = parse(
        {
            "id": "a",
            "messages": [
                {"role": "system", "content": "be brief", "name": "kept"},
                {"role": "user", "content": [{"type": "text", "text": "a"}] * 2},
            ],
        }
    )
    first, second = got.messages
    assert (first.role, first.content, first.name) == ("system", "be brief", "kept")
    assert [part.text for part in second.content] == ["a", "a"]
    assert got.prompt is None


WRONG = [
    ({"prompt": "x"}, '"id" is missing'),
    ({"id": 5, "prompt": "x"}, '"id" must be a string of 1 to 128 characters, not 5'),
    ({"id": "", "prompt": "x"}, '"id" must be'),
    ({"id": "x" * 129, "prompt": "x"}, '"id" must be'),
    ({"id": "a"}, '"prompt" is missing (or "tokens", or "messages" for a chat)'),
    ({"prompt": ""}, '"prompt" must be a string that is not empty'),
    ({"prompt": 3}, '"prompt" must be a string that is not empty, or a list of texts and pictures, '
                    "not 3"),
    ({"prompt": []}, '"prompt" must be a string that is not empty'),
    ({"prompt": [{"type": "text", "text": ""}]}, '"prompt" must be a string that is not empty'),
    ({"prompt": [3]}, '"prompt[0]" must be a {"type"'),
    ({"prompt": [{"type": "text"}]}, '"prompt[0].text" is missing'),
    ({"prompt": [{"type": "image", "data": 3}]}, '"prompt[0].data" must be a string, a picture'),
    ({"prompt": [{"type": "text", "text": "x"}] * 4097}, "a list of at most 4096 texts"),
    ({"prompt": [{"type": "text", "text": "x"}], "echo": True}, "goes with a text as"),
    ({"prompt": [{"type": "text", "text": "x"}], "prompt_logprobs": 0}, "goes with a text as"),
    ({"prompt": [{"type": "text", "text": "x"}], "tools": []}, '"tools" goes with "messages"'),
    ({"images": "refuse"}, '"images" goes with "messages"'),
    ({"prompt": [{"type": "image", "data": "AA=="}], "images": "refuse"}, "reads text only"),
    ({"messages": []}, '"messages" must be a list of at least one'),
    ({"messages": "x"}, '"messages" must be a list'),
    ({"messages": [{"role": "user"}]}, '"messages[0].content" is missing'),
    ({"messages": [5]}, '"messages[0]" must be a {"role", "content"} object, not 5'),
    (
        {"messages": [{"role": 5, "content": "x"}]},
        '"messages[0].role" must be a string, such as "system"',
    ),
    ({"messages": [{"role": "user", "content": 5}]}, '"messages[0].content" must be a string or'),
    (
        {"messages": [{"role": "user", "content": [{"type": 5, "text": "x"}]}]},
        '"messages[0].content[0].type" must be a string, not 5',
    ),
    (
        {"messages": [{"role": "user", "content": [5]}]},
        '"messages[0].content[0]" must be a {"type"',
    ),
    ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "both given; send one"),
    ({"prompt": "x", "tokens": [1]}, '"prompt" and "tokens" are both given; send one'),
    (
        {"tokens": [1], "messages": [{"role": "user", "content": "x"}]},
        '"messages" and "tokens" are both given; send one',
    ),
    ({"tokens": []}, '"tokens" must be a list of token ids from 0 to 2147483647, not empty'),
    ({"tokens": [1, -1]}, '"tokens[1]" must be a token id from 0 to 2147483647, not -1'),
    ({"tokens": [2**31]}, '"tokens[0]" must be a token id'),
    ({"tokens": ["1"]}, '"tokens[0]" must be a token id from 0 to 2147483647, not "1"'),
    (
        {"echo": True, "messages": [{"role": "user", "content": "x"}]},
        '"echo" goes with "prompt" or "tokens", not "messages"',
    ),
    ({"echo": 1}, '"echo" must be true or false, not 1'),
    ({"parse_special": "no"}, '"parse_special" must be true or false'),
    ({"n_keep": -2}, '"n_keep" must be a whole number from -1 to 2147483647, not -2'),
    ({"n_keep": "all"}, '"n_keep" must be a whole number from -1'),
    ({"context_shift": "no"}, '"context_shift" must be true or false'),
    ({"app": ""}, '"app" must be a string of 1 to 128 characters'),
    ({"app": 3}, '"app" must be a string'),
    ({"cache_scope": "world"}, '"cache_scope" must be "shared" or "private", not "world"'),
    ({"speculate": "ngram"}, '"speculate" must be "auto", true or false, not "ngram"'),
    ({"speculate": 1}, '"speculate" must be "auto", true or false, not 1'),
    ({"max_tokens": -1}, '"max_tokens" must be a whole number from 0 to 2048, not -1'),
    ({"max_tokens": 2049}, "from 0 to 2048, not 2049"),
    ({"max_tokens": "many"}, '"max_tokens" must be a whole number from 0 to 2048, not "many"'),
    ({"prompt_logprobs": 21}, '"prompt_logprobs" must be a whole number from 0 to 20, not 21'),
    ({"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 0}, "not \"messages\""),
    ({"max_tokens": True}, '"max_tokens" must be a whole number'),
    ({"temperature": "hot"}, '"temperature" must be a number from -10 to 10, not "hot"'),
    ({"temperature": -10.1}, '"temperature" must be'),
    ({"temperature": True}, '"temperature" must be'),
    ({"top_p": -0.1}, '"top_p" must be a number from 0 to 1, not -0.1'),
    ({"top_p": 1.1}, '"top_p" must be'),
    ({"top_k": -2}, '"top_k" must be'),
    ({"top_k": 1.5}, '"top_k" must be a whole number'),
    ({"min_p": 2}, '"min_p" must be'),
    ({"typical_p": -1}, '"typical_p" must be'),
    ({"repeat_penalty": 0}, '"repeat_penalty" must be'),
    ({"presence_penalty": 11}, '"presence_penalty" must be'),
    ({"frequency_penalty": "x"}, '"frequency_penalty" must be'),
    ({"penalty_last_n": -2}, '"penalty_last_n" must be'),
    ({"seed": 2**64}, '"seed" must be a 64-bit whole number'),
    ({"seed": -(2**63) - 1}, '"seed" must be'),
    ({"seed": "x"}, '"seed" must be'),
    ({"stop": ["a", 3]}, '"stop[1]" must be a string, not 3'),
    ({"stop": [f"{i:0200}" for i in range(80)]}, "at most 20480 bytes together, where each counts"),
    ({"stop": [str(i) for i in range(400)]}, '"stop" must be'),
    ({"stop": "x" * 20500}, '"stop" must be'),
    ({"mirostat": 1}, '"mirostat" must be 0 (off) or 2, not 1'),
    ({"logit_bias": 3}, '"logit_bias" must be an object {"token id": bias} or a list'),
    ({"logit_bias": {"x": 1}}, '"logit_bias" must be'),
    ({"logit_bias": {"1": "x"}}, '"logit_bias" must be'),
    ({"logit_bias": {"1": True}}, '"logit_bias" must be'),
    ({"logit_bias": {"1": 1001}}, '"logit_bias" must be'),
    ({"logit_bias": [[1]]}, '"logit_bias" must be'),
    ({"logit_bias": [[-1, 0]]}, '"logit_bias" must be'),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, '"logit_bias" must be'),
    ({"logprobs": 21}, '"logprobs" must be a whole number from 0 to 20, not 21'),
    ({"logprobs": True}, '"logprobs" must be'),
    ({"ignore_eos": 1}, '"ignore_eos" must be true or false, not 1'),
    ({"stream": "no"}, '"stream" must be true or false'),
    ({"cache_prompt": 0}, '"cache_prompt" must be'),
    ({"priority": "vip"}, '"priority" must be "auto", "interactive" or "background", not "vip"'),
    ({"slo": 1}, '"slo" must be an object'),
    ({"slo": {"latency_cap": 0.5}}, '"slo.latency_cap" must be a number from 1 to 100, not 0.5'),
    ({"slo": {"target_ttft_ms": 0}}, '"slo.target_ttft_ms" must be'),
    ({"session": ""}, '"session" must be'),
    ({"metadata": "x" * 20000}, '"metadata" must be JSON of at most 16384 bytes'),
    ({"type": "sing"}, '"type" must be one of metrics, cancel'),
    ({"type": 3}, '"type" must be one of'),
    ({"type": "cancel", "id": None}, '"id" is missing'),
    ({"type": "priority", "id": "a"}, '"priority" is missing'),
    ({"type": "priority", "id": "a", "priority": "vip"}, '"priority" must be "interactive" or'),
    ({"type": "load"}, '"model" is missing'),
    ({"type": "load", "model": ""}, '"model" must be the path of a GGUF file'),
    ({"type": "load", "model": "a\0b"}, '"model" must be'),
    ({"type": "tokenize"}, '"text" is missing'),
    ({"type": "detokenize"}, '"tokens" is missing'),
    ({"type": "embed"}, '"input" is missing'),
    ({"type": "embed", "input": []}, '"input" must be a string, a list of token ids, or a list'),
    ({"type": "embed", "input": ["x", 1]}, '"input" must be a string'),
    ({"type": "embed", "input": [[1], []]}, '"input" must be a string'),
    ({"type": "embed", "input": "x", "encoding_format": "hex"}, '"encoding_format" must be'),
    ({"type": "detokenize", "tokens": [-1]}, '"tokens[0]" must be a token id from 0 to'),
    ({"type": "metrics", "interval_ms": 1}, '"interval_ms" must be a number from 50 to 3600000'),
]


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=[str(w)[:40] for _, w in WRONG])
def test_a_wrong_field_is_named(fields, words):
    whole = fields if "type" in fields else {"id": "a", "prompt": "x", **fields}
    if ("messages" in fields or "tokens" in fields) and not {"prompt", "type"} & set(fields):
        del whole["prompt"]
    if fields in ({"prompt": "x"}, {"id": "a"}):
        whole = fields
    error = refused(whole)
    assert (error.code, error.closes) == ("E_PROTO_003", False)
    assert words in error.message
    readable = whole.get("id")
    assert error.id == (readable if readable == "a" else None)


def test_long_values_are_shortened_in_messages():
    assert len(refused({"id": "a", "prompt": "x", "temperature": "y" * 500}).message) < 120


@pytest.mark.parametrize(
    "name",
    [
        f.name for f in fields.GENERATE_FIELDS
        if "whole number" in f.words and f.name != "thinking_budget"
    ],
)  # fmt: skip
def test_whole_numbers_may_be_written_like_floats(name):
    for text, value in ((b"2.0", 2), (b"1e1", 10), (b"20e-1", 2)):
        got = parse_message(b'{"id":"a","prompt":"x","%b":%b}' % (name.encode(), text), LIMITS)
        number = getattr(got, name) if hasattr(got, name) else got.sampling[name]
        assert (number, type(number)) == (value, int)
    for wrong in (1.5, -1e300, 1e300):
        error = refused({"id": "a", "prompt": "x", name: wrong})
        assert (error.code, error.id) == ("E_PROTO_003", "a")
        assert error.message.startswith(f'"{name}" must be a')


def test_other_whole_numbers_written_like_floats():
    asked = {"id": "a", "messages": [{"role": "user", "content": "x"}]}
    budgets = [parse({**asked, "thinking_budget": n}).chat.thinking_budget for n in (2.0, -1.0)]
    assert budgets == [2, None]
    assert refused({**asked, "thinking_budget": 1.5}).message.startswith('"thinking_budget"')
    got = parse({"id": "a", "prompt": "x", "mirostat": 2.0, "logit_bias": [[5.0, 1], [7, 2.5]]})
    assert (got.sampling["mirostat"], type(got.sampling["mirostat"])) == (2, int)
    assert got.sampling["logit_bias"] == ((5, 1.0), (7, 2.5))
    assert parse({"type": "cancel", "serial": 7.0}) == Cancel(serial=7)
    assert refused({"id": "a", "prompt": "x", "mirostat": 1.0}).message.startswith('"mirostat"')


@untimed
@given(st.integers(0, 30), st.sampled_from(["x", "ü", "😀"]))
def test_the_prompt_cap_counts_bytes(length, letter):
    text = letter * length
    message = {"id": "a", "prompt": text or "x"}
    limits = Limits(max_prompt_bytes=20)
    size = len((text or "x").encode())
    if size <= 20:
        assert parse(message, limits).prompt == (text or "x")
    else:
        error = refused(message, limits)
        assert (error.code, error.id, error.closes) == ("E_LIMIT_001", "a", False)
        assert error.message == f"prompt is {size} bytes; the limit is 20"


def test_the_number_of_messages_and_of_their_parts_is_bounded():
    turn = {"role": "user", "content": ""}
    most = chat_fields.MAX_MESSAGES
    assert len(parse({"id": "a", "messages": [turn] * most}).messages) == most
    error = refused({"id": "a", "messages": [turn] * (most + 1)})
    assert (error.code, error.id, error.overflow) == ("E_LIMIT_001", "a", (0, 0))
    assert error.message == f"{most + 1} messages are too many; the limit is {most}"

    parts = [{"type": "text", "text": ""}] * (chat_fields.MAX_CONTENT_PARTS // 2)
    half = {"role": "user", "content": parts}
    assert parse({"id": "a", "messages": [half, half]})
    error = refused({"id": "a", "messages": [half, half, {"role": "user", "content": parts[:1]}]})
    assert (error.code, error.id, error.overflow) == ("E_LIMIT_001", "a", (0, 0))
    assert f"{chat_fields.MAX_CONTENT_PARTS + 1} content parts" in error.message
    assert f"the limit is {chat_fields.MAX_CONTENT_PARTS}" in error.message


def test_what_is_far_too_long_is_refused_undecoded(monkeypatch):
    decode = requests._decode_any

    def decode_short(raw):
        assert len(bytes(raw)) < 1000
        return decode(raw)

    monkeypatch.setattr(requests, "_decode_any", decode_short)
    error = refused({"id": "a", "prompt": "x", "logit_bias": [[]] * 30_000})
    assert '"logit_bias" must be' in error.message and "it has 120000" in error.message
    error = refused({"id": "a", "type": ["x"] * 30_000})
    assert (error.id, error.message.startswith('"type" must be one of')) == ("a", True)
    error = refused({"type": "load", "model": "x" * 4097})
    assert error.message.startswith('"model" must be the path of a GGUF file, at most 4096 bytes')


def test_the_caps_on_messages_and_tokenize():
    limits = Limits(max_prompt_bytes=5)
    turn = {"role": "user", "content": "abc"}
    assert parse({"id": "a", "messages": [turn]}, limits)
    assert refused({"id": "a", "messages": [turn, turn]}, limits).code == "E_LIMIT_001"
    assert refused({"type": "tokenize", "text": "abcdef"}, limits).code == "E_LIMIT_001"


def test_admin_messages():
    assert parse({"type": "metrics"}) == Metrics()
    assert parse({"type": "metrics", "interval_ms": 50, "id": "m"}) == Metrics("m", 50)
    assert parse({"type": "metrics", "sessions": True}) == Metrics(sessions=True)
    assert parse({"type": "cancel", "id": "a"}) == Cancel("a")
    assert parse({"type": "cancel", "serial": 7}) == Cancel(serial=7)
    assert parse({"event": "cancel", "id": "a"}) == Cancel("a")
    assert parse({"type": "priority", "id": "a", "priority": "background"}) == SetPriority(
        "a", "background"
    )
    assert parse({"type": "priority", "serial": 7, "priority": "background"}) == SetPriority(
        None, "background", 7
    )
    for missing in ("cancel", "priority"):
        assert "id" in refused({"type": missing}).message
    assert "serial" in refused({"type": "cancel", "serial": 0}).message
    assert parse({"type": "load", "model": "/m.gguf"}) == Load("/m.gguf")
    assert parse({"type": "unload", "id": "u"}) == Unload("u")
    assert parse({"type": "info"}) == Info()
    assert parse({"type": "tokenize", "text": ""}) == TokenizeRequest(("",))
    assert parse({"type": "tokenize", "text": ["a", ""], "id": "t"}) == TokenizeRequest(
        ("a", ""), "t", several=True
    )
    for texts in ([], ["x"] * 2049, ["x", 1], 7):
        assert "text" in refused({"type": "tokenize", "text": texts}).message
    assert parse({"type": "detokenize", "tokens": [], "id": "d"}) == DetokenizeRequest([], "d")
    assert parse({"type": "embed", "input": "x"}) == Embed(("x",))
    assert parse({"type": "embed", "input": [3, 4]}) == Embed(([3, 4],))
    mixed = {"input": ["x", [3]], "encoding_format": "base64", "truncate": True, "id": "e"}
    assert parse({"type": "embed", **mixed}) == Embed(("x", [3]), "e", True, True)
    assert parse({"type": "ping", "id": "p"}) == Ping("p")
    assert isinstance(parse({"type": "generate", "id": "a", "prompt": "x"}), Generate)


# --- properties ----------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
field_names = st.sampled_from(
    [f.name for f in fields.GENERATE_FIELDS] + ["type", "event", "model", "text", "interval_ms"]
)


@untimed
@given(st.binary(max_size=300))
def test_garbage_raises_nothing_but_protocol_errors(body):
    with pytest.raises(ProtocolError) as caught:
        parse_message(body, LIMITS)
    assert caught.value.code in ERRORS


@untimed
@given(st.dictionaries(field_names | st.text(), json_values, max_size=8))
def test_any_object_is_served_or_refused(message):
    try:
        body = msgspec.json.encode(message)
    except UnicodeEncodeError:  # a lone surrogate has no encoding
        return
    try:
        got = parse_message(body, LIMITS)
    except ProtocolError as error:
        assert error.code in ("E_PROTO_001", "E_PROTO_003", "E_LIMIT_001")
        assert error.message
    else:
        assert got is not None


any_text = st.text(st.characters(codec=None), max_size=6) | st.sampled_from(["\ud83d", "\\ud83d"])


@untimed
@given(st.dictionaries(any_text, any_text | st.lists(any_text), max_size=4), st.booleans())
def test_an_object_with_any_escapes_is_judged_by_itself(message, id_first):
    whole = {"id": "a", **message, "id": "a"} if id_first else {**message, "id": "a"}  # noqa: F601
    try:
        parse_message(json.dumps(whole).encode(), LIMITS)
    except ProtocolError as error:
        assert (error.code, error.id) == ("E_PROTO_003", "a")


whole_requests = st.fixed_dictionaries(
    {
        "id": st.text(min_size=1, max_size=128),
        "prompt": st.text(min_size=1, max_size=50),
    },
    optional={
        "max_tokens": st.integers(1, 2048),
        "temperature": st.floats(0, 10),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(0, 1000),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "stop": st.lists(st.text(min_size=1, max_size=20), max_size=16),
        "stream": st.booleans(),
        "priority": st.sampled_from(["interactive", "background"]),
        "session": st.text(min_size=1, max_size=128),
        "metadata": st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    },
)


@untimed
@given(whole_requests, st.lists(st.integers(0, 5000), max_size=5))
def test_a_valid_request_survives_the_wire(message, cuts):
    ((body,), broken) = decode_in_chunks(encode_frame(message), cuts, 1 << 20)
    assert not broken
    got = parse_message(body, LIMITS)
    for name, value in message.items():
        if name == "metadata":
            assert msgspec.json.decode(got.metadata) == value
        elif name == "stop":
            assert got.stop == tuple(value)
        elif name in ("temperature", "top_p", "top_k", "seed"):
            assert got.sampling[name] == value
        else:
            assert getattr(got, name) == value
