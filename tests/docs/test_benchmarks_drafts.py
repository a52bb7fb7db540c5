"""The pure parts of the benchmark of drafts: texts that repeat, chains, figures, tables."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import draft_tables, drafts, report
from benchmarks.draft_turns import cells, texts_of, turns_of
from benchmarks.drafts import figures, options_parser, writing_s
from benchmarks.forced import CHAIN, Forced, Heard, chain, grammar, woven
from benchmarks.machine import ratio, spread
from benchmarks.names import OURS, THEIRS
from benchmarks.repeated_texts import COPIES, PIECES, PLAIN, Text, Texts, repeated_share
from umaserve.engine.constraints.grammar import check as gbnf

WORDS, ANSWER = 240, 1000


def _shares(kind: str) -> list[float]:
    source = Texts(1, WORDS, ANSWER)
    return [repeated_share(source.make(kind)) for _ in range(16)]


@pytest.mark.parametrize("kind", COPIES + PIECES)
def test_answers_repeat_what_was_read(kind: str) -> None:
    assert min(_shares(kind)) > 0.4


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_answers_do_not(kind: str) -> None:
    shares = _shares(kind)
    assert sum(shares) / len(shares) < 0.2
    assert max(shares) < 0.4, "code repeats itself a little"


def test_what_a_reader_could_have_known() -> None:
    assert repeated_share(Text("", "a b c d e. ", "a b c d e.")) == pytest.approx(7 / 10)
    assert repeated_share(Text("", "a b c d e. ", "z y x w v.")) == 0


@pytest.mark.parametrize("kind", COPIES + PIECES + PLAIN)
def test_the_same_seed_gives_the_same_texts(kind: str) -> None:
    one, same, other = (Texts(seed, WORDS, ANSWER) for seed in (1, 1, 2))
    texts = [one.make(kind) for _ in range(4)]
    assert texts == [same.make(kind) for _ in range(4)]
    assert len({text.answer for text in texts}) == 4
    assert texts[0] != other.make(kind)


@pytest.mark.parametrize("kind", COPIES + PIECES + PLAIN)
def test_texts_have_the_lengths_asked_for(kind: str) -> None:
    source = Texts(3, 60, 240)
    for text in (source.make(kind) for _ in range(8)):
        assert 300 < len(text.prompt) < 2000 and 60 < len(text.answer) <= 240
        assert all(c == "\n" or " " <= c <= "~" for c in text.prompt + text.answer)


@pytest.mark.parametrize("kind", COPIES + PIECES + PLAIN)
def test_the_grammar_of_a_text_is_one(kind: str) -> None:
    gbnf.check(grammar(Texts(1, WORDS, ANSWER).make(kind).answer), lambda _: False)


def test_a_chain_repeats_where_the_text_does() -> None:
    prompt, answer = woven([5, 1, 2, 3, 4, 9, 6, 0], [7, 1, 2, 3, 4, 8], 1000, 50)
    assert answer == [51, 52, 53, 54, 55, 56]
    # 1 2 3 are the key, 4 follows it on both sides; 9 and 8 differ; the answer follows the last
    assert prompt == [1000, 52, 53, 54, 55, 1005, 1006, 50]


_TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(_TOKENS, _TOKENS)
def test_the_ids_of_a_chain_come_once(prompt: list[int], answer: list[int]) -> None:
    ids, own = woven(prompt, answer, 1000, 50)
    assert len(ids) == len(prompt) == len(set(ids)) and ids[-1] == 50
    assert own == list(range(51, 51 + len(answer)))
    shared = {token: p for p, token in enumerate(ids) if token in own}
    assert all(prompt[p] == answer[token - 51] for token, p in shared.items())


def test_an_answer_is_what_was_asked_for() -> None:
    literal = Forced("edit", {}, {}, 'a "b"\n')
    said = rb'{"event":"token","text":"a \"b\"","token_id":1}{"text":"\n"}'
    assert literal.has_said(said) and not literal.has_said(said + b'{"text":"c"}')
    ids = chain("edit", [1, 2], [3, 4])
    assert ids.has_said(b'{"token_id":3}') and ids.has_said(b'{"content":"","tokens":[4]}')
    assert not ids.has_said(b'{"token_id":3}{"token_id":2}') and not ids.has_said(b"{}")


def _heard(times_s: list[float], drafted: int = 0, accepted: int = 0) -> Heard:
    return Heard("edit", 0.0, times_s, times_s[-1], len(times_s), drafted, accepted)


def test_the_figures_of_a_turn() -> None:
    # three ticks bring one, three and two tokens, not quite together
    heard = [_heard([1.0, 1.1, 1.1001, 1.1002, 1.4, 1.4001], drafted=6, accepted=3)]
    found = figures(heard)
    assert found["tokens_per_tick"] == 2 and found["accepted"] == 0.5
    assert found["tokens_per_s"] == pytest.approx(5 / 0.4001)
    assert found["longest_ms"] == pytest.approx(299.8)
    assert found["pause_p95_ms"] == pytest.approx(100 + 0.95 * 199.8)
    assert found["stream_tokens_per_s@edit"] == found["tokens_per_s"]
    assert figures([_heard([1.0, 1.1, 1.3])])["tokens_per_tick"] == 1


def test_the_time_in_which_answers_are_written() -> None:
    heard = [_heard([1.0, 2.0]), _heard([1.5, 3.0]), _heard([5.0, 6.0])]
    assert writing_s(heard) == 3.0


def test_turns_have_texts_of_their_own() -> None:
    options = options_parser().parse_args(["--streams", "1,2", "--words", "60", "--answer", "99"])
    turns = turns_of(options, 2)
    assert len(turns) == len(set(turns)) == 3 * 2 * 3

    made = [texts_of(turn, options) for turn in turns]
    assert {len(texts) for texts in made} == {2}, "each kind once at least"
    answers = [text.answer for texts in made for text in texts]
    assert len(set(answers)) == len(answers)


def test_the_cells_hold_all_texts_and_their_drafts() -> None:
    texts = [Text("edit", "p" * 600, "a" * 400), Text("quote", "p" * 500, "a" * 100)]
    assert cells(texts) == 1024, "800 tokens and two drafts of 64, in steps of 256"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--texts", "copies,none"], "--texts none: copies,pieces,plain"),
        (["--streams", "1,0"], "--streams 1,0: whole numbers from 1 on"),
        (["--forced", "chain", "--model", "demo"], "name a shape of tools/make_model.py, not demo"),
    ],
)
def test_options_that_make_no_sense_are_told(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["drafts", *arguments])
    with pytest.raises(SystemExit, match="2"):
        drafts.checked(options_parser())
    assert says in " ".join(capsys.readouterr().err.split())


def _result() -> dict[str, Any]:
    ways = [OURS, f"{OURS}, no drafts", THEIRS, f"{THEIRS}, ngram-mod"]
    rates = dict(zip(ways, ([30.0], [15.0], [10.0], [12.0]), strict=True))
    found = {"tokens_per_s": rates, "pause_p95_ms": rates, "longest_ms": rates}
    found |= {"tokens_per_tick": rates, "accepted": {OURS: [0.5]}}
    row = {
        "texts": "copies", "streams": 8,
        "figures": {k: {way: spread(v) for way, v in each.items()} for k, each in found.items()},
        "with_over_without": drafts.ratios(found),
        "ours_over": {way: ratio(rates[OURS], rates[way]) for way in ways[2:]},
    }  # fmt: skip
    return {
        "model": "micro q8_0", "rounds": 2, "words": 60, "answer": 240, "forced": CHAIN, "seed": 1,
        "lane": "interactive", "specs": ["ngram-mod"], "peer_streams": [8], "flags": "",
        "threads": 4, "rows": [row],
    }  # fmt: skip


def test_the_table_of_drafts() -> None:
    result = _result()
    head, rows = draft_tables.whole(result, report.around)
    assert rows == [[
        "copies", "8", "30", "15", "2", "30", "0.5", "30", "15", "30", "15", "10",
        "12 (ngram-mod)", "1.2", "2.5",
    ]]  # fmt: skip
    assert len(head) == len(rows[0])
    assert draft_tables.command("drafts-micro", result) == (
        "python -m benchmarks.drafts --model micro --streams 8 --words 60 --answer 240 --rounds 2 "
        "--texts copies --forced chain --specs ngram-mod --peer-streams 8 --threads 4 "
        "--name drafts-micro"
    )


def test_the_table_of_drafts_without_a_peer() -> None:
    result = _result()
    row = result["rows"][0]
    row["ours_over"], result["specs"] = {}, []
    for figure in row["figures"].values():
        for way in (THEIRS, f"{THEIRS}, ngram-mod"):
            figure.pop(way, None)
    _, rows = draft_tables.whole(result, report.around)
    assert rows[0][-4:] == ["-"] * 4
    assert "--without-peer" in draft_tables.command("drafts-micro", result)
