"""Requests as bytes: what is no JSON, half characters, deep nesting, numbers out of range."""

from __future__ import annotations

import pytest

from umaserve.protocol import Limits, ProtocolError, parse_message

LIMITS = Limits()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nul",
        b"[]",
        b'"x"',
        b"3",
        b'{"id":"a","prompt":"x"',
        b'{"id":"a","prompt":"x"}}',
        b'{"id":"a","prompt":NaN}',
        b'{"id":"a","prompt":"x","temperature":Infinity}',
        b'{"id":"a","prompt":"\xff"}',
        b'{"id":"a","prompt":"x","unknown":"\xff"}',
        b'{"id":"a","prompt":"\xed\xa0\x80"}',
        b'{"id":"a","prompt":"x","metadata":"\\q"}',
        b'{"id":"a","prompt":"\\ud800"',
        b'{"id":"a","prompt":"\\ud800","x":NaN}',
        b'\0{"id":"a","prompt":"\\ud800"}',
        b'["\\ud800"]',
        b'{"id":"a","metadata":' + b'{"a":' * 100_000,
        b'{"id":"a","logit_bias":' + b"[" * 300_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_what_is_no_json_object_closes(body):
    with pytest.raises(ProtocolError) as caught:
        parse_message(body, LIMITS)
    assert (caught.value.code, caught.value.closes) == ("E_PROTO_001", True)


HIGH, LOW = rb"\ud83d", rb"\ude00"


@pytest.mark.parametrize("half", [HIGH, LOW, HIGH + HIGH + LOW, HIGH + LOW + LOW, rb"\\" + HIGH])
@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b'"prompt":"cut %b"', '"prompt"'),
        (b'"prompt":"x","stop":["%b"]', '"stop"'),
        (b'"prompt":"x","session":"%b"', '"session"'),
        (b'"prompt":"x","metadata":{"%b":1}', '"metadata"'),
        (b'"prompt":"x","logit_bias":{"%b":1}', '"logit_bias"'),
        (b'"prompt":"x","unknown":[{"k":"%b"}]', '"unknown"'),
        (b'"prompt":"x","%b":1', "a field"),
        (b'"messages":[{"role":"user","content":"%b"}]', '"messages"'),
        (b'"messages":[{"role":"%b","content":"x"}]', '"messages"'),
        (b'"type":"%b"', '"type"'),
        (b'"type":"load","model":"%b"', '"model"'),
        (b'"type":"tokenize","text":"%b"', '"text"'),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_itself(head, name, half):
    id, rest = b'"id":"b\\\\ad"', head % half
    for body in (b"{%b,%b}" % (id, rest), b"{%b,%b}" % (rest, id)):
        with pytest.raises(ProtocolError) as caught:
            parse_message(body, LIMITS)
        error = caught.value
        assert (error.code, error.closes, error.id) == ("E_PROTO_003", False, "b\\ad")
        assert error.message.startswith(f"{name} holds \\ud")


def test_half_of_a_pair_in_the_id_leaves_no_id():
    with pytest.raises(ProtocolError, match='"id" holds') as caught:
        parse_message(rb'{"id":"a\ud83d","prompt":"x"}', LIMITS)
    assert (caught.value.code, caught.value.id) == ("E_PROTO_003", None)


def test_a_backslash_before_the_letters_of_an_escape_is_no_escape():
    assert parse_message(rb'{"id":"a","prompt":"\\ud83d"}', LIMITS).prompt == r"\ud83d"
    assert parse_message(rb'{"id":"a","prompt":"\ud83d\ude00"}', LIMITS).prompt == "😀"


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b'["]",' * 4000 + b"0" + b"]" * 4000 + b',"id":"a"}',
        b'{"prompt":"id","id":"a","metadata":' + b'{"id":' * 5000 + b'"b"' + b"}" * 5000 + b"}\n",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_what_is_nested_too_deeply_is_refused_by_itself(body):
    with pytest.raises(ProtocolError, match="nested too deeply") as caught:
        parse_message(body, LIMITS)
    assert (caught.value.code, caught.value.closes, caught.value.id) == ("E_PROTO_003", False, "a")


NINES = b"9" * 5000


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", NINES, b"-" + NINES, NINES + b".5"])
@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b'"prompt":"x","temperature":', "temperature"),
        (b'"prompt":"x","max_tokens":', "max_tokens"),
        (b'"prompt":"x","seed":', "seed"),
        (b'"prompt":"x","top_k":', "top_k"),
        (b'"prompt":"x","slo":{"latency_cap":1e400},"mirostat":', "slo.latency_cap"),
        (b'"prompt":', "prompt"),
        (b'"type":', "type"),
        (b'"type":"cancel","serial":', "serial"),
        (b'"type":"metrics","interval_ms":', "interval_ms"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_id(head, name, number):
    with pytest.raises(ProtocolError) as caught:
        parse_message(b'{"id":"a",' + head + number + b"}", LIMITS)
    assert (caught.value.code, caught.value.id) == ("E_PROTO_003", "a")
    assert caught.value.message.startswith(f'"{name}" must be')


def test_numbers_that_nobody_reads_may_be_anything():
    body = b'{"id":"a","prompt":"x","unknown":[1e400,%b],"metadata":[1e400,%b]}' % (NINES, NINES)
    assert bytes(parse_message(body, LIMITS).metadata) == b"[1e400,%b]" % NINES
