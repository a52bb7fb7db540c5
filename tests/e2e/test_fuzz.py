"""Hostile bytes at both doors: front and gateway live, and do not grow."""

from __future__ import annotations

import os

import pytest

from benchmarks import fuzz
from benchmarks.fuzz_inputs import HTTP, SOCKET, made

SECONDS = float(os.environ.get("UMA_FUZZ_SECONDS", "120"))
FIRST = int(os.environ.get("UMA_FUZZ_FIRST", "1"))  # seed
GROWS_MIB = 24.0  # the allocators' own, and responses that are kept


def test_a_seed_makes_the_same_input() -> None:
    inputs = [made(seed) for seed in range(200)]
    assert inputs == [made(seed) for seed in range(200)]
    assert {each.door for each in inputs} == {SOCKET, HTTP}
    assert len({b"".join(each.parts) for each in inputs}) > 150


@pytest.mark.slow
def test_hostile_inputs_end_no_process_and_take_no_memory() -> None:
    words = ["--seconds", f"{SECONDS:g}", "--first", f"{FIRST}", "--alone", "5"]
    result = fuzz.measure(fuzz.parser().parse_args(words))
    told = {name: value for name, value in result.items() if name != "looks"}
    assert not result["ended"] and not result["failed"] and not result["log_errors"], told
    assert max(result["grown_mib"].values()) < GROWS_MIB, told
    assert all(result["counts"][f"{door} inputs"] > 50 for door in (SOCKET, HTTP)), told
    assert result["beside"]["answers"] > 0 and not result["beside"]["tokens_lost"], told
