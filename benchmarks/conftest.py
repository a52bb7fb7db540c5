"""Options and the recorded clock of the benchmark suite.

Sides of a group take turns (A B A B …), which pytest-benchmark cannot do by itself: it runs one
benchmark after another.  So a group is measured once, by the module that the command line has too,
and every side's times are then played to pytest-benchmark, whose statistics, storage and
``--benchmark-compare`` work on them as on any others.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.playback import CLOCK


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="smallest counts: does it run, not how fast is it"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(1800))  # the first of a group measures all of it


@pytest.fixture(scope="session")
def quick(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--quick"))


@pytest.fixture
def play(benchmark) -> Callable[..., None]:  # type: ignore[no-untyped-def]
    """``play(group, seconds, **extra)``: one side of a group, already measured."""

    def record(group: str, seconds: list[float], **extra: object) -> None:
        benchmark.group = group
        benchmark.extra_info.update(extra)
        CLOCK.load(seconds)
        benchmark.pedantic(CLOCK.step, rounds=len(seconds), iterations=1)

    return record
