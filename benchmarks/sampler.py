"""One token from one row of logits: our samplers against ``numpy.max`` and llama.cpp's chain.

``python -m benchmarks.sampler``; every side works on the same row, in turns.  Ours is timed inside
compiled code, as the engine calls it.  llama.cpp's chain is the same settings through
``llama_sampler_apply``; it works on an array of (id, logit, p) that has to be built from the row
for every token, as its ``common_sampler`` does, so its cost is given with and without that.  With a
mask, ours applies it within the time, and llama.cpp's row is masked before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from umaserve.jit.cache import use_jit_cache

if "numba" not in sys.modules:  # the tests have called it before they imported numba
    use_jit_cache()

import numpy as np  # noqa: E402
from numba import njit  # noqa: E402

from benchmarks.machine import BACKEND, ratio, save, spread  # noqa: E402
from benchmarks.turns import say, take_turns  # noqa: E402
from umaserve import llama  # noqa: E402
from umaserve.sampling.mask import WORD, keep_allowed, words_of  # noqa: E402
from umaserve.sampling.params import MASK, SamplerTable  # noqa: E402
from umaserve.sampling.sampler import Rows, Scratch, sample_row  # noqa: E402
from umaserve.wire.messages import Sampling  # noqa: E402

VOCABULARIES = (32000, 128256, 151936)
OURS, NUMPY, CHAIN, CHAIN_ONLY = "ours", "numpy.max", "llama.cpp", "llama.cpp, array given"
HISTORY = 64
_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default chain": {},
    "top-k 40, top-p, temperature": {"top_k": 40, "top_p": 0.95, "min_p": 0.0},
    "min-p": {**_OFF, "min_p": 0.05},
    "top-p": {**_OFF, "top_p": 0.95},
    "temperature": _OFF,
    "typical-p": {**_OFF, "typical_p": 0.9},
    "penalties": {"repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1},
    "logprobs 5": {"logprobs": 5},
    "XTC": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "DRY": {"dry_multiplier": 0.8},
    "mirostat v2": {"mirostat": 2},
    "3 tokens allowed": {},
    "half of the tokens allowed": {},
}
"""By name; those whose fields ``Sampling`` does not have are left out."""
ALLOWED = {"3 tokens allowed": 0.0, "half of the tokens allowed": 0.5}
"""By a mask: the three likeliest tokens, and this share of the others."""


def known() -> list[str]:
    """Names of the settings that this version can sample with."""
    have = set(Sampling.__struct_fields__)
    return [name for name, fields in SETTINGS.items() if set(fields) <= have]


def logits(n_vocab: int) -> np.ndarray:
    """A row as models make them: a wide bulk and a few tokens far above it."""
    rng = np.random.default_rng(n_vocab)
    row = rng.normal(0.0, 2.0, n_vocab).astype(np.float32)
    likely = rng.choice(n_vocab, 50, replace=False)
    row[likely] += np.linspace(12.0, 5.0, 50, dtype=np.float32)
    return row


def mask_of(row: np.ndarray, share: float) -> np.ndarray:
    """A mask, int32, that allows the three likeliest tokens and a ``share`` of the others."""
    bits = np.zeros(WORD * words_of(row.size), bool)
    bits[: row.size] = np.random.default_rng(2).random(row.size) < share
    bits[np.argsort(row)[-3:]] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


@njit(nogil=True, cache=True)
def _repeat(n, row, pristine, rows, work):
    """``n`` tokens from one row, whose changed entries are put back after each."""
    total = 0
    for i in range(n):
        rows.n_prompt[0] = rows.n_tokens[0] - i
        token, _ = sample_row(row, 0, rows, work)
        total += token
        for j in range(rows.n_tokens[0]):
            at = rows.tokens[0, j]
            row[at] = pristine[at]
    return total


@njit(nogil=True, cache=True)
def _fill(row, ids, values):
    """The (id, logit, p) array that llama.cpp builds for every token; columns of 12-byte rows."""
    for i in range(row.shape[0]):
        ids[i, 0] = i
        values[i, 1] = row[i]
        values[i, 2] = 0.0


class Row(NamedTuple):
    """A row, where it came from, the tokens before it, and its mask, which it has been through."""

    logits: np.ndarray
    pristine: np.ndarray
    history: np.ndarray
    mask: np.ndarray | None

    @classmethod
    def of(cls, n_vocab: int, allowed: float | None = None) -> Row:
        row = logits(n_vocab)
        mask = None if allowed is None else mask_of(row, allowed)
        if mask is not None:
            keep_allowed(row, mask)
        history = np.random.default_rng(1).choice(n_vocab, HISTORY, replace=False)
        return cls(row.copy(), row, history.astype(np.int32), mask)


def our_side(row: Row, sampling: Sampling) -> Callable[[int], float]:
    """A function that samples n tokens and returns the seconds a token took."""
    table = SamplerTable(1)
    table.set(0, sampling)
    if row.mask is not None:  # to mask the row once more takes as long as the first time
        table.whole[0, MASK] = row.mask.ctypes.data
    eog = np.array([2], np.int32)
    work = Scratch.allocate(row.logits.size, 4096, eog.size)
    room, one = HISTORY + 1, np.zeros(1, np.int32)
    rows = Rows(
        one, np.zeros(1, np.int64), row.logits.size, table.settings, np.zeros((1, room), np.int32),
        one + HISTORY, one.copy(), eog, one.copy(), np.zeros((1, room), np.float32),
        np.zeros((1, room, 20), np.int32), np.zeros((1, room, 20), np.float32),
    )  # fmt: skip
    rows.tokens[0, :HISTORY] = row.history

    def run(n: int) -> float:
        began = time.perf_counter()
        # ``table`` owns what the settings point to
        _repeat(n, row.logits, row.pristine, rows._replace(settings=table.settings), work)
        return (time.perf_counter() - began) / n

    return run


class Chain:
    """llama.cpp's sampler chain for the same settings."""

    def __init__(self, library: Any, sampling: Sampling, history: np.ndarray, n_vocab: int) -> None:
        self.ffi, self.lib = library.ffi, library.lib
        lib = self.lib
        self.chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for sampler in self._samplers(sampling, n_vocab):
            lib.llama_sampler_chain_add(self.chain, sampler)
        for token in history.tolist():
            lib.llama_sampler_accept(self.chain, token)

    def _samplers(self, s: Sampling, n_vocab: int) -> list[Any]:
        lib = self.lib
        if s.temperature <= 0.0:
            return [lib.llama_sampler_init_greedy()]
        out = []
        if s.repeat_penalty != 1.0 or s.presence_penalty or s.frequency_penalty:
            out.append(
                lib.llama_sampler_init_penalties(
                    n_vocab,
                    s.penalty_last_n,
                    s.repeat_penalty,
                    s.frequency_penalty,
                    s.presence_penalty,
                )  # fmt: skip
            )
        if getattr(s, "mirostat", 0) == 2:
            out += [
                lib.llama_sampler_init_temp(s.temperature),
                lib.llama_sampler_init_mirostat_v2(1, s.mirostat_tau, s.mirostat_eta),  # type: ignore[attr-defined]
            ]
            return out
        if s.top_k > 0:
            out.append(lib.llama_sampler_init_top_k(s.top_k))
        if s.typical_p < 1.0:
            out.append(lib.llama_sampler_init_typical(s.typical_p, 0))
        if s.top_p < 1.0:
            out.append(lib.llama_sampler_init_top_p(s.top_p, 0))
        if s.min_p > 0.0:
            out.append(lib.llama_sampler_init_min_p(s.min_p, 0))
        if getattr(s, "xtc_probability", 0.0) > 0.0:
            out.append(
                lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 0, 1)  # type: ignore[attr-defined]
            )
        out.append(lib.llama_sampler_init_temp(s.temperature))
        out.append(lib.llama_sampler_init_dist(1))
        return out

    def side(self, row: Row, *, build: bool) -> Callable[[int], float]:
        """Like `our_side`; with ``build``, building the candidate array is timed too."""
        ffi, lib, chain = self.ffi, self.lib, self.chain
        n_vocab = row.logits.size
        memory = np.zeros((n_vocab, 3), np.float32)  # llama_token_data[n_vocab]
        ids = memory.view(np.int32)
        array = ffi.new("llama_token_data_array *")
        data = ffi.cast("llama_token_data *", ffi.from_buffer(memory))

        def run(n: int) -> float:
            total = 0.0
            for _ in range(n):
                began = time.perf_counter()
                _fill(row.pristine, ids, memory)
                if not build:
                    began = time.perf_counter()
                array.data, array.size, array.selected, array.sorted = data, n_vocab, -1, False
                lib.llama_sampler_apply(chain, array)
                total += time.perf_counter() - began
                if array.selected < 0:
                    raise RuntimeError("llama.cpp's chain selected nothing")
            return total / n

        return run


def _numpy_side(row: Row) -> Callable[[int], float]:
    def run(n: int) -> float:
        began = time.perf_counter()
        for _ in range(n):
            row.pristine.max()
        return (time.perf_counter() - began) / n

    return run


def measure(n_vocab: int, name: str, rounds: int = 15, turn_s: float = 0.004) -> dict[str, Any]:
    """One setting at one vocabulary; seconds a token by side, turn by turn."""
    row = Row.of(n_vocab, ALLOWED.get(name))
    sampling = Sampling(**SETTINGS[name])
    runs = {OURS: our_side(row, sampling), NUMPY: _numpy_side(row)}
    # log-probabilities are no part of llama.cpp's chain, and its DRY needs a model's vocabulary
    if name not in ("logprobs 5", "DRY"):
        chain = Chain(llama.load(BACKEND), sampling, row.history, n_vocab)
        runs[CHAIN] = chain.side(row, build=True)
        runs[CHAIN_ONLY] = chain.side(row, build=False)
    sides = {}
    for side, run in runs.items():
        run(2)
        n = max(1, min(int(turn_s / run(2)), 500))
        sides[side] = lambda run=run, n=n: run(n)
    times = take_turns(sides, rounds)
    out: dict[str, Any] = {
        "n_vocab": n_vocab,
        "setting": name,
        "fields": SETTINGS[name],
        "us": {side: spread([1e6 * s for s in values]) for side, values in times.items()},
        "ours_over_numpy": ratio(times[OURS], times[NUMPY]),
        "seconds": times,
    }
    for side in (CHAIN, CHAIN_ONLY):
        if side in times:
            out[f"{side} over ours"] = ratio(times[side], times[OURS])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vocabularies", default=",".join(map(str, VOCABULARIES)))
    options = parser.parse_args()
    rows = []
    for n_vocab in map(int, options.vocabularies.split(",")):
        for name in known():
            row = measure(n_vocab, name, options.rounds)
            row.pop("seconds")
            rows.append(row)
            chain = row.get(f"{CHAIN} over ours")
            say(
                f"{n_vocab} {name}: {row['us'][OURS]['median']:.1f} us, "
                f"{row['ours_over_numpy']['median']:.1f} x numpy.max"
                + (f", llama.cpp {chain['median']:.1f} x ours" if chain else "")
            )
    print("written to", save("sampler", {"rounds": options.rounds, "rows": rows}).name)


if __name__ == "__main__":
    main()
