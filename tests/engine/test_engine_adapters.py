"""LoRA adapters of requests: what they say, whose texts they share, and their turns."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.shifted_rows import SIZE, Row
from tests.support.small_models import ROOT, write_header
from umaserve.assets import demo_model_path
from umaserve.llama.adapters import Adapters
from umaserve.models.adapter import adapter_bytes
from umaserve.wire import messages as m

sys.path.insert(0, str(ROOT / "tools"))

from make_lora import write_lora  # noqa: E402

TEXT = "def add(a, b):\n    return a + b\n\n\n" * 6 + "def sub(a, b):\n"
ENDLESS = m.Sampling(temperature=0.0, ignore_eos=True)
Follows = Callable[[tuple, str, list[int]], None]
BASE, FIRST, SECOND = ((0, 0.0),), ((0, 1.0),), ((1, 1.0),)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[m.Adapter, ...]:
    folder = tmp_path_factory.mktemp("lora")
    return tuple(
        m.Adapter(f"a{seed}", str(write_lora(demo_model_path(), folder / f"{seed}", seed=seed)))
        for seed in (1, 2)
    )


@pytest.fixture(scope="module")
def engine(adapters: tuple[m.Adapter, ...]) -> Iterator[DrivenEngine]:
    with DrivenEngine(n_ctx=4096, adapters=adapters) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain() -> Iterator[DrivenEngine]:
    with DrivenEngine(n_ctx=4096) as engine:
        yield engine


def said(engine: DrivenEngine, lora: tuple = (), n: int = 24, text: str = TEXT, **more) -> list:
    return engine.run(text, max_tokens=n, sampling=ENDLESS, lora=lora, **more)


@pytest.fixture
def follows(adapters: tuple[m.Adapter, ...], oracle: Oracle) -> Follows:
    """Judges an answer by libllama with the adapters of a set."""
    loaded = Adapters(oracle.model, [each.path for each in adapters])

    def judge(lora: tuple, text: str, answer: list[int]) -> None:
        scales = dict(lora)
        loaded.set(oracle.context, [scales.get(number, 0.0) for number in range(len(adapters))])
        try:
            oracle.assert_followed(text, answer)
        finally:
            loaded.set(oracle.context, [0.0] * len(adapters))

    return judge


def test_ready_tells_of_them(engine: DrivenEngine, adapters: tuple[m.Adapter, ...]) -> None:
    sizes = [adapter_bytes([each.path]) for each in adapters]
    assert all(sizes)
    assert engine.ready.adapters == tuple(
        msgspec.structs.replace(each, n_bytes=size)
        for each, size in zip(adapters, sizes, strict=True)
    )
    assert engine.ready.memory_bytes == (
        engine.ready.model_bytes + sum(sizes) + engine.ready.kv_bytes
    )


def test_scales_say_what_a_request_gets(engine: DrivenEngine, plain: DrivenEngine) -> None:
    base = said(plain)
    assert said(engine, BASE) == base
    first, second = said(engine, FIRST), said(engine, SECOND)
    assert len({tuple(each) for each in (base, first, second)}) == 3
    both = said(engine)  # those of the start: both of scale 1
    assert both == said(engine, ((0, 1.0), (1, 1.0)))
    assert both not in (base, first, second)


@pytest.mark.parametrize("alone", [False, True])
def test_libllama_says_the_same(
    engine: DrivenEngine, follows: Follows, oracle: Oracle, alone: bool
) -> None:
    answer = said(engine, FIRST, deterministic=alone)
    follows(FIRST, TEXT, answer)
    with pytest.raises(AssertionError):
        follows(SECOND, TEXT, answer)
    with pytest.raises(AssertionError):
        oracle.assert_followed(TEXT, answer)


@pytest.mark.parametrize("options", [{}, {"without": ("prompt-aside", "slices")}])
def test_sets_take_turns(
    adapters: tuple[m.Adapter, ...], plain: DrivenEngine, follows: Follows, options: dict
) -> None:
    """Streams and prompts of three sets at once say what each says alone."""
    sets = [(FIRST, TEXT), (SECOND, TEXT + "    x"), (FIRST, TEXT * 4), (BASE, TEXT * 3)]
    with DrivenEngine(n_ctx=4096, adapters=adapters, **options) as engine:
        base = engine.submit(TEXT, max_tokens=200, sampling=ENDLESS, lora=BASE)
        engine.wait(base, n_tokens=2)
        serials = [
            engine.submit(text, max_tokens=60, sampling=ENDLESS, lora=lora, lane=number % 2)
            for number, (lora, text) in enumerate(sets)
        ]
        for serial, (lora, text) in zip(serials[:3], sets, strict=False):
            engine.wait(serial)
            assert len(engine.generated(serial)) == 60
            follows(lora, text, engine.generated(serial))
        engine.wait(base)
        ticks = engine.generated(base)
        engine.wait(serials[3])
        follows(BASE, TEXT * 3, engine.generated(serials[3]))
        follows(BASE, TEXT, ticks)
        for serial in (base, *serials):
            engine.release(serial)
        assert said(engine, BASE) == said(plain)


def test_the_base_says_the_same_to_the_byte(
    engine: DrivenEngine, plain: DrivenEngine, follows: Follows
) -> None:
    """Deterministic, since the places of others' cells move the numbers of any other request."""
    base = engine.submit(TEXT, max_tokens=200, sampling=ENDLESS, lora=BASE, deterministic=True)
    beside = engine.submit(TEXT, max_tokens=200, sampling=ENDLESS, lora=BASE)
    engine.wait(base, n_tokens=2)
    other = engine.submit(TEXT, max_tokens=100, sampling=ENDLESS, lora=FIRST)
    engine.wait(other, n_tokens=2)
    assert len(engine.generated(base)) < 200
    for serial in (base, beside, other):
        engine.wait(serial)
    assert engine.generated(base) == said(plain, (), 200, deterministic=True)
    follows(BASE, TEXT, engine.generated(beside))
    follows(FIRST, TEXT, engine.generated(other))
    for serial in (base, beside, other):
        engine.release(serial)


def test_a_full_context_goes_on_with_its_adapters(
    adapters: tuple[m.Adapter, ...], oracle: Oracle, follows: Follows
) -> None:
    """The row is full in its turn, and is shifted in that of the base, where it does not run."""
    with DrivenEngine(n_ctx=1024, n_positions=SIZE, adapters=adapters) as engine:
        row = Row(engine, TEXT, 400, 4, lora=FIRST)
        while not row.tokens or len(row.tokens) < 400:
            base = engine.submit(TEXT, max_tokens=60, sampling=ENDLESS, lora=BASE)
            row.until_full()
            if len(row.tokens) < 400:
                row.shift()
            engine.wait(base)
            follows(BASE, TEXT, engine.generated(base))
            engine.release(base)
        assert row.shifts >= 2
        loaded = Adapters(oracle.model, [adapters[0].path])
        for scale, is_right in ((1.0, True), (0.0, False)):
            loaded.set(oracle.context, [scale])
            gaps = oracle.shifted_gaps(row.prompt, row.tokens, SIZE, 4)
            loaded.set(oracle.context, [0.0])
            assert (gaps.max() < 4.0) == is_right


def test_a_text_is_shared_by_equal_sets_alone(engine: DrivenEngine) -> None:
    def cached(lora: tuple) -> int:
        serial = engine.submit(TEXT * 3, max_tokens=4, sampling=ENDLESS, lora=lora, domain="a")
        engine.wait(serial)
        found = int(engine.table.cached[engine.slots[serial]])
        engine.release(serial)
        return found

    assert cached(FIRST) == 0
    assert cached(FIRST) > 100
    assert cached(SECOND) == 0
    assert cached(BASE) == 0
    assert cached(((0, 0.5),)) == 0
    assert cached(BASE) > 100


def test_what_cannot_be_is_refused(engine: DrivenEngine) -> None:
    refused = engine.ended(engine.submit("x", lora=((2, 1.0),), max_tokens=2))
    assert refused is not None and "lora names adapter 2; there are 2" in refused.message
    refused = engine.ended(engine.submit("x", lora=FIRST, prompt_logprobs=0, max_tokens=2))
    assert refused is not None and "prompt_logprobs" in refused.message


def test_wrong_files_are_refused_in_words(tmp_path: Path) -> None:
    other = write_lora(demo_model_path(), tmp_path / "other", architecture="gemma3")
    strange = tmp_path / "strange"
    write_header(
        strange, general__architecture=check(demo_model_path()), general__type="adapter",
        adapter__type="lora", adapter__lora__alpha=1.0,
    )  # fmt: skip
    double = tmp_path / "double"  # libllama ends the process of such a key
    raw = other.read_bytes().replace(struct.pack("<If", 6, 4.0), struct.pack("<Id", 12, 4.0))
    assert len(raw) == other.stat().st_size + 4
    double.write_bytes(raw)
    cases = {
        str(tmp_path / "none"): "does not exist",
        str(double): "is no LoRA adapter",
        str(demo_model_path()): "is no LoRA adapter",
        str(other): "is an adapter of a gemma3 model",
        str(strange): "unexpected suffix",
    }
    for path, words in cases.items():
        with DrivenEngine(adapters=(m.Adapter("a", path),), expect_failure=True) as engine:
            assert words in engine.failure and path in engine.failure, engine.failure


def check(path: Path) -> str:
    from umaserve.models.gguf.faults import check_gguf

    return check_gguf(path).architecture
