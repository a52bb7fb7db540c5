"""How the tokens of a prompt are divided among the chunks between a processor's ticks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.engine.prefill.chunk_pace import HARDLY_MORE, counted, even_share
from umaserve.policy.cost.model import CHUNK_SIZES, TILED
from umaserve.policy.processor.slices import SLICED_CHUNK

MOST = [n for n in CHUNK_SIZES.tolist() if n <= SLICED_CHUNK]


def shares(left: int, most: int, strictly: bool = False) -> list[int]:
    out = []
    while left:
        out.append(even_share(left, min(most, left), strictly))
        assert 0 < out[-1] <= left
        left -= out[-1]
    return out


@given(st.integers(1, 5000), st.sampled_from(MOST))
def test_chunks_are_about_equal_and_have_the_fast_kernel_if_they_can(left, most):
    sizes = shares(left, most)
    assert sum(sizes) == left and max(sizes) <= SLICED_CHUNK
    assert max(sizes) - min(sizes) <= len(sizes)
    if most < TILED:
        assert max(sizes) <= most
    elif left >= TILED:
        assert min(sizes) >= TILED


@pytest.mark.parametrize(
    "left, most, sizes",
    [(690, 128, [115] * 6), (690, 64, [69] * 10), (97, 96, [97]), (57, 64, [57]),
     (40, 16, [14, 13, 13])],
)  # fmt: skip
def test_some_prompts(left, most, sizes):
    assert shares(left, most) == sizes


@given(st.integers(1, 5000), st.sampled_from(MOST))
def test_none_is_larger_than_asked_for_where_one_was_too_long(left, most):
    sizes = shares(left, most, strictly=True)
    assert sum(sizes) == left and max(sizes) <= most
    assert max(sizes) - min(sizes) <= len(sizes)


@given(st.integers(1, 5000), st.sampled_from(MOST))
def test_a_chunk_counts_as_what_was_asked_for_if_it_has_a_few_more(left, most):
    size = even_share(left, most)
    assert counted(size, most) == (most if most < size <= HARDLY_MORE * most else size)
    assert counted(size, most) <= size
