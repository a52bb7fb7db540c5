"""Every sampler against llama.cpp's own, through the binding: the same survivors, the same odds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.one_row import one_row
from tests.support.oracle import Oracle
from umaserve.sampling import breakers, history, kernels, mass, sampler, select
from umaserve.sampling.params import MU, SamplerTable
from umaserve.wire.messages import Sampling

CANDIDATE = np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")])
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
TOLERANCE = 1e-5
FLOAT32_SUM = 1e-3  # by how much llama.cpp's sum of 151,936 float32 terms may be off
PROMPTS = (
    "The quick brown fox",
    "def add(a, b):\n    return",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,\n\n",
)


@pytest.fixture(scope="module")
def oracle():
    it = Oracle(n_ctx=512)
    yield it
    it.close()


@pytest.fixture(scope="module")
def real_rows(oracle):
    """Logits of the bundled model after each prompt, copied."""
    lib, ffi = oracle.library.lib, oracle.library.ffi
    rows = []
    for prompt in PROMPTS:
        oracle.context.seq_rm(-1, -1, -1)
        tokens = oracle.model.tokenize(prompt)
        ids = ffi.new("llama_token[]", tokens)  # the batch borrows them
        batch = lib.llama_batch_get_one(ids, len(tokens))
        assert lib.llama_decode(oracle.context.pointer, batch) == 0
        row = lib.llama_get_logits_ith(oracle.context.pointer, -1)
        rows.append(np.frombuffer(ffi.buffer(row, 4 * oracle.model.n_vocab), np.float32).copy())
    return rows


def random_row(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(n + len(kind))
    if kind == "flat":
        row = rng.normal(0, 0.5, n)
    elif kind == "normal":
        row = rng.normal(0, 3, n)
    elif kind == "peaked":  # a few far above the rest
        row = rng.normal(-5, 2, n)
        row[rng.integers(0, n, 30)] += rng.uniform(5, 20, 30)
    else:  # Zipf's law, as the words of a language
        row = -1.2 * np.log1p(rng.permutation(n)) + rng.normal(0, 1e-3, n)
    return row.astype(np.float32)


KINDS = ("flat", "normal", "peaked", "zipf")
SIZES = (32_000, 151_936, 1_037)  # the last is no multiple of a block


class Chain:
    """llama.cpp's samplers in its server's order, with the settings of a request."""

    def __init__(self, oracle: Oracle, n_vocab: int, s: Sampling, final: bool = True) -> None:
        lib, ffi = oracle.library.lib, oracle.library.ffi
        self.lib, self.ffi, self.n_vocab = lib, ffi, n_vocab
        self.chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        biases = ffi.new("llama_logit_bias[]", [tuple(pair) for pair in s.logit_bias])
        samplers = [lib.llama_sampler_init_logit_bias(n_vocab, len(s.logit_bias), biases)]
        if s.mirostat:
            samplers += [
                lib.llama_sampler_init_temp(s.temperature),
                lib.llama_sampler_init_mirostat_v2(1, s.mirostat_tau, s.mirostat_eta),
            ]
        else:
            texts = [ffi.new("char[]", b.encode()) for b in s.dry_sequence_breakers]
            dry_last = 4096 if s.dry_penalty_last_n < 0 else s.dry_penalty_last_n
            samplers += [
                lib.llama_sampler_init_penalties(
                    n_vocab, 4096 if s.penalty_last_n < 0 else s.penalty_last_n,
                    s.repeat_penalty, s.frequency_penalty, s.presence_penalty,
                ),
                lib.llama_sampler_init_dry(
                    oracle.model.vocab, s.dry_multiplier, s.dry_base, s.dry_allowed_length,
                    dry_last, ffi.new("const char *[]", texts), len(texts),
                ),
                lib.llama_sampler_init_top_k(s.top_k),
                lib.llama_sampler_init_typical(s.typical_p, 0),
                lib.llama_sampler_init_top_p(s.top_p, 0),
                lib.llama_sampler_init_min_p(s.min_p, 0),
                lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 0, 1),
            ]  # fmt: skip
            if final:
                samplers += [
                    lib.llama_sampler_init_temp(s.temperature),
                    lib.llama_sampler_init_dist(1),
                ]
        for one in samplers:
            lib.llama_sampler_chain_add(self.chain, one)

    def apply(self, row: np.ndarray, tokens: list[int] | None = None) -> np.ndarray:
        """The candidates that are left, with their logits and probabilities."""
        for token in tokens or ():
            self.lib.llama_sampler_accept(self.chain, token)
        found = np.zeros(self.n_vocab, CANDIDATE)
        found["id"], found["logit"] = np.arange(self.n_vocab), row
        array = self.ffi.new("llama_token_data_array *")
        array.data = self.ffi.cast("llama_token_data *", found.ctypes.data)
        array.size, array.selected = self.n_vocab, -1
        self.lib.llama_sampler_apply(self.chain, array)
        self.selected = int(array.selected)
        data = self.ffi.buffer(array.data, array.size * CANDIDATE.itemsize)
        return np.frombuffer(data, CANDIDATE).copy()

    def close(self) -> None:
        self.lib.llama_sampler_free(self.chain)


class Ours:
    """Our chain up to the draw, over a copy of the row."""

    def __init__(self, n_vocab: int, s: Sampling, packed: np.ndarray | None = None) -> None:
        self.table = SamplerTable(1)
        self.table.set(0, s, packed)
        self.packed = np.zeros(1, np.int32) if packed is None else packed
        self.work = sampler.Scratch.allocate(n_vocab, 4096, 1)
        self.settings = s

    def adjust(self, row: np.ndarray, tokens: list[int]) -> np.ndarray:
        row, said = row.copy(), np.array(tokens, np.int32)
        history.adjust(
            row, 0, self.table.settings, said, np.zeros(0, np.int32), self.packed, self.work
        )
        return row

    def survivors(self, row: np.ndarray, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        row = self.adjust(row, tokens)
        top = np.float32(select.find_maxima(row, self.work.maxima))
        count, _ = sampler.candidates(
            row, self.table.real[0], self.table.whole[0], top, 0, self.work
        )
        if count == 0:
            ids = np.flatnonzero(row > -np.inf).astype(np.int32)
            return ids, row[ids]
        return self.work.ids[:count].copy(), self.work.values[:count].copy()

    def boundary(self, values: np.ndarray, i: int) -> float:
        """The largest number in [0, 1) that draws one of ``values[:i + 1]``: their probability."""
        low, high, top = 0.0, 1.0, np.float32(values.max())
        for _ in range(30):
            u = 0.5 * (low + high)
            at = mass.draw(values, values.size, self.settings.temperature, top, u, self.work.sums)
            low, high = (u, high) if at <= i else (low, u)
        return low


def compare(oracle, row, s: Sampling, tokens=(), packed=None, exact=False) -> None:
    chain = Chain(oracle, row.size, s)
    theirs = chain.apply(row, list(tokens))
    chain.close()
    ours = Ours(row.size, s, packed)
    ids, values = ours.survivors(row, list(tokens))
    assert len(set(ids.tolist())) == ids.size
    odds = np.zeros(row.size)
    odds[theirs["id"]] = theirs["p"]
    only_theirs = np.setdiff1d(theirs["id"][theirs["p"] > 0], ids)
    only_ours = np.setdiff1d(ids, theirs["id"])
    if only_theirs.size or only_ours.size:
        # llama.cpp adds up a hundred thousand small probabilities in float32: its sum is then off
        # by some 1e-4, and so is the edge.  Ours has to be the float64 one.
        assert not exact and theirs.size > 200
        mine = softmax64(values, s.temperature)
        assert odds[only_theirs].sum() <= FLOAT32_SUM
        assert mine[np.isin(ids, only_ours)].sum() <= FLOAT32_SUM
        missing = np.setxor1d(ids, reference(row, s))
        assert softmax64(row, s.temperature)[missing].sum() <= 1e-6
        odds[ids] = mine
    cumulative = odds[ids].cumsum()
    few = np.unique(np.linspace(0, ids.size - 1, min(ids.size, 25)).astype(int))
    for i in few.tolist():
        assert ours.boundary(values, i) == pytest.approx(cumulative[i], abs=TOLERANCE)


def softmax64(values: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    terms = np.exp((values.astype(np.float64) - values.max()) / temperature)
    return terms / terms.sum()


def reference(row: np.ndarray, s: Sampling) -> np.ndarray:
    """What top-p or typical-p alone keep of a whole row, in float64."""
    odds = softmax64(row)
    surprise = -np.log(odds)
    if s.typical_p < 1.0:
        order = np.argsort(np.abs(surprise - (odds * surprise).sum()), kind="stable")
        return order[: np.searchsorted(odds[order].cumsum(), s.typical_p, side="right") + 1]
    order = np.argsort(surprise, kind="stable")
    return order[: np.searchsorted(odds[order].cumsum(), s.top_p) + 1]


STEPS = {
    "top_k_1": Sampling(**PLAIN | {"top_k": 1}),
    "top_k_40": Sampling(**PLAIN | {"top_k": 40}),
    "top_k_900": Sampling(**PLAIN | {"top_k": 900}),
    "top_k_20000": Sampling(**PLAIN | {"top_k": 20_000}),
    "min_p": Sampling(**PLAIN | {"min_p": 0.05}),
    "min_p_small": Sampling(**PLAIN | {"min_p": 1e-4}),
    "temperature_low": Sampling(**PLAIN, temperature=0.3),
    "temperature_high": Sampling(**PLAIN, temperature=1.7),
    "xtc": Sampling(**PLAIN, xtc_probability=1.0, xtc_threshold=0.02),
    "xtc_after_top_k": Sampling(
        **PLAIN | {"top_k": 40}, xtc_probability=1.0, xtc_threshold=0.05
    ),
    "xtc_off": Sampling(**PLAIN | {"top_k": 40}, xtc_probability=1.0, xtc_threshold=0.6),
    "top_p": Sampling(**PLAIN | {"top_p": 0.9}),
    "top_p_small": Sampling(**PLAIN | {"top_p": 0.01}),
    "top_p_after_top_k": Sampling(**PLAIN | {"top_k": 60, "top_p": 0.8}),
    "top_p_after_large_top_k": Sampling(**PLAIN | {"top_k": 3000, "top_p": 0.8}),
    "typical": Sampling(**PLAIN, typical_p=0.5),
    "typical_after_top_k": Sampling(**PLAIN | {"top_k": 100}, typical_p=0.7),
    "server_default": Sampling(),
    "everything": Sampling(
        top_k=50, typical_p=0.95, top_p=0.9, min_p=0.02, xtc_probability=1.0, xtc_threshold=0.1,
        temperature=1.2, repeat_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2,
        penalty_last_n=30, dry_multiplier=0.8, logit_bias=((5, 4.0), (9, -math.inf)),
        dry_sequence_breakers=(),
    ),
}  # fmt: skip
SUMS_DECIDE = ("top_p", "top_p_small", "typical")  # over whole rows


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n_vocab", SIZES)
def test_random_rows(oracle, name, n_vocab):
    tokens = np.random.default_rng(0).integers(0, 40, 100).tolist()
    for kind in KINDS:
        row = random_row(kind, n_vocab)
        compare(oracle, row, STEPS[name], tokens, exact=name not in SUMS_DECIDE)


@pytest.mark.parametrize("name", STEPS)
def test_real_rows(oracle, real_rows, name):
    for prompt, row in zip(PROMPTS, real_rows, strict=True):
        tokens = oracle.model.tokenize(prompt) * 3
        compare(oracle, row, STEPS[name], tokens, exact=name not in SUMS_DECIDE)


@pytest.mark.parametrize("n_vocab", SIZES)
@pytest.mark.parametrize("tau", [2.0, 5.0])
def test_mirostat_over_several_tokens(oracle, n_vocab, tau):
    """llama.cpp draws; what it drew moves our ``mu`` as it moves its own."""
    s = Sampling(mirostat=2, mirostat_tau=tau, mirostat_eta=0.3, temperature=0.9)
    chain, ours = Chain(oracle, n_vocab, s), Ours(n_vocab, s)
    work, real = ours.work, ours.table.real[0]
    mu = real[MU]
    assert mu == 2 * tau
    for step in range(6):
        row = random_row(KINDS[step % 4], n_vocab)
        theirs = chain.apply(row)
        top = np.float32(select.find_maxima(row, work.maxima))
        real[MU] = mu
        count = kernels.mirostat_candidates(row, top, real, work)
        odds = np.zeros(n_vocab)
        odds[theirs["id"]] = theirs["p"]
        different = np.setxor1d(theirs["id"], work.ids[:count])
        # the edge is a probability of 2 ** -mu, told apart by float32 logarithms
        assert np.allclose(row[different], row[theirs["id"]].min(), atol=1e-4)
        cumulative = odds[work.ids[:count]].cumsum()
        drawn = int(theirs["id"][chain.selected])
        at = int(np.flatnonzero(work.ids[:count] == drawn)[0])
        u = float(cumulative[at] - 0.5 * odds[drawn])
        if odds[drawn] > 4 * TOLERANCE:
            got, moved = kernels.mirostat_draw(count, top, real, u, work)
            assert got == at
            assert moved == pytest.approx(
                mu - s.mirostat_eta * (-math.log2(odds[drawn]) - tau), abs=1e-3
            )
        mu -= s.mirostat_eta * (-math.log2(odds[drawn]) - tau)
    chain.close()


def test_mirostat_keeps_its_state_per_row():
    s = Sampling(mirostat=2, mirostat_tau=3.0, mirostat_eta=0.2)
    table = SamplerTable(2)
    table.set(0, s)
    table.set(1, s)
    work = sampler.Scratch.allocate(1000, 16, 1)
    row = random_row("normal", 1000)
    sampler.sample_row(row, 1, one_row(table, row.size, slot=1), work)
    assert table.real[0, MU] == 6.0 and table.real[1, MU] != 6.0
    table.set(1, s)
    assert table.real[1, MU] == 6.0


PENALTIES = (
    Sampling(repeat_penalty=1.3, penalty_last_n=10),
    Sampling(repeat_penalty=0.8, frequency_penalty=-0.4, penalty_last_n=-1),
    Sampling(presence_penalty=0.7, frequency_penalty=0.1),
    Sampling(repeat_penalty=1.3, penalty_last_n=0),
    Sampling(logit_bias=((3, 2.5), (3, 1.0), (7, -math.inf), (11, -30.0))),
)


@pytest.mark.parametrize("s", PENALTIES)
def test_penalties_and_biases_change_the_same_logits(oracle, s):
    tokens = np.random.default_rng(1).integers(0, 50, 200).tolist()
    for kind in KINDS:
        row = random_row(kind, 5000)
        check_logits(oracle, row, s, tokens, None)


def check_logits(oracle, row, s, tokens, packed) -> np.ndarray:
    chain = Chain(oracle, row.size, replace(s, **PLAIN), final=False)
    theirs = chain.apply(row, tokens)
    chain.close()
    expected = np.zeros(row.size, np.float32)
    expected[theirs["id"]] = theirs["logit"]
    got = Ours(row.size, s, packed).adjust(row, tokens)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    return expected


def replace(s: Sampling, **changes) -> Sampling:
    return Sampling(**{name: getattr(s, name) for name in s.__struct_fields__} | changes)


@pytest.fixture(scope="module")
def cache(oracle):
    return breakers.BreakerCache.of_model(oracle.model)


DRY = (
    Sampling(dry_multiplier=0.8),
    Sampling(dry_multiplier=0.8, dry_penalty_last_n=-1, dry_allowed_length=1),
    Sampling(dry_multiplier=2.0, dry_base=1.1, dry_allowed_length=0, dry_penalty_last_n=30),
    Sampling(dry_multiplier=0.5, dry_base=1.0, dry_penalty_last_n=-1),
    Sampling(dry_multiplier=0.5, dry_base=3.0, dry_penalty_last_n=-1, dry_allowed_length=2),
    Sampling(dry_multiplier=0.8, dry_penalty_last_n=0),
)
TEXTS = (
    "one two three four. one two three four. one two three",
    "a: b: c: a: b: c: a: b:",
    'say "yes" and "no" and "yes" and "no" and "yes',
    "# Title\n\n* one\n* two\n\n# Title\n\n* one\n* two\n\n# Title\n\n* one",
    "la la la la la la la la la la",
    "x",
)
BREAKERS = (
    (),
    ("\n", ":", '"', "*"),
    ("\n\n",),
    (" and", "three four"),
    ("e. one two", "\n* o", "la la la"),
)


@pytest.mark.parametrize("s", DRY)
@pytest.mark.parametrize("strings", BREAKERS)
def test_dry_on_texts_with_breakers(oracle, real_rows, cache, s, strings):
    s = replace(s, dry_sequence_breakers=strings)
    changed = 0
    for text in TEXTS:
        tokens = oracle.model.tokenize(text, add_special=False)
        row = real_rows[0]
        expected = check_logits(oracle, row, s, tokens, cache.get(strings))
        changed += int((expected != row).sum())
    if s.dry_penalty_last_n != 0 and not strings:
        assert changed > 0


def test_dry_on_random_histories(oracle, real_rows, cache):
    rng = np.random.default_rng(3)
    row = real_rows[0]
    newline = oracle.model.tokenize("\n", add_special=False)[-1]
    changed = 0
    for i in range(60):
        alphabet = np.append(rng.integers(0, row.size, 1 + i % 5), newline)
        tokens = rng.choice(alphabet, int(rng.integers(1, 200))).tolist()
        s = replace(DRY[i % len(DRY)], dry_sequence_breakers=("\n",) if i % 2 else ())
        packed = cache.get(s.dry_sequence_breakers)
        expected = check_logits(oracle, row, s, tokens, packed)
        changed += int((expected != row).any())
    assert changed > 20
