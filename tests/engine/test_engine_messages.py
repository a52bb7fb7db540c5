"""Control messages: any chunking of the byte stream gives the same messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.wire import messages as m

TO_ENGINE = [
    m.Start("model.gguf", 32, 4096, 8, use_mmap=False, type_v="q8_0"),
    m.Submit(1, 0, prompt="héllo \x00 \U0001f600", max_tokens=5, strict_fit=True),
    m.Submit(2, 1, tokens=[1, 2, 3], n_prompt=2, isolate=True),
    m.Submit(
        3,
        2,
        prompt="x",
        sampling=m.Sampling(
            temperature=0.0, logit_bias=((5, float("-inf")), (6, 1.5)), seed=2**64 - 1, logprobs=0
        ),
    ),
    m.Cancel(1),
    m.SetLane(2, m.LANE_BACKGROUND),
    m.Release(3, 2),
    m.Tokenize(9, "text"),
    m.Shutdown(),
]


@given(st.lists(st.sampled_from(TO_ENGINE), max_size=12), st.data())
def test_messages_survive_any_chunking(messages, data):
    stream = b"".join(m.encode(message) for message in messages)
    channel = m.Channel("engine")
    out = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        out += channel.feed(stream[:size])
        stream = stream[size:]
    assert out == messages


def test_the_two_directions_do_not_mix():
    channel = m.Channel("front")
    with pytest.raises(Exception, match="Invalid value"):
        channel.feed(m.encode(m.Cancel(1)))
