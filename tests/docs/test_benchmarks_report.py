"""The pure parts of the benchmarks: tables, ratios, ticks of a trace, marks in a stream."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from benchmarks import (
    must_hold,
    prompts,
    report,
    scheduler_tables,
    streams,
    targets,
    tick,
)
from benchmarks.invariance import compare
from benchmarks.machine import ratio, spread
from benchmarks.playback import Playback
from benchmarks.turns import take_turns


def whole() -> str:
    return report.PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_results_say() -> None:
    page = whole()
    assert report.fill(page, report.read_results()) == page, "run: python -m benchmarks.report"


def test_the_tables_are_what_the_results_say() -> None:
    tables = report.all_tables(report.read_results())
    assert (report.RESULTS / "TABLES.md").read_text("utf-8") == tables


def test_the_tables_have_the_command_of_every_result() -> None:
    tables = report.all_tables(report.read_results())
    for name, result in report.read_results().items():
        assert f"`{report.command(name, result)}`" in tables, name


def test_fill_keeps_what_is_outside_the_blocks() -> None:
    page = "a\n<!-- figures: startup -->\nold\n<!-- end -->\nb <!-- end -->\n"
    filled = report.fill(page, {})
    assert (
        filled == "a\n<!-- figures: startup -->\nNot measured yet.\n<!-- end -->\nb <!-- end -->\n"
    )
    assert report.fill(filled, {}) == filled


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (99.96, "100"), (12.34, "12.3"), (0.01234, "0.0123"), (0, "0"), (None, "-")],
)
def test_number(value: float | None, text: str) -> None:
    assert report.number(value) == text


def test_spread_and_ratio_keep_the_turns_together() -> None:
    assert spread([3.0])["median"] == 3.0
    found = ratio([2.0, 20.0, 6.0], [1.0, 10.0, 2.0])
    assert found["median"] == 2.0 and found["n"] == 3


def test_sides_take_turns() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return len(calls)

    out = take_turns({"a": lambda: side("a"), "b": lambda: side("b")}, rounds=2, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert out == {"a": [3, 5], "b": [4, 6]}


def test_playback_shows_recorded_durations() -> None:
    clock = Playback()
    clock.load([0.5, 0.25])
    began = clock()
    clock.step()
    assert clock() - began == 0.5
    clock.step()
    assert clock() - began == 0.75


def _tick(end_s: float, rows: int = 2, prefill: int = 0) -> dict:
    return {"end_s": end_s, "wall_ms": 9.0, "decode_ms": 8.0, "sample_ms": 0.5,
            "decode_rows": rows, "prefill_tokens": prefill}  # fmt: skip


def test_tick_overhead_is_the_period_without_the_decode() -> None:
    # the second follows a prefill, the last a pause: neither counts
    ticks = [_tick(0.0, prefill=3), _tick(0.010), _tick(0.020), _tick(0.030), _tick(9.0)]
    row = tick.summary(ticks, 2)
    assert row is not None and row["ticks"] == 2
    assert row["overhead_us"]["median"] == pytest.approx(2000.0)
    assert row["share"]["median"] == pytest.approx(0.2)
    assert tick.summary(ticks, 5) is None


def test_targets_are_judged_in_their_direction() -> None:
    most = targets.Target("", "", 2.0, True, lambda r: 0.0)
    least = most._replace(at_most=False)
    assert targets.holds(most, 2.0) and not targets.holds(most, 2.1)
    assert targets.holds(least, 2.0) and not targets.holds(least, 1.9)
    assert targets.holds(most, 2.004) and targets.holds(least, 1.996), "as they are shown"


def test_compare_says_where_streams_part() -> None:
    found = compare([[1, 2, 3], [4, 5], [6]], [[1, 2, 9], [4, 5], [6, 7]])
    assert found["equal"] == 1 and found["parted_after_tokens"] == [1, 2]


def test_prompts_differ_from_their_first_word() -> None:
    found = prompts.prompts(31)
    assert len({p.split()[0] for p in found}) == 31
    assert all(len(p.split()) == 16 for p in prompts.prompts(64))


def _serve(pieces: list[bytes]) -> socket.socket:
    """The other end of a connection whose server sends ``pieces`` once it is asked."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        with theirs, contextlib.suppress(BrokenPipeError):  # who has heard enough may close
            theirs.recv(100)
            for piece in pieces:
                theirs.sendall(piece)

    threading.Thread(target=answer, daemon=True).start()
    return ours


TOKEN = b'{"id":"s","event":"token","text":"\\"event\\":\\"eos\\"","token_id":1}'
EOS = b'{"id":"s","event":"eos","usage":{"prompt_tokens":1,"completion_tokens":2}}'


@pytest.mark.parametrize("size", (1, 3, 7, 1000))
def test_streams_find_marks_across_reads(size: int) -> None:
    data = TOKEN + TOKEN + EOS
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    done = streams.run_streams(lambda: _serve(pieces), [b"go", b"go"], streams.UDS, 2)
    assert done.tokens == 4
    assert all(s.end_s >= s.first_s >= done.began_s for s in done.streams)


def test_streams_refuse_a_wrong_number_of_tokens_and_an_early_end() -> None:
    with pytest.raises(RuntimeError, match="has 2 tokens, not 3"):
        streams.run_streams(lambda: _serve([TOKEN + EOS]), [b"go"], streams.UDS, 3)
    with pytest.raises(RuntimeError, match="ended early"):
        streams.run_streams(lambda: _serve([TOKEN]), [b"go"], streams.UDS, 1)


def test_first_tokens_of_all_lengths_that_were_measured_stand_side_by_side() -> None:
    def found(label: str, lengths: list[int]) -> report.Result:
        sides = {"umaserve": spread([9.0]), "llama-server": spread([10.0])}
        figures = [*(f"lone_ms@{n}" for n in lengths), "short_ms_alone", "times_streams"]
        return {
            "label": label, "model": "m q8_0", "machine": {"backend": "cpu"}, "lengths": lengths,
            "accelerator": False, "figures": dict.fromkeys(figures, sides),
            "ours_over_theirs": {str(n): spread([0.9 * n]) for n in lengths},
        }  # fmt: skip

    results = {"first_tokens-a": found("a", [16, 100]), "first_tokens-b": found("b", [16])}
    whole_head, whole = scheduler_tables.first_tokens(list(results.values()), report.around)
    assert len(whole) == 4 and {len(row) for row in whole} == {len(whole_head)}
    held = {
        line[0]: line[2:] for line in must_hold.lines({"first_tokens": results["first_tokens-a"]})
    }
    assert held["first token of a lone prompt / llama-server's, the worst length"][0] == "90"
    assert held["first token of 16 words beside two streams / alone"][0] == "9"
    assert held["first token of 16 words beside a document / alone"][1] == "not measured"
