"""Group 4: one stream alone: first token, CPU time and system calls a token, start-up."""

from __future__ import annotations

import functools

import pytest

from benchmarks import first_token, invariance, one_stream, startup
from benchmarks.machine import save
from benchmarks.playback import CLOCK

pytestmark = pytest.mark.benchmark(timer=CLOCK)


@functools.cache
def result(module, quick: bool) -> dict:  # type: ignore[no-untyped-def]
    found = module.measure(module.quick() if quick else module.parser().parse_args([]))
    if not quick:
        name = module.__name__.rsplit(".", 1)[1]
        save(name, {k: v for k, v in found.items() if k != "seconds"})
    return found


@pytest.mark.parametrize("side", (one_stream.OURS, one_stream.THEIRS))
def test_first_token_against_llama_server(play, quick: bool, side: str) -> None:
    found = result(one_stream, quick)
    play(
        "first token: umaserve and llama-server",
        found["seconds"]["first_token"][side],
        cpu_s_per_1k_tokens=found["cpu_s_per_1k_tokens"][side]["median"],
        system_calls_per_token=found["system_calls_per_token"][side],
    )


@pytest.mark.parametrize("side", ("daemon", "library"))
def test_first_token_against_the_bare_library(play, quick: bool, side: str) -> None:
    play("first token: daemon and bare library", result(first_token, quick)["seconds"][side])


@pytest.mark.parametrize("side", ("umaserve", startup.FIRST, "llama-server"))
def test_start_up(play, quick: bool, side: str) -> None:
    play("start-up", result(startup, quick)["seconds"][side])


def test_greedy_streams_do_not_depend_on_others(play, quick: bool) -> None:
    found = result(invariance, quick)
    shares = {key: found[key]["share"] for key in ("with_seven_others", "killed")}
    play("batch invariance (the shares are in extra_info)", [found["wall_s"]], **shares)
