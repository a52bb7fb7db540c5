"""Requests whose logits are no numbers."""

from __future__ import annotations

from typing import Any

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from umaserve.wire import messages as m
from umaserve.wire import table as t

BAD = 4321  # the token without numbers


GREEDY = m.Sampling(temperature=0.0, ignore_eos=True)


TEXTS = (
    "def fibonacci(n):",
    "The quick brown fox jumps",
    "1, 2, 3, 4, 5, 6, 7,",
    "import os\nimport sys\n\n\ndef main(arguments):",
    "Dear Sir or Madam,\n\nthank you for your letter of",
)


TOKENS = 24


def started(model: str, **options: Any) -> DrivenEngine:
    usual = {"prefill_threads": 0, "probe": False, "n_ctx": 1024, "n_batch": 64}
    return DrivenEngine(model=model, **{**usual, **options})


def ask(engine: DrivenEngine, tokens: list[int], n: int = TOKENS, **fields: Any) -> int:
    fields.setdefault("sampling", GREEDY)
    return engine.submit(None, tokens=tokens, n_prompt=len(tokens), max_tokens=n, **fields)


def finish(engine: DrivenEngine, serials: list[int]) -> list[list[int]]:
    """Wait until they have ended as usual: the tokens of each."""
    out = []
    for serial in serials:
        engine.wait(serial)
        assert engine.reason(serial) == t.REASON_LENGTH
        out.append(engine.generated(serial))
        engine.release(serial)
    return out


def expect_end(engine: DrivenEngine, serial: int) -> list[int]:
    """The request ends as one without numbers; what it had said before."""
    engine.wait(serial)
    assert engine.reason(serial) == t.REASON_ERROR
    failed = engine.expect(m.Failed)
    assert failed.serials == [serial] and failed.code == "E_RUNTIME_001"
    assert "not numbers" in failed.message
    said = engine.generated(serial)
    engine.release(serial)
    return said


class Others:
    """Requests that have nothing to do with the bad token, and what they have to be."""

    def __init__(self, engine: DrivenEngine, oracle: Oracle) -> None:
        self._engine, self._oracle = engine, oracle
        self._asked: list[tuple[int, list[int]]] = []

    def ask(self, prompts: list[list[int]], n: int = TOKENS, **fields: Any) -> list[int]:
        serials = [ask(self._engine, prompt, n, **fields) for prompt in prompts]
        self._asked += zip(serials, prompts, strict=True)
        return serials

    def begun(self) -> None:
        for serial, _ in self._asked:
            self._engine.wait(serial, n_tokens=3)

    def check(self) -> None:
        """All have ended, and nothing that they said is lost, doubled or from elsewhere."""
        for serial, prompt in self._asked:
            (tokens,) = finish(self._engine, [serial])
            self._oracle.assert_followed(prompt, tokens)
        self._asked = []
