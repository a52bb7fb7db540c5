"""The pure parts of the benchmarks of caches: what is new of a prompt, traces, tables."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import trio

from benchmarks import cache_tables, kv_tables, report, restart_tables, working_set
from benchmarks.cache import note
from benchmarks.cache_traces import TRACES, Answer, Asker, Sizes, Words, new_tokens
from benchmarks.kv_perplexity import Kind
from benchmarks.kv_types import positions_within
from benchmarks.machine import spread
from benchmarks.names import OURS
from benchmarks.setting import Series

SIZES = Sizes(
    2, 10, 3, answer=4, own=5, chat_turns=4, file_tokens=50, moves=9, move=5, completion=2,
    long_turns=2, long_words=8, summary=6, turns_after=2,
)  # fmt: skip


class _Counted(Words):
    """Texts of token ids that never come twice."""

    def __init__(self) -> None:
        self._next = 0

    def ids(self, words: int) -> list[int]:
        self._next += words
        return list(range(self._next - words, self._next))


class _Perfect(Asker):
    """A server that keeps everything, and whose clock ticks with each request."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._clock_s = 0.0

    async def ask(self, step: str, prompt: list[int], n: int) -> list[int]:
        answer = Answer(step, list(prompt), self._clock_s)
        self._clock_s += 1.0
        answer.first_s = answer.end_s = self._clock_s - 0.5
        answer.ids = [-1 - len(self.answers)] * n
        answer.computed = max(new_tokens(answer, self.answers), 1)
        answer.cached = len(prompt) - answer.computed
        self.answers.append(answer)
        return answer.ids


def _played(trace: str) -> list[Answer]:
    asker = _Perfect()
    trio.run(TRACES[trace](_Counted(), SIZES), asker)
    return asker.answers


def test_what_is_new_of_a_prompt() -> None:
    past = Answer("a", [1, 2, 3], 0.0, end_s=1.0, ids=[4, 5])
    running = Answer("b", [1, 2, 3, 4, 5, 6, 7], 0.5, end_s=9.0)
    asked = Answer("c", [1, 2, 3, 4, 9], 2.0, end_s=3.0)
    assert new_tokens(asked, [past, running, asked]) == 1
    assert new_tokens(Answer("d", [2, 2], 2.0), [past]) == 2
    assert new_tokens(Answer("e", [1, 2], 2.0), [past]) == 0


@pytest.mark.parametrize("trace", TRACES)
def test_a_trace_asks_as_often_as_its_sizes_say_and_repeats_itself(trace: str) -> None:
    answers = _played(trace)
    wanted = {"agents": 2 * 3, "chat": 4, "file": 9, "compaction": 2 + 1 + 2}
    assert len(answers) == wanted[trace]
    first, *others = answers
    assert first.cached == 0 and all(a.cached > 0 for a in others)


def test_a_chat_grows_by_what_was_said_and_answered() -> None:
    answers = _played("chat")
    for before, after in zip(answers, answers[1:], strict=False):
        said = before.prompt + before.ids
        assert after.prompt[: len(said)] == said and len(after.prompt) == len(said) + SIZES.own


def test_the_cursor_moves_back_and_forth() -> None:
    lengths = [len(a.prompt) for a in _played("file")]
    assert lengths == [50, 55, 60, 55, 50, 45, 40, 45, 50]


def test_a_compaction_goes_on_from_the_summary() -> None:
    *_, summary, after, later = _played("compaction")
    assert after.prompt[: SIZES.words] == summary.prompt[: SIZES.words]
    assert after.prompt[SIZES.words :][: SIZES.summary] == summary.ids
    assert later.prompt[: len(after.prompt)] == after.prompt


def test_the_tables_have_every_step() -> None:
    series = Series.empty()
    note(series, OURS, _played("agents"))
    found = {"figures": series.spreads(), "ours_over_theirs": {"makespan_s": spread([0.5])}}
    result: dict[str, Any] = {
        "model": "demo q8_0", "rounds": 1, "http": False, "sizes": SIZES._asdict(),
        "traces": {"agents": json.loads(json.dumps(found))},
    }  # fmt: skip
    head, rows = cache_tables.whole(result, report.around)
    assert [row[:2] for row in rows] == [
        ["agents", step] for step in ("whole, s", "turn 1, ms", "turn 2, ms", "turn 3, ms")
    ]
    assert rows[0][4] == "0.5" and rows[1][2:4] == ["500", "-"]
    assert all(row[7] == "0" for row in rows[1:])
    assert all(len(row) == len(head) for row in rows)
    line = cache_tables.command("cache-demo", result)
    assert line.endswith("--rounds 1 --traces agents --name cache-demo")


def test_the_table_of_a_full_cache() -> None:
    found = {"full": spread([2.0]), "empty": spread([4.0]), "full_over_empty": spread([0.5])}
    kept = {"full": spread([9.0]), "empty": spread([0.0])}
    result = {"kept": kept, "loads": {"storm": {"p95_ms@2": found}}}
    head, rows = cache_tables.full_whole(result, report.around)
    assert rows == [
        ["before them", "tokens kept", "9", "0", "-"],
        ["storm", "p95_ms@2", "2", "4", "0.5"],
    ]
    assert all(len(head) == len(row) for row in rows)


def test_the_table_of_a_working_set() -> None:
    figures = {"tokens_per_s": spread([30.0]), "parked": spread([2.0]), "cached": spread([0.5])}
    result = {
        "model": "demo q8_0", "rounds": 1, "n_ctx": 1024, "sessions": 8, "turns": 2, "prompt": 64,
        "answer": 64, "ways": {"at once": figures, "in batches": figures},
        "at_once_over_in_batches": spread([1.0]),
    }  # fmt: skip
    head, rows = cache_tables.working_whole(result, report.around)
    assert rows == [["8", "2 x (64 + 64)", "1024", "30", "30", "1", "2", "2"]]
    assert len(head) == len(rows[0])
    line = cache_tables.working_command("working_set-demo", result)
    assert line.endswith("--prompt 64 --answer 64 --rounds 1 --name working_set-demo")


def test_the_cells_of_a_working_set_hold_half_of_it() -> None:
    assert working_set.cells(16, 2, 256) == 4096
    assert working_set.cells(8, 2, 120) == 1024, "a multiple of 256"


def _saved(n: int, first_word: int, sequences: int = 1) -> np.ndarray:
    """Bytes as libllama saves ``n`` cells: some words, streams, cells, and three words a cell."""
    cells = [word for at in range(n) for word in (at, sequences, 0)]
    words = [*range(100, 100 + first_word), 1, n, *cells, 7, 7]
    return np.frombuffer(bytearray(struct.pack(f"<{len(words)}i", *words)), np.uint8)


@pytest.mark.parametrize("first_word", [0, 2, 7])
def test_positions_of_saved_cells_can_be_moved(first_word: int) -> None:
    data = _saved(5, first_word)
    positions = positions_within(data, 5)
    assert positions.tolist() == [0, 1, 2, 3, 4]
    positions += 10
    assert positions_within(data, 5).tolist() == [10, 11, 12, 13, 14]


def test_saved_cells_without_a_known_head_are_refused() -> None:
    with pytest.raises(ValueError, match="no head"):
        positions_within(_saved(5, 0, sequences=2), 5)


def test_the_table_of_restarts() -> None:
    figures = {"cold_ms": 900.0, "restart_ms": 90.0, "ratio": 0.1, "cached": 64, "disk_mb": 1.5}
    result: dict[str, Any] = {key: spread([value]) for key, value in figures.items()}
    result |= {"model": "demo q8_0", "tokens": 64, "rounds": 2, "flags": "--threads 1"}
    head, rows = restart_tables.whole(result, report.around)
    assert rows == [["64", "900", "90", "0.1", "64", "1.5"]] and len(head) == len(rows[0])
    line = restart_tables.command("restart-demo", result)
    assert line == (
        "python -m benchmarks.restart --model demo --tokens 64 --rounds 2 "
        '--flags "--threads 1" --name restart-demo'
    )


def test_v_that_lies_head_by_head_is_f16() -> None:
    assert Kind.of("q8", "head-major") == ("q8:f16", "head-major", "q8_0", "f16")
    assert Kind.of("q6", "token-major") == ("q6", "token-major", "q5_1", "q5_1")
    assert Kind.of("f16", "head-major") == ("f16", "head-major", "f16", "f16")


def test_the_table_of_kv_types() -> None:
    first = {
        "kv_type": "f16", "kv_pack": "head-major", "cells": 512, "gbps": 3.0, "kv_mb": 1.5,
        "tokens_per_s": spread([20.0]), "over_first": spread([1.0]), "mb_per_token": 9.0,
    }  # fmt: skip
    other = {**first, "kv_type": "q8:f16", "over_first": spread([2.0])}
    result = {"model": "demo q8_0", "rounds": 1, "threads": 2, "cells": [512], "types": "f16,q8",
              "packs": "head-major", "rows": [first, other]}  # fmt: skip
    head, rows = kv_tables.whole(result, report.number, report.around)
    assert [row[:5] for row in rows] == [
        ["512", "head-major", "f16", "20", "1"], ["512", "head-major", "q8:f16", "20", "2"],
    ]  # fmt: skip
    assert {len(row) for row in rows} == {len(head)}
    lost = {"kv_pack": "head-major", "perplexity": 8.0, "over_first": 1.0}
    more = {**lost, "kv_type": "q8:f16", "perplexity": 8.1, "over_first": 1.0125}
    result |= {"perplexity_tokens": 99, "perplexity": [{**lost, "kv_type": "f16"}, more]}
    _, rows = kv_tables.whole(result, report.number, report.around)
    assert [line[-1] for line in rows] == ["8.0000", "8.1000"]
    assert "--perplexity-tokens 99" in kv_tables.command("kv_types-demo", result)
    assert kv_tables.command("kv_types-demo", result).endswith("--name kv_types-demo")
