"""The client's routing of events, without a socket."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fixtures.untimed import untimed
from umaserve.client import Eos, InvalidRequest, ProtocolError, ServerError, Token
from umaserve.client.connect import unreachable
from umaserve.client.wire import MAX_FRAME_BYTES, Router, generate_message, pack
from umaserve.protocol import (
    Beginning,
    Ending,
    Rated,
    Timings,
    TokenEncoder,
    TopLogprob,
    Usage,
    admin_event,
    begin_event,
    echo_event,
    eos_event,
    error_event,
    prompt_logprobs_event,
)


def router(*streams: str) -> Router:
    made = Router()
    made.streams.update((id, deque()) for id in streams)
    return made


RATED = Rated("ü", "ü".encode(), -0.5, [TopLogprob(1, "ü", b"\xc3", -0.5)])
TRAFFIC = [
    TokenEncoder("a")("ü😀", 1, RATED),
    TokenEncoder("b")("", 2),
    admin_event("pong", "p"),
    TokenEncoder("given up")("x", 3),
    error_event("b", "E_RUNTIME_001", "m"),
    eos_event("b", Ending(reason="error", usage=Usage(), timings=Timings())),
    eos_event(
        "a",
        Ending(
            reason="stop", text="whole", usage=Usage(1, 2, 3, 4), timings=Timings(0.5),
            metadata={"k": 1},
        ),  # fmt: skip
    ),
]


@untimed
@given(st.lists(st.integers(0, 2000), max_size=10))
def test_any_chunking_routes_the_same(cuts):
    data = b"".join(TRAFFIC)
    made = router("a", "b")
    made.asked.add("p")
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    for start, end in zip(edges, edges[1:], strict=False):
        made.feed(data[start:end])
    top = [{"token_id": 1, "text": "ü", "bytes": [0xC3], "logprob": -0.5}]
    token, eos = made.streams["a"]
    assert token == Token("a", "ü😀", 1, -0.5, top, "ü", [0xC3, 0xBC])
    assert (eos.reason, eos.usage) == ("stop", (1, 2, 3, 4, 0))
    assert (eos.text, eos.metadata) == ("whole", {"k": 1})
    assert eos.timings.queue_ms == 0.5
    empty, error, after = made.streams["b"]
    assert empty == Token("b", "", 2)
    assert isinstance(error, ServerError) and error.code == "E_RUNTIME_001"
    assert isinstance(after, Eos) and after.reason == "error"
    assert list(made.answers) == [{"id": "p", "event": "pong"}]


def test_an_error_of_the_connection_is_raised():
    with pytest.raises(ServerError, match="E_LIMIT_004"):
        router("a").feed(error_event(None, "E_LIMIT_004", "idle"))


def test_an_error_that_an_admin_message_waits_for_is_its_answer():
    made = router("a")
    made.asked.add("a")
    made.feed(error_event("a", "E_PROTO_003", "m"))
    assert not made.streams["a"] and made.answers[0]["code"] == "E_PROTO_003"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"event":"token","id":"a"}',
        b'{"event":"eos","id":"a","reason":"stop","usage":[1]}',
        b'{"event":"eos","id":"a","reason":"stop","usage":{"prompt_tokens":"x"}}',
        b'{"event":"error","id":"a"}',
        b'{"event":"pong","id":[]}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_a_server_that_talks_nonsense(body):
    with pytest.raises(ProtocolError, match="the server sent"):
        router("a").feed(len(body).to_bytes(4, "little") + body)


def test_a_server_that_announces_too_much():
    with pytest.raises(ProtocolError, match="announced a frame"):
        router().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


@untimed
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_raise_only_our_errors(data, framed):
    if framed:
        data = len(data).to_bytes(4, "little") + data
    try:
        router("a").feed(data)
    except (ProtocolError, ServerError):
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@untimed
@given(
    st.fixed_dictionaries(
        {"event": st.sampled_from(["token", "eos", "error", "pong"])},
        optional={
            name: json_values | st.just("a")
            for name in ("id", "text", "token_id", "reason", "usage", "timings", "code", "message")
        },
    )
)
def test_random_events_raise_only_our_errors(event):
    try:
        router("a").feed(pack(event))
    except (ProtocolError, ServerError):
        return


def test_requests_leave_out_what_is_none_and_refuse_what_is_no_json():
    message = generate_message("a", "x", None, {"seed": None, "top_k": 0, "stream": False})
    assert message == {"id": "a", "prompt": "x", "top_k": 0, "stream": False}
    assert json.loads(pack({"p": "ü"})[4:]) == {"p": "ü"}
    with pytest.raises(InvalidRequest, match="JSON"):
        pack({"temperature": float("nan")})
    with pytest.raises(InvalidRequest, match="Unicode"):
        pack({"prompt": "\udcff"})


def test_ids_do_not_repeat_between_connections():
    ids = {made.new_id() for made in (Router(), Router()) for _ in range(100)}
    assert len(ids) == 200


def test_why_nothing_answers(tmp_path):
    path = str(tmp_path / "x")
    refused = str(unreachable(path, ConnectionRefusedError(111, "Connection refused")))
    assert refused.startswith(f"no daemon at {path} (Connection refused); start one")
    assert "another user's" in str(unreachable(path, PermissionError(13, "Permission denied")))
    assert "(AF_UNIX path too long)" in str(unreachable("/x", OSError("AF_UNIX path too long")))


def test_an_end_has_all_that_was_asked_for():
    made = router("a")
    told = Beginning(lane="interactive", lane_reason="asked for", deltas=False, model="m", usage={})
    rated = [{"token_id": 1, "text": "x", "logprob": None}, {"token_id": 2, "text": "y"}]
    made.feed(begin_event("a", told) + echo_event("a", "xy", [1, 2]))
    made.feed(b"".join(prompt_logprobs_event("a", [each]) for each in rated))
    given = dict(
        stop_token=3, tokens=[4], logprobs=[{}], message={"role": "assistant"}, dropped_tokens=5,
        unread=["image"], open_parts=[{"tool": "t"}], metadata=[6], text="z",
    )  # fmt: skip
    assert set(Ending.__struct_fields__) == {*given, "reason", "stop", "usage", "timings"}
    made.feed(eos_event("a", Ending(reason="stop", usage=Usage(), timings=Timings(), **given)))
    (end,) = made.streams["a"]
    assert {name: getattr(end, name) for name in given} == given
    assert end.begin == {"lane": "interactive", "lane_reason": "asked for", "deltas": False,
                         "model": "m", "usage": {}}  # fmt: skip
    assert end.echo == {"text": "xy", "tokens": [1, 2]}
    assert end.prompt_logprobs == rated
    made.feed(eos_event("a", Ending(reason="stop", usage=Usage(), timings=Timings())))
    assert made.streams["a"][1].begin is None
