"""Framing by example and by property, with an independent reference decoder."""

from __future__ import annotations

import gc
import io
import json
import struct
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fixtures.chunks import decode_in_chunks
from tests.support.fixtures.untimed import untimed
from umaserve.protocol import (
    FrameDecoder,
    ProtocolError,
    encode_frame,
)


def reference_frames(data: bytes, cap: int) -> tuple[list[bytes], bool]:
    """The framing once more, the plainest way: all bodies, and whether a header passed the cap."""
    stream, out = io.BytesIO(data), []
    while len(header := stream.read(4)) == 4:
        (size,) = struct.unpack("<I", header)
        if size > cap:
            return out, True
        body = stream.read(size)
        if len(body) < size:
            break
        out.append(body)
    return out, False


@untimed
@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.binary(max_size=6),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_any_chunking_gives_the_same_frames(bodies, tail, cuts):
    data = b"".join(struct.pack("<I", len(b)) + b for b in bodies) + tail
    assert decode_in_chunks(data, cuts, 40) == reference_frames(data, 40)


@untimed
@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=8), st.integers(0, 50))
def test_garbage_is_framed_like_the_reference(data, cuts, cap):
    assert decode_in_chunks(data, cuts, cap) == reference_frames(data, cap)


def test_one_byte_at_a_time():
    decoder = FrameDecoder()
    data = encode_frame({"a": 1}) + encode_frame({"b": "ü"})
    out = [body for i in range(len(data)) for body in decoder.feed(data[i : i + 1])]
    assert [json.loads(body) for body in out] == [{"a": 1}, {"b": "ü"}]
    assert decoder.pending == 0


def test_a_long_frame_is_refused_from_its_header_alone():
    decoder = FrameDecoder(100)
    good = encode_frame({"a": 1})
    with pytest.raises(ProtocolError, match="frame of 101 bytes; the limit is 100") as caught:
        decoder.feed(good + struct.pack("<I", 101))
    assert caught.value.frames == [good[4:]]
    with pytest.raises(ProtocolError) as again:
        decoder.feed(good)
    assert again.value.code == "E_PROTO_002" and again.value.frames == []


def test_a_frame_of_exactly_the_cap_passes():
    assert FrameDecoder(5).feed(b"\x05\0\0\0hello") == [b"hello"]


def test_a_refusal_keeps_nothing_of_what_was_fed() -> None:
    class Data(bytearray):
        pass

    decoder, kept = FrameDecoder(10), []
    gc.disable()
    try:
        for data in (Data(b"\0\0\0\1x"), Data(b"more")):
            kept.append(weakref.ref(data))
            with pytest.raises(ProtocolError) as caught:
                decoder.feed(data)
            assert caught.value.code == "E_PROTO_002" and "16777216 bytes" in caught.value.message
            del data, caught
        assert [ref() for ref in kept] == [None, None] and not decoder.pending
    finally:
        gc.enable()
