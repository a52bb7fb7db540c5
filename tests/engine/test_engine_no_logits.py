"""libllama has no logits of a batch that it decoded: requests end, and the engine goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import no_logits_while
from umaserve.wire import messages as m


@pytest.fixture
def none(tmp_path: Path) -> Path:
    """While it exists there are no logits."""
    return tmp_path / "none"


def test_requests_of_the_batch_end_and_the_next_is_served(none: Path) -> None:
    with DrivenEngine(patch=partial(no_logits_while, path=str(none)), probe=False) as engine:
        none.touch()
        serials = engine.submit_together(["def f(x):", "class A:"], max_tokens=20)
        ended: list[int] = []
        while len(ended) < len(serials):
            failed = engine.expect(m.Failed)
            assert failed.code == "E_RUNTIME_001"
            assert failed.message == "libllama has no logits of a batch that it decoded"
            ended += failed.serials
        assert sorted(ended) == serials
        for serial in serials:
            engine.wait(serial)
        none.unlink()
        oracle = Oracle(n_ctx=2048)
        try:
            expected = oracle.greedy("def f(x):", 20)
        finally:
            oracle.close()
        assert engine.run("def f(x):", max_tokens=20) == expected


def test_an_engine_that_has_none_from_the_start_says_so(none: Path) -> None:
    none.touch()
    patch = partial(no_logits_while, path=str(none))
    with DrivenEngine(patch=patch, expect_failure=True, probe=False) as engine:
        assert "its first token fails" in engine.failure
