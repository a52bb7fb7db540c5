"""Every setting anywhere in its documented range: no weight that is no number, no banned token."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.one_row import one_row
from umaserve.protocol.tables.fields import GENERATE_FIELDS
from umaserve.sampling import history, sampler, select
from umaserve.sampling.params import MU, SamplerTable
from umaserve.wire.messages import Sampling

N_VOCAB = 300
N_CTX = 128
EOG = np.array([7, 299], np.int32)
TINY = (5e-324, 1e-300, 1e-45, 1e-40, 1.1e-38, 1.2e-38, 1e-30, 1e-7)
# fields of a request that say how a token is drawn, by their names in `Sampling`
NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "penalty_last_n", "xtc_probability", "xtc_threshold", "dry_multiplier",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat_tau", "mirostat_eta",
)  # fmt: skip


def documented(name: str) -> tuple[type, float, float]:
    """(type, lowest, highest) of a field; the lowest is left out where the range is open."""
    field = next(f for f in GENERATE_FIELDS if f.name == name)
    # a whole number may also be written as 1.0
    annotated = field.type if hasattr(field.type, "__metadata__") else get_args(field.type)[0]
    kind, meta = annotated.__origin__, annotated.__metadata__[0]
    assert isinstance(meta, msgspec.Meta)
    low = meta.ge if meta.ge is not None else math.nextafter(meta.gt, math.inf)
    return kind, low, meta.le


def anywhere(name: str) -> st.SearchStrategy:
    kind, low, high = documented(name)
    if kind is int:
        return st.sampled_from([low, high]) | st.integers(low, min(high, 200))
    ends = [x for x in (low, high, math.nextafter(high, 0), *TINY) if low <= x <= high]
    return st.sampled_from(ends) | st.floats(low, high)


everywhere = st.fixed_dictionaries(
    {name: anywhere(name) for name in NUMBERS}
    | {
        "mirostat": st.sampled_from([0, 0, 2]),
        "ignore_eos": st.booleans(),
        "logprobs": st.sampled_from([-1, 0, 20]),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "logit_bias": st.lists(
            st.tuples(
                st.integers(0, N_VOCAB - 1),
                st.sampled_from([-math.inf, -1000.0, 1000.0, 1e-320]) | st.floats(-1000, 1000),
            ),
            max_size=20,
        ).map(tuple),
    }
)
rows = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 1.0, 12.0, 1e4])).map(
    lambda x: np.random.default_rng(x[0]).normal(0, x[1], N_VOCAB).astype(np.float32)
)
histories = st.lists(st.integers(0, 5), max_size=N_CTX) | st.lists(
    st.integers(0, N_VOCAB - 1), max_size=N_CTX
)


class Bench:
    """One request's settings and what samples with them."""

    def __init__(self, **fields: Any) -> None:
        self.table = SamplerTable(1)
        self.table.set(0, Sampling(**fields))
        self.work = sampler.Scratch.allocate(N_VOCAB, N_CTX, EOG.size)

    def adjusted(self, row: np.ndarray, said: list[int]) -> np.ndarray:
        t, row = self.table, row.copy()
        history.adjust(
            row, 0, t.settings, np.array(said, np.int32), EOG, np.zeros(1, np.int32), self.work
        )
        return row

    def sample(self, row: np.ndarray, said: list[int] = (), index: int = 0) -> tuple[int, float]:
        rows = one_row(self.table, row.size, said, index, EOG)
        self.top_logprobs = rows.top_logprobs[0, -1]
        return sampler.sample_row(row.copy(), 0, rows, self.work)


def banned_by(fields: dict[str, Any]) -> np.ndarray:
    banned = np.zeros(N_VOCAB, bool)
    banned[[token for token, bias in fields["logit_bias"] if bias == -math.inf]] = True
    if fields["ignore_eos"]:
        banned[EOG] = True
    return banned


@given(everywhere, rows, histories)
@settings(max_examples=400)
def test_no_setting_makes_a_logit_that_is_no_number_or_draws_what_is_banned(fields, row, said):
    bench, banned = Bench(**fields), banned_by(fields)
    adjusted = bench.adjusted(row, said)
    assert np.isfinite(adjusted[~banned]).all()
    assert (adjusted[banned] == -np.inf).all()
    assert not bench.work.counts.any()
    for index in range(4):
        token, logprob = bench.sample(row, said, index)
        assert 0 <= token < N_VOCAB and not banned[token]
        assert math.isfinite(logprob)
        assert math.isfinite(bench.table.real[0, MU])
        asked = max(fields["logprobs"], 0)
        assert np.isfinite(bench.top_logprobs[:asked]).all()


@given(everywhere, rows, st.sets(st.integers(0, N_VOCAB - 1), min_size=1, max_size=3))
@settings(max_examples=200)
def test_what_is_not_banned_is_drawn_however_unlikely_it_is(fields, row, allowed):
    others = [token for token in range(N_VOCAB) if token not in allowed]
    fields |= {"logit_bias": tuple((token, -math.inf) for token in others), "ignore_eos": False}
    said = sorted(allowed) * 10  # what is left is what the penalties are about
    bench = Bench(**fields)
    for index in range(4):
        assert bench.sample(row, said, index)[0] in allowed


def test_all_banned_gives_a_token_of_the_vocabulary():
    everything = tuple((token, -math.inf) for token in range(N_VOCAB))
    for temperature in (0.0, 1e-40, 1.0):
        bench = Bench(logit_bias=everything, temperature=temperature)
        assert 0 <= bench.sample(np.zeros(N_VOCAB, np.float32))[0] < N_VOCAB


PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
LIMITS = {
    "temperature": [{**filters, "temperature": x, "mirostat": mirostat}
                    for filters in (PLAIN, {}) for x in TINY[:-1] for mirostat in (0, 2)],
    "top_p": [PLAIN | {"top_p": x, "temperature": 10.0} for x in TINY],
    "top_k": [PLAIN | {"top_k": 1, "temperature": 10.0}],
    "min_p": [PLAIN | {"min_p": 1.0, "temperature": 10.0}],
    "mirostat_tau": [PLAIN | {"mirostat": 2, "mirostat_tau": x, "temperature": 10.0}
                     for x in (0.0, *TINY[:-1])],
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
@given(row=rows, index=st.integers(0, 1000))
@settings(max_examples=25)
def test_the_limits_are_greedy(name, row, index):
    for fields in LIMITS[name]:
        assert Bench(**fields, seed=index).sample(row, (), index)[0] == row.argmax(), fields


@given(rows, st.integers(0, 2**32), st.floats(0, 0.5))
@example(np.zeros(N_VOCAB, np.float32), 1, 0.0)
@settings(max_examples=100)
def test_xtc_never_leaves_only_what_is_banned(row, seed, threshold):
    fields = PLAIN | {
        "xtc_probability": 1.0, "xtc_threshold": threshold, "seed": seed,
        "logit_bias": tuple((token, -math.inf) for token in range(5, N_VOCAB)),
    }  # fmt: skip
    for more in ({}, {"top_k": 20}, {"top_p": math.nextafter(1, 0)}):
        assert Bench(**fields | more).sample(row)[0] < 5


@pytest.mark.parametrize("penalty", TINY)
def test_a_tiny_repeat_penalty_favours_what_was_said_and_the_likeliest_of_it_first(penalty):
    row = np.linspace(1.0, 2.0, N_VOCAB, dtype=np.float32)
    bench = Bench(repeat_penalty=penalty, temperature=0.0)
    assert bench.sample(row, [20, 30, 10])[0] == 30


def test_the_largest_repetition_does_not_outlaw_the_only_token_that_may_come():
    fields = {"dry_multiplier": 100.0, "dry_base": 10.0, "dry_allowed_length": 0,
              "dry_sequence_breakers": (), "frequency_penalty": 10.0}  # fmt: skip
    row = np.zeros(N_VOCAB, np.float32)
    adjusted = Bench(**fields).adjusted(row, [3] * N_CTX)
    assert np.isfinite(adjusted).all()
    assert select.largest(adjusted, N_VOCAB) == 0.0 and adjusted.argmin() == 3
