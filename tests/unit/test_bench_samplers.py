"""The benchmark of samplers runs with the samplers as they are."""

from __future__ import annotations

import pytest

from benchmarks import sampler


@pytest.mark.slow
@pytest.mark.timeout(300)  # it compiles a loop around the samplers
def test_every_setting_is_measured() -> None:
    for name in sampler.known():
        row = sampler.measure(32000, name, 1)
        assert row["us"]["ours"]["median"] > 0.0, name
