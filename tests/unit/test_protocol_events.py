"""What the server says, read back with the standard library."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fixtures.untimed import untimed
from umaserve.protocol import (
    Beginning,
    Ending,
    FrameDecoder,
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
)


def unframe(data: bytes) -> dict:
    (body,) = FrameDecoder().feed(data)
    return json.loads(body)


@untimed
@given(st.text(min_size=1), st.text(), st.integers(0, 2**31 - 1))
def test_token_events_say_what_json_would(id, text, token):
    assert unframe(TokenEncoder(id)(text, token)) == {
        "id": id,
        "event": "token",
        "text": text,
        "token_id": token,
    }


def test_token_events_with_logprobs():
    top = [TopLogprob(5, "\ufffd", b"\xf0", -0.25), TopLogprob(6, '"', b'"', -math.inf)]
    event = unframe(TokenEncoder("a")("x", 5, Rated("\ufffd", b"\xf0", -0.25, top)))
    assert (event["text"], event["token"], event["bytes"]) == ("x", "\ufffd", [0xF0])
    assert event["logprob"] == -0.25
    assert event["top_logprobs"] == [
        {"token_id": 5, "text": "\ufffd", "bytes": [0xF0], "logprob": -0.25},
        {"token_id": 6, "text": '"', "bytes": [0x22], "logprob": None},
    ]
    assert unframe(TokenEncoder("a")("x", 5, Rated("x", b"x", -1.0, [])))["top_logprobs"] == []


def ended(reason: str, usage: Usage, **fields: Any) -> dict:
    fields = {"timings": Timings(), **fields}
    return unframe(eos_event("a", Ending(reason=reason, usage=usage, **fields)))


def test_eos_events():
    metadata = msgspec.Raw(b'{"k":1}')
    times = Timings(0.1, 41.0, 301.2)
    event = ended("stop", Usage(9, 0, 20), timings=times, text="hi", metadata=metadata)
    assert event == {
        "id": "a",
        "event": "eos",
        "reason": "stop",
        "text": "hi",
        "usage": {"prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 20},
        "timings": {
            "queue_ms": 0.1,
            "ttft_ms": 41.0,
            "total_ms": 301.2,
            "tbt_p50_ms": None,
            "tbt_p95_ms": None,
        },
        "metadata": {"k": 1},
    }
    assert "text" not in ended("length", Usage())
    event = ended("stop", Usage(9, 0, 20, 12, 0))
    assert event["usage"] == {
        "prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 20,
        "drafted_tokens": 12, "accepted_tokens": 0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="reason"):
        ended("bored", Usage())


def test_the_order_of_all_fields_of_an_end():
    """Clients that show the bytes as they come, see the figures last."""
    given = dict(
        stop="x", text="t", tokens=[0], logprobs=[], message={}, dropped_tokens=1, unread=("i",),
        open_parts=(), metadata=0,
    )  # fmt: skip
    order = "id event reason stop text tokens logprobs message dropped_tokens unread open_parts"
    names = list(ended("stop", Usage(), **given))
    assert names == [*order.split(), "usage", "timings", "metadata"]
    assert ended("stop", Usage(), stop_token=0)["stop_token"] == 0


def test_beginnings():
    told = dict(lane="background", lane_reason="asked for", deltas=False, model="m", usage={})
    begin = unframe(begin_event("ü", Beginning(**told)))
    assert begin == {"id": "ü", "event": "begin", **told}
    assert list(begin) == ["id", "event", *told]
    assert list(unframe(begin_event("a", Beginning(**told, unread=["i"]))))[-1] == "unread"


def test_echo_events():
    assert unframe(echo_event("a", "é", [3, 0])) == {
        "id": "a", "event": "echo", "text": "é", "tokens": [3, 0],
    }  # fmt: skip


def test_error_and_admin_events():
    assert unframe(error_event(None, "E_PROTO_001", "m")) == {
        "event": "error",
        "code": "E_PROTO_001",
        "message": "m",
    }
    assert unframe(error_event("a", "E_LIMIT_002", "m"))["id"] == "a"
    assert unframe(admin_event("pong")) == {"event": "pong"}
    assert unframe(admin_event("pong", "p", extra=1)) == {"id": "p", "event": "pong", "extra": 1}
