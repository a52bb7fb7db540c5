"""Samplers against plain numpy, and their own promises (seeds, in-place edits, NaN)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.one_row import one_row
from umaserve.sampling import counted, kernels, mass, sampler, select
from umaserve.sampling.params import SamplerTable
from umaserve.wire.messages import Sampling

N_VOCAB = 5000


class Bench:
    """One row of settings and the scratch to sample with it."""

    def __init__(self, n_vocab: int = N_VOCAB) -> None:
        self.table = SamplerTable(1)
        self.scratch = sampler.Scratch.allocate(n_vocab, 512, 2)
        self.eog = np.array([1, 2], np.int32)

    def sample(self, row, settings, history=(), index=0):
        self.table.set(0, settings)
        rows = one_row(self.table, row.size, history, index, self.eog)
        self.top_ids, self.top_logprobs = rows.top_ids[0, -1], rows.top_logprobs[0, -1]
        return sampler.sample_row(row, 0, rows, self.scratch)

    def candidates(self, row, settings):
        self.table.set(0, settings)
        top = np.float32(select.find_maxima(row, self.scratch.maxima))
        count, _ = sampler.candidates(
            row, self.table.real[0], self.table.whole[0], top, 0, self.scratch
        )
        return set(self.scratch.ids[:count].tolist())


@pytest.fixture(scope="module")
def bench():
    return Bench()


def softmax(row):
    e = np.exp(row.astype(np.float64) - row.max())
    return e / e.sum()


rows = st.tuples(st.integers(0, 2**32 - 1), st.floats(0.01, 12.0), st.integers(1, N_VOCAB)).map(
    lambda x: np.random.default_rng(x[0]).normal(0, x[1], x[2]).astype(np.float32)
)


def argmax(row):
    maxima = sampler.Scratch.allocate(row.size, 1, 0).maxima
    return select.argmax(row, maxima, np.float32(select.find_maxima(row, maxima)))


def top_k(row, k):
    s = sampler.Scratch.allocate(row.size, 1, 0)
    top = np.float32(select.find_maxima(row, s.maxima))
    count = select.top_k(row, k, top, s)
    return s.ids[:count], s.values[:count]


@given(rows)
@settings(max_examples=80)
def test_argmax_is_numpys(row):
    assert argmax(row) == row.argmax()


@given(rows, st.integers(1, 200), st.sampled_from([0.0, 0.1, 1.0]))
@settings(max_examples=80)
def test_top_k_is_a_stable_sort(row, k, grain):
    if grain:
        row = (np.round(row / grain) * grain).astype(np.float32)  # many equal values
    ids, values = top_k(row, k)
    expected = np.argsort(-row, kind="stable")[:k]
    assert ids.tolist() == expected.tolist()
    assert (values == row[expected]).all()


@given(rows, st.integers(257, 2000), st.sampled_from([0.0, 1.0]))
@settings(max_examples=40)
def test_a_large_top_k_keeps_the_same(row, k, grain):
    if grain:
        row = (np.round(row / grain) * grain).astype(np.float32)
    ids, values = top_k(row, k)
    assert sorted(ids.tolist()) == sorted(np.argsort(-row, kind="stable")[:k].tolist())
    assert (values == row[ids]).all()


@given(rows, st.sampled_from([1, 5, 40, 200, 300, 2000]), st.integers(1, 400), st.booleans())
@settings(max_examples=80)
def test_top_k_leaves_what_is_banned(row, k, left, together):
    """As a mask does that allows little: fewer than k are left, in few blocks or in many."""
    allowed = np.zeros(row.size, bool)
    at = np.arange(left) if together else np.random.default_rng(left).permutation(row.size)
    allowed[at[:left] % row.size] = True
    row = np.where(allowed, row, np.float32(-np.inf))
    ids, _ = top_k(row, k)
    expected = np.argsort(-row, kind="stable")[: min(k, int(allowed.sum()))]
    if k > select.SORTED_K:
        ids, expected = np.sort(ids), np.sort(expected)
    assert ids.tolist() == expected.tolist()


def test_the_first_of_equal_maxima_wins():
    row = np.zeros(1000, np.float32)
    row[[300, 700]] = 5.0
    assert argmax(row) == 300


def test_nan_is_never_the_largest():
    row = np.zeros(1000, np.float32)
    row[:500] = np.nan
    row[[300, 700]] = np.nan, 5.0
    assert argmax(row) == 700
    assert top_k(row, 1)[0].tolist() == [700]


@pytest.mark.parametrize("wanted", [0, 3, 20])
@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 7, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 0, "top_p": 0.9, "min_p": 0.0, "temperature": 1.7},
        {"logit_bias": ((5, 9.0), (6, -math.inf)), "top_k": 0, "top_p": 1.0, "min_p": 0.01},
        {"temperature": 0.0},
    ],
)
def test_logprobs_of_what_the_settings_leave(bench, settings, wanted):
    row = np.random.default_rng(3).normal(0, 3, N_VOCAB).astype(np.float32)
    asked = Sampling(logprobs=wanted, post_sampling_probs=True, **settings)
    adjusted = row.copy()
    for token, bias in asked.logit_bias:
        adjusted[token] += bias
    if asked.temperature == 0.0:
        kept = {int(adjusted.argmax())}
    elif asked.top_k == 0 and asked.top_p == 1.0 and asked.min_p == 0.0:
        kept = set(range(N_VOCAB))
    else:
        kept = bench.candidates(adjusted.copy(), asked)
    ids = np.array(sorted(kept, key=lambda i: (-adjusted[i], i)))
    expected = np.log(softmax(adjusted[ids] / (asked.temperature or 1.0)))
    token, logprob = bench.sample(row.copy(), asked)
    assert logprob == pytest.approx(expected[ids.tolist().index(token)], abs=1e-4)
    count = min(wanted, ids.size)
    assert bench.top_ids[:count].tolist() == ids[:count].tolist()
    assert (bench.top_ids[count:] == -1).all()
    np.testing.assert_allclose(bench.top_logprobs[:count], expected[:count], atol=1e-4)


@pytest.mark.parametrize("top_k", [0, 5, 40])
@pytest.mark.parametrize("off", [{"top_p": 0.0}, {"typical_p": 0.0, "top_p": 1.0}])
def test_of_no_mass_a_single_token_is_kept(top_k, off):
    row = np.sin(np.arange(1000, dtype=np.float32)) * 3
    row[[70, 400]] = 9.0
    kept = Bench().candidates(row, Sampling(top_k=top_k, min_p=0.0, **off))
    assert len(kept) == 1
    if off["top_p"] == 0.0:
        assert kept == {70}


@given(rows, st.floats(0.05, 0.999))
@settings(max_examples=80)
def test_top_p_over_the_whole_row_is_the_smallest_nucleus(row, p):
    bench = Bench()
    kept = bench.candidates(row, Sampling(top_k=0, top_p=p, min_p=0.0))
    probabilities = softmax(row)
    order = np.argsort(-row, kind="stable")
    mass = probabilities[order].cumsum()
    expected = int(np.searchsorted(mass, p)) + 1
    # rounding may move the cut where the mass meets p to the last bits
    near = np.abs(mass - p) < 1e-6
    if not near.any():
        assert kept == set(order[:expected].tolist())
    assert abs(len(kept) - min(expected, row.size)) <= 1 + near.sum()


@given(rows, st.floats(0.01, 0.9))
@settings(max_examples=60)
def test_min_p_keeps_what_is_likely_enough(row, p):
    bench = Bench()
    kept = bench.candidates(row, Sampling(top_k=0, top_p=1.0, min_p=p))
    expected = set(np.flatnonzero(row >= np.float32(row.max() + np.log(p))).tolist())
    assert kept == expected and int(row.argmax()) in kept


@pytest.mark.parametrize("n", [50, 5000])
def test_equal_logits_are_taken_in_id_order(n):
    bench, row = Bench(n), np.full(n, 2.5, np.float32)
    assert bench.candidates(row, Sampling(top_k=40, top_p=1.0, min_p=0.0)) == set(range(40))
    assert bench.candidates(row, Sampling(top_k=0, top_p=0.5, min_p=0.0)) == set(range(n // 2))
    kept = bench.candidates(row, Sampling(top_k=0, top_p=1.0, min_p=0.0, typical_p=0.5))
    assert kept == set(range(n // 2 + 1))  # until the mass is more than p


def test_a_row_with_infinity_gives_the_first_of_it(bench):
    row = np.random.default_rng(7).normal(0, 3, N_VOCAB).astype(np.float32)
    row[[900, 901]] = np.inf
    for settings_ in (Sampling(), Sampling(top_k=0), Sampling(mirostat=2)):
        assert bench.sample(row.copy(), settings_)[0] == 900


@pytest.mark.parametrize("top_k", [0, 40])
def test_nan_is_never_drawn(bench, top_k):
    row = np.random.default_rng(8).normal(0, 1, N_VOCAB).astype(np.float32)
    row[::2] = np.nan
    for index in range(50):
        for top_p in (1.0, 0.9):
            s = Sampling(top_k=top_k, top_p=top_p, min_p=0.0, temperature=2.0, seed=3)
            assert bench.sample(row.copy(), s, index=index)[0] % 2 == 1


def test_xtc_happens_as_often_as_asked(bench):
    row = np.full(N_VOCAB, -10.0, np.float32)
    row[[3, 4]] = 5.0, 4.9
    s = Sampling(xtc_probability=0.3, xtc_threshold=0.2, seed=1)
    drawn = [bench.sample(row.copy(), s, index=i)[0] for i in range(2000)]
    odds = softmax(row[[3, 4]] / 0.8)[0]
    assert drawn.count(3) / 2000 == pytest.approx(0.7 * odds, abs=0.05)


def test_greedy_ignores_every_other_setting(bench):
    row = np.random.default_rng(1).normal(0, 3, N_VOCAB).astype(np.float32)
    token, _ = bench.sample(row.copy(), Sampling(temperature=0.0, top_k=1000, top_p=0.5))
    assert token == row.argmax()


def test_the_same_seed_and_index_draw_the_same_token(bench):
    row = np.random.default_rng(2).normal(0, 1, N_VOCAB).astype(np.float32)
    s = Sampling(seed=42, top_k=0, top_p=1.0, min_p=0.0)
    first = [bench.sample(row.copy(), s, index=i)[0] for i in range(50)]
    again = [bench.sample(row.copy(), s, index=i)[0] for i in range(50)]
    other = [bench.sample(row.copy(), Sampling(seed=43, top_k=0, top_p=1.0, min_p=0.0), index=i)[0]
             for i in range(50)]  # fmt: skip
    assert first == again
    assert first != other
    assert len(set(first)) > 30


def test_seeds_of_all_sizes_are_taken(bench):
    row = np.zeros(N_VOCAB, np.float32)
    for seed in (0, -1, 2**63, 2**64 - 1):
        token, _ = bench.sample(row.copy(), Sampling(seed=seed))
        assert 0 <= token < N_VOCAB


def test_drawn_tokens_follow_the_probabilities():
    """Chi-square over 20,000 draws with 9 degrees of freedom; 27.9 is the 0.1 % point."""
    bench = Bench(10)
    row = np.linspace(-1, 1, 10).astype(np.float32)
    s = Sampling(seed=5, temperature=0.7, top_k=0, top_p=1.0, min_p=0.0)
    n = 20_000
    seen = np.bincount([bench.sample(row.copy(), s, index=i)[0] for i in range(n)], minlength=10)
    expected = softmax(row / 0.7) * n
    assert ((seen - expected) ** 2 / expected).sum() < 27.9


@pytest.mark.parametrize("n", [40, 64, 1000])
@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, 1 - 2**-53])
def test_a_banned_token_is_never_drawn(n, u):
    values = np.full(n, -np.inf, np.float32)
    values[[n // 2, n // 2 + 1]] = 1.0, -50.0
    sums = np.zeros(n // 64 + 1, np.float32)
    assert mass.draw(values, n, 1.0, np.float32(1.0), u, sums) in (n // 2, n // 2 + 1)


@given(rows, st.floats(0.1, 5.0))
@settings(max_examples=40)
def test_exponential_sums_are_numpys(row, inverse):
    top = row.max()
    away = row.astype(np.float64) - top
    assert mass.exp_sum(row, row.size, top, inverse) == pytest.approx(
        np.exp(away * inverse).sum(), rel=2e-6
    )
    assert mass.exp_moment(row, row.size, top) == pytest.approx(
        (np.exp(away) * away).sum(), rel=2e-6, abs=1e-6
    )


def test_uniform_numbers_fill_the_interval_evenly():
    numbers = np.array([kernels.uniform(123, i) for i in range(20_000)])
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # 0.1 % point of 19 degrees of freedom


def test_logit_bias_can_force_and_ban(bench):
    row = np.random.default_rng(3).normal(0, 1, N_VOCAB).astype(np.float32)
    best = int(row.argmax())
    token, _ = bench.sample(row.copy(), Sampling(temperature=0.0, logit_bias=((77, 100.0),)))
    assert token == 77
    token, _ = bench.sample(row.copy(), Sampling(temperature=0.0, logit_bias=((best, -np.inf),)))
    assert token == np.argsort(-row)[1]


def test_ignore_eos_never_ends(bench):
    row = np.zeros(N_VOCAB, np.float32)
    row[1] = 50.0
    token, _ = bench.sample(row.copy(), Sampling(temperature=0.0))
    assert token == 1
    token, _ = bench.sample(row.copy(), Sampling(temperature=0.0, ignore_eos=True))
    assert token not in (1, 2)


@given(st.floats(0.5, 2.0), st.floats(-1, 1), st.floats(-1, 1), st.sampled_from([-1, 0, 3, 64]))
@settings(max_examples=50)
def test_penalties_are_llama_cpps_formula(repeat, presence, frequency, last_n):
    bench = Bench()
    row = np.random.default_rng(4).normal(0, 2, N_VOCAB).astype(np.float32)
    history = [5, 6, 5, 7, 5, 8]
    expected = row.copy()
    counted = history if last_n < 0 else history[len(history) - last_n :] if last_n else []
    for token in set(counted):
        value = expected[token]
        value = value * repeat if value <= 0 else value / repeat
        expected[token] = value - counted.count(token) * frequency - presence
    changed = row.copy()
    bench.sample(
        changed,
        Sampling(
            temperature=0.0,
            repeat_penalty=repeat,
            presence_penalty=presence,
            frequency_penalty=frequency,
            penalty_last_n=last_n,
        ),
        history,
    )
    np.testing.assert_allclose(changed, expected, rtol=1e-5, atol=1e-6)
    assert not bench.scratch.counts.any()


def test_logprobs_are_of_the_models_own_distribution(bench):
    row = np.random.default_rng(6).normal(0, 3, N_VOCAB).astype(np.float32)
    expected = np.log(softmax(row))
    best = int(row.argmax())
    token, logprob = bench.sample(
        row.copy(),
        Sampling(temperature=0.0, logprobs=5, repeat_penalty=1.5, logit_bias=((9, 3.0),)),
        history=[9, best],
    )
    assert logprob == pytest.approx(expected[token], abs=1e-4)
    order = np.argsort(-row)[:5]
    assert bench.top_ids[:5].tolist() == order.tolist()
    assert bench.top_ids[5] == -1
    np.testing.assert_allclose(bench.top_logprobs[:5], expected[order], atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("top_k", [0, 40])
def test_a_row_of_nans_still_gives_a_token(bench, temperature, top_k):
    row = np.full(N_VOCAB, np.nan, np.float32)
    token, _ = bench.sample(row, Sampling(temperature=temperature, top_k=top_k))
    assert 0 <= token < N_VOCAB


def test_a_row_is_read_at_its_address():
    row = np.arange(100, dtype=np.float32)
    table = SamplerTable(1)
    table.set(0, Sampling(temperature=0.0))
    scratch = sampler.Scratch.allocate(100, 16, 1)
    out = np.zeros(1, np.int32)
    tokens = np.zeros((1, 16), np.int32)
    ints = np.array([3], np.int32)
    rows = sampler.Rows(
        np.zeros(1, np.int32), np.array([row.ctypes.data], np.int64), 100, table.settings,
        tokens, ints, ints, np.array([1], np.int32), out,
        np.zeros((1, 16), np.float32), np.zeros((1, 16, 20), np.int32),
        np.zeros((1, 16, 20), np.float32),
    )  # fmt: skip
    sampler.sample_rows(0, 1, rows, scratch)
    assert out[0] == 99


def counts_after(settings, n_vocab=4000):
    """(rows in place, bytes copied) after one row of ``n_vocab`` logits."""
    row = np.random.default_rng(5).normal(0, 2, n_vocab).astype(np.float32)
    table = SamplerTable(1)
    table.set(0, settings)
    scratch = sampler.Scratch.allocate(n_vocab, 512, 1)
    tokens = np.arange(512, dtype=np.int32)[None] % 400
    ints = np.array([500], np.int32)
    rows = sampler.Rows(
        np.zeros(1, np.int32), np.array([row.ctypes.data], np.int64), n_vocab, table.settings,
        tokens, ints, np.array([10], np.int32), np.array([1], np.int32),
        np.zeros(1, np.int32), np.zeros((1, 512), np.float32),
        np.zeros((1, 512, 20), np.int32), np.zeros((1, 512, 20), np.float32),
    )  # fmt: skip
    sampler.sample_rows(0, 1, rows, scratch)
    assert scratch.counted[counted.TAKEN] == 0
    return int(scratch.counted[counted.ROWS_IN_PLACE]), int(scratch.counted[counted.COPIED_BYTES])


@pytest.mark.parametrize(
    "settings",
    [
        Sampling(temperature=0.0),
        Sampling(),
        Sampling(top_k=0, top_p=1.0, min_p=0.0),
        Sampling(logprobs=20, repeat_penalty=1.1),
        Sampling(mirostat=2, mirostat_tau=2.0),
    ],
)
def test_rows_of_which_few_logits_are_taken_are_sampled_in_place(settings):
    assert counts_after(settings) == (1, 0)


@pytest.mark.parametrize(
    ("settings", "at_least"),
    [
        # a nucleus and a typical set that are most of the vocabulary
        (Sampling(top_k=0, top_p=0.999, min_p=0.0), 1000),
        (Sampling(top_k=0, top_p=1.0, min_p=0.0, typical_p=0.95), 1000),
        (Sampling(top_k=0, top_p=1.0, min_p=1e-20), 3999),
        (Sampling(top_k=1000), 1000),
        # the logits before a penalty on 400 different tokens
        (Sampling(temperature=0.0, presence_penalty=0.1, penalty_last_n=-1), 400),
    ],
)
def test_logits_taken_in_numbers_count_as_copied(settings, at_least):
    in_place, copied = counts_after(settings)
    assert in_place == 0
    assert 4 * at_least <= copied <= 3 * 4 * 4000 and copied % 4 == 0


def test_a_row_read_elsewhere_counts_as_copied():
    row = np.zeros(1000, np.float32)
    counts = counted.counters()
    counted.count_row(row, row.ctypes.data, counts)
    assert counts[:2].tolist() == [1, 0]
    counted.count_row(row.copy(), row.ctypes.data, counts)  # what nothing in the engine does
    assert counts[:2].tolist() == [1, 4000]
