"""The benchmarks of HTTP: what they measure is there, and memory stays where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import http_cost, http_memory

pytestmark = pytest.mark.slow
GROWS_MIB = 6.0  # the allocators' own; a leak of a few KiB a request is more


@pytest.fixture(autouse=True)
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_BENCH_RESULTS", str(tmp_path))


def test_memory_is_flat_over_3000_requests() -> None:
    options = http_memory.parser().parse_args(["--requests", "3000", "--looks", "20"])
    result: dict[str, Any] = http_memory.measure(options)
    assert set(result["grew_mib"]) == {"front", "gateway", "chat", "engine"}
    assert all(grown < GROWS_MIB for grown in result["grew_mib"].values()), result


@pytest.mark.parametrize("route", http_cost.ROUTES)
def test_each_route_has_first_tokens(route: str) -> None:
    options = http_cost.quick()
    options.rounds, options.route = 0, route
    told = http_cost.measure(options)["first_token"]
    assert all(told["ms"][name]["n"] == 5 for name in (http_cost.SOCKET, http_cost.HTTP))
    assert all(each["median"] > 0 for each in told["ms"].values())


def test_rates_are_of_the_socket_and_of_http() -> None:
    options = http_cost.quick()
    options.model, options.no_peer, options.first_tokens = "demo", True, 0
    rates = http_cost.measure(options)["rates"]
    assert set(rates["raw"]) == {http_cost.SOCKET, http_cost.HTTP}
    assert rates["http_over"][http_cost.SOCKET]["n"] == 1
