"""Embeddings and log-probabilities by a real engine, alone and with others about."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.made_models import written
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import kept_without_end
from tests.support.waiting import until
from tests.support.whole_texts import assert_near, cosine, logprobs, pooled
from umaserve import llama
from umaserve.engine.loop.aside_texts import AsideTexts
from umaserve.wire import messages as m
from umaserve.wire import table as t

TEXT = "class Stack:\n    def push(self, item):\n        self.items.append(item)\n" * 4
LONG = {"max_tokens": 120, "sampling": m.Sampling(temperature=0.0, ignore_eos=True)}


@pytest.fixture(scope="module")
def engine() -> Iterator[DrivenEngine]:
    with DrivenEngine() as engine:
        yield engine


def embedded(engine: DrivenEngine, ref: int, **fields: Any) -> m.Embedded:
    engine.send(m.Embed(ref, **fields))
    answer = engine.expect(m.Embedded)
    assert answer.ref == ref
    return answer


def test_ready_tells_of_vectors(engine: DrivenEngine, model: llama.Model) -> None:
    ready = engine.ready
    assert (ready.n_embd, ready.pooling, ready.generates) == (model.n_embd, "last", True)


def test_a_text_and_its_tokens_give_the_same_vector(
    engine: DrivenEngine, model: llama.Model
) -> None:
    tokens = model.tokenize(TEXT)
    by_text = embedded(engine, 1, texts=[TEXT])
    by_tokens = embedded(engine, 2, texts=[tokens])
    assert by_text.n_tokens == by_tokens.n_tokens == len(tokens)
    vectors = [np.frombuffer(each.vectors, np.float32) for each in (by_text, by_tokens)]
    expected = pooled(model, tokens, "last")
    assert all(cosine(vector, expected) > 0.9999 for vector in vectors)


@pytest.mark.parametrize("domain", [None, "somebody"])
@pytest.mark.parametrize("others", [0, 2])
def test_a_rated_prompt_is_computed_once(
    engine: DrivenEngine, model: llama.Model, oracle: Oracle, domain: str | None, others: int
) -> None:
    """Its answer begins with what its rating computed; for others it stays where they may share."""
    header = engine.table.header
    text = f"# {domain} {others}\n{TEXT}"
    tokens, held = model.tokenize(text), int(header.cache_bytes)
    before, last = int(header.prefill_tokens), {**LONG, "max_tokens": 8}
    running = [engine.submit("import os", **LONG) for _ in range(others)]
    serial = engine.submit(text, prompt_logprobs=1, domain=domain, **last)
    assert_rated(model, rated_prompt(engine, serial), tokens)
    for each in [serial, *running]:
        engine.wait(each)
    oracle.assert_followed(tokens, engine.generated(serial))
    assert engine.table.cached[engine.slots[serial]] == len(tokens) - 1
    for each in [serial, *running]:
        engine.release(each)
    assert int(header.prefill_tokens) - before < len(tokens) / 2
    until(lambda: header.cells_used == 0)
    assert (header.cache_bytes > held) == (domain is not None)


def test_what_was_rated_for_nobody_else_goes_with_its_request() -> None:
    """It is cancelled while it waits for a sequence."""
    with DrivenEngine(n_ctx=8192, n_seq=1, probe=False) as engine:
        header = engine.table.header
        running = engine.submit("import os", **{**LONG, "max_tokens": 8000})
        serial = engine.submit(TEXT, prompt_logprobs=1, **LONG)
        rated_prompt(engine, serial)
        assert header.cache_bytes > 0
        for each in (serial, running):
            engine.send(m.Cancel(each))
            engine.wait(each)
        until(lambda: header.cells_used == header.cache_bytes == 0)


def test_what_is_kept_of_a_cancelled_rating_goes_too() -> None:
    """It is no row that waits yet."""
    with DrivenEngine(patch=kept_without_end, probe=False) as engine:
        header = engine.table.header
        serial = engine.submit(TEXT, prompt_logprobs=1, **LONG)
        until(lambda: header.cache_bytes > 0)
        engine.send(m.Cancel(serial))
        engine.wait(serial)
        until(lambda: header.cache_bytes == 0)


def test_the_whole_state_of_a_rated_prompt_is_kept(tmp_path_factory: Any) -> None:
    """Where memory cannot be cut."""
    path = str(written("jamba-micro", tmp_path_factory.mktemp("m") / "model.gguf"))
    tokens = np.random.default_rng(3).integers(300, 900, 200).tolist()
    oracle = Oracle(512, path)
    with DrivenEngine(model=path, n_ctx=512, n_seq=2) as engine:
        serial = engine.submit(
            tokens=tokens, n_prompt=len(tokens), prompt_logprobs=0, **{**LONG, "max_tokens": 8}
        )
        rated_prompt(engine, serial)
        engine.wait(serial)
        assert oracle.greedy_gaps(tokens, engine.generated(serial)).max() < 0.5
        assert engine.table.header.prefill_tokens == 0  # the last is fed as a decoding row
    oracle.close()


def test_what_cannot_be_embedded(engine: DrivenEngine) -> None:
    n_vocab, most = engine.ready.n_vocab, engine.ready.n_positions
    wrong = embedded(engine, 1, texts=[[1, n_vocab]])
    assert wrong.code == "E_PROTO_003" and str(n_vocab) in wrong.error
    long = embedded(engine, 2, texts=[[5] * (most + 1)])
    assert long.code == "E_LIMIT_003" and f"{most + 1} tokens" in long.error
    assert embedded(engine, 3, texts=[[5] * (most + 1)], truncate=True).n_tokens == most


def test_streams_are_as_without_and_so_are_the_vectors(
    engine: DrivenEngine, model: llama.Model
) -> None:
    prompts = ["def f(x):", "import os", "class A:"]
    alone = [engine.run(prompt, **LONG) for prompt in prompts]
    serials = [engine.submit(prompt, **LONG) for prompt in prompts]
    engine.send(m.Embed(1, [TEXT]))
    rated = engine.submit(TEXT, prompt_logprobs=1, **{**LONG, "max_tokens": 4})
    answer = engine.expect(m.Embedded)
    tokens = model.tokenize(TEXT)
    # chunks that stop are of other sizes, for which libllama has other kernels
    assert cosine(np.frombuffer(answer.vectors, np.float32), pooled(model, tokens, "last")) > 0.999
    told = rated_prompt(engine, rated)
    assert_rated(model, told, tokens)
    for serial, expected in zip(serials, alone, strict=True):
        engine.wait(serial)
        found = engine.generated(serial)
        assert len(found) == len(expected) == 120
        engine.release(serial)
    engine.wait(rated)
    assert len(engine.generated(rated)) == 4
    engine.release(rated)


def rated_prompt(engine: DrivenEngine, serial: int) -> list[m.PromptLogprobs]:
    told = []
    while not told or not told[-1].last:
        told.append(engine.expect(m.PromptLogprobs))
        assert told[-1].serial == serial
    return told


def assert_rated(model: llama.Model, told: list[m.PromptLogprobs], tokens: list[int]) -> None:
    assert [token for message in told for token in message.tokens] == tokens
    values = [value for message in told for value in message.logprobs]
    expected = logprobs(model, tokens)
    assert values[0] is None
    assert_near(values[1:], [expected[i - 1][tokens[i]] for i in range(1, len(tokens))])


@pytest.mark.parametrize("max_tokens", [m.NO_TOKENS, 1, 6])
def test_the_request_goes_on_after_its_prompt_was_rated(
    engine: DrivenEngine, model: llama.Model, max_tokens: int
) -> None:
    fields = {**LONG, "max_tokens": max_tokens}
    plain = engine.run(TEXT, **{**fields, "max_tokens": max(max_tokens, 1)})
    serial = engine.submit(TEXT, prompt_logprobs=2, **fields)
    told = rated_prompt(engine, serial)
    assert_rated(model, told, model.tokenize(TEXT))
    engine.wait(serial)
    assert engine.reason(serial) == t.REASON_LENGTH
    assert engine.generated(serial) == plain[: max(max_tokens, 0)]
    assert engine.prompt_tokens(serial) == model.tokenize(TEXT)
    engine.release(serial)


def test_no_tokens_are_generated_of_a_plain_prompt_either(engine: DrivenEngine) -> None:
    serial = engine.submit(TEXT, max_tokens=m.NO_TOKENS)
    engine.wait(serial)
    assert engine.reason(serial) == t.REASON_LENGTH and engine.generated(serial) == []
    engine.release(serial)


def test_a_request_is_cancelled_while_its_prompt_is_rated(engine: DrivenEngine) -> None:
    first = engine.submit(TEXT * 6, prompt_logprobs=1, max_tokens=1)
    second = engine.submit(TEXT * 6, prompt_logprobs=1, max_tokens=1)
    for serial in (second, first):
        engine.send(m.Cancel(serial))
    for serial in (first, second):
        engine.wait(serial)
        assert engine.reason(serial) == t.REASON_CANCEL
        assert engine.prompt_tokens(serial) == []
        engine.release(serial)
    assert len(engine.run("x", max_tokens=3)) <= 3


def test_a_vector_that_nobody_waits_for_is_not_told(engine: DrivenEngine) -> None:
    engine.send(m.Embed(1, [TEXT * 6]))
    engine.send(m.Embed(2, [TEXT * 6]))
    engine.send(m.Forget(2))
    engine.send(m.Embed(3, ["x"]))
    refs = [engine.expect(m.Embedded).ref for _ in range(2)]
    assert refs == [1, 3]


def test_a_text_without_tokens_is_refused_before_its_length_is_looked_at() -> None:
    sent: list[m.Embedded] = []
    texts = object.__new__(AsideTexts)
    texts._forgotten = set()
    texts._loaded = SimpleNamespace(n_positions=8, n_ctx=16)
    texts._control = SimpleNamespace(send=sent.append)
    texts._embed(m.Embed(5, ["x"]), [], "it cannot be tokenised")
    assert (sent[0].ref, sent[0].code) == (5, "E_PROTO_003")
    assert sent[0].error == "it cannot be tokenised"
