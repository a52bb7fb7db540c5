"""Rows that gave their cells up go on where they were: the prefix cache keeps what these held."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.made_models import written
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import given_up_together
from tests.support.patches.engine_spies import kept_domains
from tests.support.waiting import until
from umaserve.wire import messages as m
from umaserve.wire import table as t

TEXT = "".join(f"def function_{i}(value):\n    return value + {i}\n\n\n" for i in range(6))
ENDLESS = m.Sampling(temperature=0.0, ignore_eos=True)
FEW = 8  # tokens that are computed again rather than copied, each time
SCOPE = "everybody"


@pytest.fixture
def start() -> Iterator[functools.partial]:
    running: list[DrivenEngine] = []

    def make(**options) -> DrivenEngine:
        running.append(DrivenEngine(**{"n_seq": 2, **options}))
        return running[-1]

    yield functools.partial(make)
    for engine in running:
        assert engine.close() == 0


def hogs(engine: DrivenEngine, n: int, domain: str | None, max_tokens: int = 700) -> list[int]:
    """Background rows that run."""
    serials = [
        engine.submit(f"# {i}\n" + TEXT, lane=m.LANE_BACKGROUND, domain=domain, sampling=ENDLESS,
                      max_tokens=max_tokens)
        for i in range(n)
    ]  # fmt: skip
    for serial in serials:
        engine.wait(serial, n_tokens=3)
    return serials


def finish(engine: DrivenEngine, oracle: Oracle, serials: list[int]) -> int:
    """Wait until they end right; returns the tokens of their prompts."""
    prompts = 0
    for serial in serials:
        engine.wait(serial)
        assert engine.reason(serial) == t.REASON_LENGTH
        prompt = engine.prompt_tokens(serial)
        oracle.assert_followed(prompt, engine.generated(serial))
        prompts += len(prompt)
        engine.release(serial)
    return prompts


@pytest.mark.parametrize("domain", [SCOPE, None])
def test_a_parked_row_goes_on_where_it_was(start, oracle, domain):
    engine = start()
    header = engine.table.header
    rows = hogs(engine, 2, domain)
    quick = engine.submit("import os\n", domain=domain, sampling=ENDLESS, max_tokens=4)
    engine.wait(quick)
    prompts = finish(engine, oracle, [quick, *rows])
    assert header.preemptions == 1
    assert prompts <= header.prefill_tokens + header.cached_tokens < prompts + FEW
    assert (header.cache_entries == 0) == (domain is None)
    assert header.cells_used == 0


def test_a_parked_text_of_nobody_is_for_nobody_else(start, oracle, tmp_path):
    """Nor does any of it go to disk, or stay when its row is cancelled."""
    said = tmp_path / "said"
    engine = start(
        patch=functools.partial(kept_domains, path=str(said)), cache_dir=str(tmp_path / "kv"),
        cache_disk=1 << 30,
    )  # fmt: skip
    rows = hogs(engine, 2, None, max_tokens=1500)
    quick = engine.submit("# 1\n" + TEXT, domain=SCOPE, sampling=ENDLESS, max_tokens=1000)
    engine.wait(quick, n_tokens=1)
    assert engine.table.cached[engine.slots[quick]] == 0
    assert engine.table.parked() == [engine.slots[rows[1]]]
    assert "parked" in said.read_text(), "its own domain was there"
    engine.send(m.Cancel(rows[1]))
    engine.wait(rows[1])
    engine.send(m.Cancel(rows[0]))
    engine.wait(rows[0])
    finish(engine, oracle, [quick])
    assert "parked" not in said.read_text().splitlines()[-1]
    engine.send(m.AskCache(1))
    assert [of.domain for of in engine.expect(m.CacheReport).domains] == [SCOPE]
    assert engine.close() == 0
    assert not [path for path in tmp_path.rglob("*.kv") if b"parked" in path.read_bytes()]


def test_without_a_cache_a_parked_row_is_computed_again(start, oracle):
    engine = start(cache_bytes=0)
    rows = hogs(engine, 2, SCOPE)
    quick = engine.submit("import os\n", domain=SCOPE, sampling=ENDLESS, max_tokens=4)
    engine.wait(quick)
    prompts = finish(engine, oracle, [quick, *rows])
    assert engine.table.header.preemptions == 1
    assert engine.table.header.prefill_tokens > prompts + len(TEXT) // 8


def test_sessions_that_need_twice_the_cells_all_finish(start_anew, oracle):
    """They grow until the cells run out; the newest are parked, and go on.

    Prompts go before streams, so that all of them run at once on a busy machine too.
    """
    engine = start_anew(n_ctx=1024, n_seq=8, reading_ms=1000.0)
    header = engine.table.header
    serials = engine.submit_together(
        [f"# session {i}\n" + TEXT[:200] for i in range(8)], domain=SCOPE, max_tokens=180,
        sampling=ENDLESS,
    )  # fmt: skip
    prompts = finish(engine, oracle, serials)
    assert prompts + 8 * 180 >= 2 * 1000
    assert header.preemptions > 0
    computed = header.prefill_tokens + header.cached_tokens
    # a chunk may leave the last token of a prompt, which counts as decoded then
    assert prompts - len(serials) <= computed < prompts + FEW * (header.preemptions + 1)
    until(lambda: header.cells_used == 0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["mamba-micro", "jamba-micro", "gemma3-micro"])
def test_memory_that_cannot_be_cut_parks_too(start, tmp_path, shape):
    model = str(written(shape, tmp_path / "model.gguf", "--quant", "f16"))
    oracle = Oracle(2048, model)
    engine = start(model=model)
    header, prompt = engine.table.header, [300 + (7 * i) % 900 for i in range(200)]
    for domain in (SCOPE, None):
        before = header.prefill_tokens, header.preemptions
        rows = []
        for i in range(2):
            tokens = [301 + i, *prompt]
            rows.append(
                engine.submit(tokens=tokens, n_prompt=len(tokens), lane=m.LANE_BACKGROUND,
                              domain=domain, sampling=ENDLESS, max_tokens=250)
            )  # fmt: skip
        for serial in rows:
            engine.wait(serial, n_tokens=3)
        quick = engine.submit(tokens=[305, 306], n_prompt=2, sampling=ENDLESS, max_tokens=4)
        for serial in [quick, *rows]:
            engine.wait(serial)
            gaps = oracle.greedy_gaps(engine.prompt_tokens(serial), engine.generated(serial))
            assert gaps.max() < 0.5, gaps
            engine.release(serial)
        assert header.preemptions == before[1] + 1
        assert header.prefill_tokens - before[0] <= 2 * 201 + 2 + FEW
    oracle.close()


def test_nothing_is_left_of_a_state_that_a_tick_given_up_may_have_moved(start, tmp_path):
    """libllama moves the states of other rows while it computes those of a tick."""
    model = str(written("jamba-micro", tmp_path / "model.gguf", "--quant", "f16"))
    said, oracle = tmp_path / "said", Oracle(2048, model)
    patch = functools.partial(given_up_together, path=str(said))
    # else the first answer may end before the other prompts have their turn
    engine = start(model=model, n_seq=3, patch=patch, without=("latency-guard",))
    prompts = [[300 + (7 * i + n) % 900 for i in range(60)] for n in range(3)]
    serials = [
        engine.submit(tokens=prompt, n_prompt=60, max_tokens=240, sampling=ENDLESS)
        for prompt in prompts
    ]
    for serial, prompt in zip(serials, prompts, strict=True):
        engine.wait(serial)
        assert oracle.greedy_gaps(prompt, engine.generated(serial)).max() < 0.5
    assert said.read_text().split() == ["[0]"]
    oracle.close()
