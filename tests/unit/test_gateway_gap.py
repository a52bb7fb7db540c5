"""Prompts with a gap as token ids, in the order that llama-server gives them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umaserve.gateway.daemon.refusal import Refusal
from umaserve.gateway.translate.gap import OTHER_FILE, infill, with_gap

MODEL = {"n_batch": 512, "n_ctx": 4096, "n_ctx_train": 4096}
GAP = {"prefix": 1001, "suffix": 1002, "middle": 1003}


class Bytes:
    """A daemon whose tokens are bytes; ``special`` are the texts in which it looked for others."""

    max_prompt_bytes = 1_000

    def __init__(self) -> None:
        self.special: list[str] = []
        self.asked = 0

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert not message["add_special"]
        self.asked += 1
        if message["parse_special"]:
            self.special += message["text"]
        found = [list(text.encode()) for text in message["text"]]
        return {"tokens": sum(found, []), "counts": [*map(len, found)]}


def run(*arguments: Any, gap: dict[str, int], **more: Any) -> list[Any]:
    """The ids, with the texts between those of the gap joined."""
    link = Bytes()
    function = infill if len(arguments) == 4 else with_gap
    made = function(link, {**MODEL, "gap": gap, **more}, *arguments)  # type: ignore[operator]
    found: list[Any] = []
    for token in asyncio.run(made):
        if token > 1000:
            found.append(token)
        elif found and isinstance(found[-1], str):
            found[-1] += chr(token)
        else:
            found.append(chr(token))
    assert set(link.special) <= {arguments[-1]}  # what of the answer is known already
    assert link.asked == 1 + bool(link.special)
    return found


def test_two_texts() -> None:
    assert run("a", "b", gap=GAP) == [1001, "a", 1002, "b", 1003]
    assert run("a", "", gap={**GAP, "bos": 1009}) == [1009, 1001, "a", 1002, 1003]


def test_marks_in_a_text_stay_text() -> None:
    text = "<|fim_middle|>"
    assert run(text, text, gap=GAP) == [1001, text, 1002, text, 1003]


def test_other_files() -> None:
    chunks = [("a.py", "x = 1\n"), (OTHER_FILE, "y = 2\n")]
    named = {**GAP, "repo": 1004, "file": 1005, "bos": 1009}
    assert run("def f(", ")", chunks, "n", gap=named) == [
        1004, "myproject\n", 1005, "a.py\nx = 1\n", 1005, "tmp\ny = 2\n", 1005, "filename\n",
        1009, 1001, "def f(n", 1002, ")", 1003,
    ]  # fmt: skip
    snippet = "\n\n--- snippet ---\n\n"
    assert run("a", "b", chunks, "", gap=GAP) == [
        f"{snippet}x = 1\n{snippet}y = 2\n", 1001, "a", 1002, "b", 1003,
    ]  # fmt: skip


def test_texts_that_are_long_are_cut() -> None:
    room = {"n_batch": 16, "n_ctx": 24, "n_ctx_train": 0}
    before, behind = "abcdefghijklmnop", "ABCDEFGH"
    found = run(before, behind, [(OTHER_FILE, "0123456789" * 2)], "!", gap=GAP, **room)
    assert found == ["0123456789", 1001, before[-12:] + "!", 1002, behind[:1], 1003]


def test_a_model_without_tokens_for_a_gap() -> None:
    with pytest.raises(Refusal) as caught:
        run("a", "b", gap={"prefix": 1})
    assert caught.value.status == 400 and "suffix and middle" in caught.value.message
    with pytest.raises(Refusal) as caught:
        asyncio.run(with_gap(Bytes(), {}, "a", "b"))  # type: ignore[arg-type]
    assert caught.value.status == 503


def test_of_more_chunks_than_the_context_holds_the_last_ones_are_asked_for() -> None:
    chunks = [(OTHER_FILE, f"{n:4}\n") for n in range(10_000)]
    found = run("a", "b", chunks, "", gap={**GAP, "file": 1005})
    assert 20 < found.count(1005) < 100  # of 1,000 bytes
    assert found[found.index("filename\n") - 2] == "tmp\n9999\n"
    found = run("a", "b", [(OTHER_FILE, "")] * 10_000, "", gap={**GAP, "file": 1005})
    assert 50 < found.count(1005) < 1_024
