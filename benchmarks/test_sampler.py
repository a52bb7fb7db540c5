"""Group 1: one token from one row, against ``numpy.max`` and llama.cpp's sampler chain."""

from __future__ import annotations

import functools

import pytest

from benchmarks import sampler
from benchmarks.machine import save
from benchmarks.playback import CLOCK

pytestmark = pytest.mark.benchmark(timer=CLOCK)
ROUNDS = 15


@functools.cache
def rows(quick: bool) -> dict[tuple[int, str], dict]:
    vocabularies = (32000,) if quick else sampler.VOCABULARIES
    found = {
        (n, name): sampler.measure(n, name, 2 if quick else ROUNDS)
        for n in vocabularies
        for name in sampler.known()
    }
    if not quick:
        kept = [{k: v for k, v in row.items() if k != "seconds"} for row in found.values()]
        save("sampler", {"rounds": ROUNDS, "rows": kept})
    return found


@pytest.mark.parametrize("side", (sampler.OURS, sampler.NUMPY, sampler.CHAIN, sampler.CHAIN_ONLY))
@pytest.mark.parametrize("name", sampler.known())
@pytest.mark.parametrize("n_vocab", sampler.VOCABULARIES)
def test_sampler(play, quick: bool, n_vocab: int, name: str, side: str) -> None:
    row = rows(quick).get((n_vocab, name))
    if row is None:
        pytest.skip("--quick measures one vocabulary")
    if side not in row["seconds"]:
        pytest.skip(f"llama.cpp's chain has no {name}")
    play(f"sampler {n_vocab} {name}", row["seconds"][side], setting=name, n_vocab=n_vocab)
