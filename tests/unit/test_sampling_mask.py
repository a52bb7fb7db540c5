"""Masks in the sampler: every bit, with every setting, and what is left to choose from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.sampling import mask, sampler
from umaserve.sampling.params import MASK, SamplerTable
from umaserve.wire.messages import Sampling

N_VOCAB = 333  # no multiple of a word's bits, nor of a block's
EOG = np.array([7, 299], np.int32)


def words(allowed: np.ndarray) -> np.ndarray:
    """The mask, int32, of a bool for each token; bits behind the last token are set."""
    bits = np.ones(32 * mask.words_of(allowed.size), bool)
    bits[: allowed.size] = allowed
    return np.packbits(bits, bitorder="little").view(np.int32)


@given(st.data(), st.integers(1, 200))
def test_every_bit_counts(data: st.DataObject, n: int) -> None:
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    # whole words of one kind have a way of their own
    for start in data.draw(st.lists(st.integers(0, n), max_size=3)):
        allowed[start : start + 64] = data.draw(st.booleans())
    row = np.arange(n, dtype=np.float32)
    mask.keep_allowed(row, words(allowed))
    expected = np.where(allowed, np.arange(n, dtype=np.float32), -np.inf)
    assert np.array_equal(row, expected)


class Bench:
    def __init__(self) -> None:
        self.table = SamplerTable(1)
        self.scratch = sampler.Scratch.allocate(N_VOCAB, 64, EOG.size)
        self.tokens = np.arange(64, dtype=np.int32).reshape(1, 64)
        self.logprob = np.zeros((1, 64), np.float32)
        self.top_ids = np.zeros((1, 64, 20), np.int32)
        self.top_logprobs = np.zeros((1, 64, 20), np.float32)

    def sample(self, row: np.ndarray, sampling: Sampling, address: int) -> int:
        """By the entry that the ticks call; ``address`` is the column MASK."""
        self.table.set(0, sampling)
        self.table.whole[0, MASK] = address
        out, one = np.zeros(1, np.int32), np.ones(1, np.int32)
        rows = sampler.Rows(
            np.zeros(1, np.int32), np.array([row.ctypes.data]), N_VOCAB, self.table.settings,
            self.tokens, 20 * one, 5 * one, EOG, out, self.logprob, self.top_ids,
            self.top_logprobs,
        )  # fmt: skip
        sampler.sample_rows(0, 1, rows, self.scratch)
        return int(out[0])


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


some_settings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.01, 1.0, 10.0]),
        "top_k": st.sampled_from([0, 1, 40, 300]),
        "top_p": st.sampled_from([1.0, 0.95, 0.01]),
        "min_p": st.sampled_from([0.0, 0.05, 1.0]),
        "typical_p": st.sampled_from([1.0, 0.5]),
        "repeat_penalty": st.sampled_from([1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 5.0]),
        "xtc_probability": st.sampled_from([0.0, 1.0]),
        "dry_multiplier": st.sampled_from([0.0, 2.0]),
        "mirostat": st.sampled_from([0, 0, 2]),
        "logprobs": st.sampled_from([-1, 0, 20]),
        "seed": st.integers(0, 2**63 - 1),
    }
)


@given(some_settings, st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 30, N_VOCAB]))
@settings(max_examples=400)
def test_only_what_is_allowed_is_chosen(
    bench: Bench, chosen: dict[str, Any], seed: int, few: int
) -> None:
    random = np.random.default_rng(seed)
    allowed = np.zeros(N_VOCAB, bool)
    allowed[random.choice(N_VOCAB, few, replace=False)] = True
    bits = words(allowed)
    row = random.normal(0, random.uniform(0.1, 20), N_VOCAB).astype(np.float32)
    before = row.copy()
    token = bench.sample(row, Sampling(**chosen), bits.ctypes.data)
    assert token >= 0 and allowed[token]
    if chosen["logprobs"] >= 0:  # of the model's own distribution
        own = before.astype(np.float64)
        total = own.max() + np.log(np.exp(own - own.max()).sum())
        assert bench.logprob[0, 20] == pytest.approx(before[token] - total, abs=1e-3)


def test_greedy_takes_the_best_that_is_allowed(bench: Bench) -> None:
    row = np.arange(N_VOCAB, dtype=np.float32)
    allowed = np.arange(N_VOCAB) % 50 == 3
    bits = words(allowed)
    assert bench.sample(row, Sampling(temperature=0.0), bits.ctypes.data) == 303


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logprobs", [-1, 3])
def test_nothing_is_left(bench: Bench, temperature: float, logprobs: int) -> None:
    row = np.linspace(0, 1, N_VOCAB, dtype=np.float32)
    bits = words(np.zeros(N_VOCAB, bool))
    only = words(np.arange(N_VOCAB) == 7)
    base = Sampling(temperature=temperature, logprobs=logprobs)
    assert bench.sample(row.copy(), base, bits.ctypes.data) == sampler.NO_CHOICE
    banned = Sampling(temperature=temperature, logprobs=logprobs, logit_bias=((7, -np.inf),))
    assert bench.sample(row.copy(), banned, only.ctypes.data) == sampler.NO_CHOICE
    ends = Sampling(temperature=temperature, logprobs=logprobs, ignore_eos=True)
    assert bench.sample(row.copy(), ends, only.ctypes.data) == sampler.NO_CHOICE
    assert bench.sample(row.copy(), base, only.ctypes.data) == 7


def test_a_late_mask_leaves_the_row_alone(bench: Bench) -> None:
    row = np.linspace(0, 1, N_VOCAB, dtype=np.float32)
    assert bench.sample(row, Sampling(), mask.LATE) == sampler.NO_CHOICE
    assert np.array_equal(row, np.linspace(0, 1, N_VOCAB, dtype=np.float32))


def test_rows_without_numbers_stay_so(bench: Bench) -> None:
    bits = words(np.ones(N_VOCAB, bool))
    row = np.full(N_VOCAB, np.nan, np.float32)
    assert bench.sample(row, Sampling(), bits.ctypes.data) == sampler.NO_NUMBERS


def test_new_settings_take_the_constraint_away() -> None:
    table = SamplerTable(2)
    table.set(1, Sampling())
    table.bind(1, 5)
    table.whole[1, MASK] = 4096
    assert table.whole[1, :].any() and not table.whole[0, MASK]
    table.set(1, Sampling())
    assert not table.whole[1, MASK]
