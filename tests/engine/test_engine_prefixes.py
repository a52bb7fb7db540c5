"""Beginnings of texts that an engine has computed before: copied, and right.

What an answer should be is judged by libllama itself (`Oracle`): each token is the best one after
all before it, or a near-tie, as for streams that share a batch.
"""

from __future__ import annotations

import functools
import random

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.made_models import written
from tests.support.oracle import Oracle
from tests.support.patches.engine_faults import memory_runs_out
from tests.support.waiting import until
from umaserve.wire import messages as m

SHARED = "".join(f"def function_{i}(value):\n    return value + {i}\n\n\n" for i in range(12))
SCOPE = "everybody"


@pytest.fixture(scope="module")
def engine():
    with DrivenEngine(n_ctx=2048) as engine:
        yield engine


def ask(engine: DrivenEngine, prompt: str, domain: str | None = SCOPE, **more) -> tuple:
    """Tokens of the prompt that were known, the prompt's ids and the answer's."""
    more.setdefault("max_tokens", 12)
    serial = engine.submit(prompt, domain=domain, **more)
    engine.wait(serial)
    cached = int(engine.table.cached[engine.slots[serial]])
    out = cached, engine.prompt_tokens(serial), engine.generated(serial)
    engine.release(serial)
    return out


def test_a_prompt_that_came_before_is_not_computed_again(engine, oracle):
    first = ask(engine, SHARED + "class Stack:")
    again = ask(engine, SHARED + "class Stack:")
    assert first[0] == 0 and again[0] == len(again[1]) - 1
    assert again[2] == first[2]
    oracle.assert_followed(again[1], again[2])


def test_what_two_prompts_share_is_known_to_the_token(engine, oracle):
    _, known, _ = ask(engine, SHARED + "# the first of two\n")
    cached, tokens, answer = ask(engine, SHARED + "# the other of both\n")
    shared = next(i for i, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b)
    assert cached == shared
    oracle.assert_followed(tokens, answer)


def test_the_next_turn_of_a_chat_computes_what_is_new(engine, oracle):
    tokens = ask(engine, SHARED + "# a chat\n")[1]
    for _ in range(4):
        cached, tokens, answer = ask_ids(engine, tokens, 20)
        oracle.assert_followed(tokens, answer)
        tokens = tokens + answer + engine.ids("\n# and then\n")
        assert ask_ids(engine, tokens, 1)[0] >= len(tokens) - len(tokens[-20:]) - 16


def ask_ids(engine: DrivenEngine, tokens: list[int], max_tokens: int) -> tuple:
    return ask(engine, None, tokens=tokens, n_prompt=len(tokens), max_tokens=max_tokens)


def test_nothing_is_shared_between_domains(engine):
    prompt = SHARED + "# whose is this\n"
    assert ask(engine, prompt, "alice")[0] == 0
    assert ask(engine, prompt, "bob")[0] == 0
    assert ask(engine, prompt, None)[0] == 0
    assert ask(engine, prompt, "alice")[0] > 100


def test_what_nobody_may_share_is_not_kept(engine):
    prompt = "# a secret of nobody's\n" + SHARED
    assert ask(engine, prompt, None)[0] == 0
    assert ask(engine, prompt, "carol")[0] == 0


def test_prompts_that_come_together_wait_for_the_one_that_computes_what_they_share(engine, oracle):
    prompts = ["# together\n" + SHARED + f"# number {i}\n" for i in range(4)]
    serials = engine.submit_together(prompts, domain=SCOPE, max_tokens=8)
    for serial in serials:
        engine.wait(serial)
    cached = [int(engine.table.cached[engine.slots[serial]]) for serial in serials]
    for serial in serials:
        oracle.assert_followed(engine.prompt_tokens(serial), engine.generated(serial))
        engine.release(serial)
    shared = len(engine.ids(prompts[0]))
    assert sorted(cached)[0] == 0 and sorted(cached)[1] > 0.9 * (shared - 10)


def test_a_follower_goes_on_when_the_one_it_waits_for_is_cancelled(engine, oracle):
    prompts = ["# one leaves\n" + 3 * SHARED + f"# number {i}\n" for i in range(2)]
    endless = m.Sampling(temperature=0.0, ignore_eos=True)
    fields = {"domain": SCOPE, "max_tokens": 8, "sampling": endless}
    first, second = engine.submit_together(prompts, **fields)
    engine.send(m.Cancel(first))
    engine.wait(second)
    oracle.assert_followed(engine.prompt_tokens(second), engine.generated(second))
    engine.wait(first)
    engine.release(first)
    engine.release(second)


def test_cells_are_counted_alone(engine):
    """After all rows have ended none is in use, whatever is kept beside the cells."""
    ask(engine, SHARED + "# the last\n")
    assert int(engine.table.header.cells_used) == 0


def test_what_is_held_and_where_a_prompt_left_it_is_told(engine):
    table = engine.table.header
    before = int(table.cache_asked), int(table.cache_hits)
    first, second = "# The time is 10:31 now\n", "# The time is 10:32 now\n"
    ask(engine, SHARED + first, "clock")
    cached, tokens, _ = ask(engine, SHARED + second, "clock")
    ask(engine, "# nobody's\n", None)
    engine.send(m.AskCache(5))
    report = engine.expect(m.CacheReport)
    assert (report.ref, report.why_off) == (5, "")
    unasked, left, new = report.prompts[:3]
    assert (unasked.domain, unasked.wanted) == (None, [])
    assert (new.prompt, new.cached, new.known, new.kept) == (len(tokens), 0, 0, [])
    assert (left.prompt, left.known, left.cached) == (len(tokens), cached, cached)
    assert left.wanted == tokens[cached : cached + len(left.wanted)]
    assert left.kept[0] != left.wanted[0]
    assert b"".join(map(engine.pieces.spelled, left.before)).endswith(b"10:3")
    assert (int(table.cache_asked), int(table.cache_hits)) == (before[0] + 2, before[1] + 1)
    assert (table.cache_entries, table.cache_bytes) == (report.entries, report.bytes)
    assert sum(of.bytes for of in report.domains) == report.bytes <= table.cache_most_bytes
    hits = [text.hits for text in report.texts]
    assert hits == sorted(hits, reverse=True) and hits[0] > 0


@pytest.mark.parametrize("kept", [1 << 16, 3 << 20])
def test_random_texts_are_right_whatever_is_kept_and_evicted(kept, oracle: Oracle):
    """Trees of texts, forks, cancels, parked rows (few cells), with room for little or much."""
    choose = random.Random(kept)
    with DrivenEngine(n_ctx=768, n_seq=4, cache_bytes=kept) as engine:
        texts = [engine.ids(SHARED)[:120], engine.ids("import os\n")]
        cached = 0
        for _ in range(25):
            rows = []
            for _ in range(choose.randint(1, 4)):
                base = choose.choice(texts)
                cut = choose.randint(1, len(base))
                new = engine.ids(f"# {choose.randint(0, 9)}\nx = ")
                tokens = (base[:cut] + new)[-400:]
                serial = engine.submit(
                    tokens=tokens, n_prompt=len(tokens), domain=choose.choice(["a", "b"]),
                    max_tokens=choose.randint(1, 40), lane=choose.randint(0, 1),
                )  # fmt: skip
                rows.append((serial, tokens))
            if choose.random() < 0.3:
                engine.send(m.Cancel(rows[0][0]))
            for serial, tokens in rows:
                engine.wait(serial)
                answer = engine.generated(serial)
                if answer:
                    oracle.assert_followed(tokens, answer)
                texts.append((tokens + answer)[:300])
                cached += int(engine.table.cached[engine.slots[serial]])
                engine.release(serial)
        assert int(engine.table.header.cells_used) == 0
        assert cached > 0 or kept < 1 << 20
        assert engine.table.header.cache_evicted_room > 0
        assert 0 < engine.table.header.cache_bytes <= kept


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["mamba-micro", "jamba-micro", "gemma3-micro"])
def test_memory_that_cannot_be_cut_is_kept_as_a_whole(tmp_path, shape):
    """Recurrent, hybrid, sliding window: a text goes on from where it ended, and is right."""
    model = str(written(shape, tmp_path / "model.gguf", "--quant", "f16"))
    oracle = Oracle(2048, model)
    choose = random.Random(7)
    with DrivenEngine(model=model, n_ctx=2048, n_seq=4) as engine:
        prompt = [300 + (7 * i) % 900 for i in range(1300)]
        cached, tokens, answer = ask_ids(engine, prompt, 10)
        for turn in range(3):
            text = tokens + answer + [choose.randint(300, 900) for _ in range(12)]
            cached, tokens, answer = ask_ids(engine, text, 10)
            assert cached >= len(text) - 12 - 1, turn
            gaps = oracle.greedy_gaps(tokens, answer)
            assert gaps.max() < 0.5, gaps
        # another text with the same beginning goes on from a state on the way, if there is one
        other = prompt[:1200] + [400 + i for i in range(40)]
        cached, tokens, answer = ask_ids(engine, other, 10)
        assert cached <= 1200
        assert oracle.greedy_gaps(tokens, answer).max() < 0.5
    oracle.close()


def test_what_is_on_disk_is_known_to_the_next_engine(tmp_path, oracle):
    prompt = SHARED + "# kept on disk\n"
    kept = {"cache_dir": str(tmp_path), "cache_disk": 1 << 30}
    with DrivenEngine(n_ctx=2048, **kept) as engine:
        _, tokens, answer = ask(engine, prompt)
        assert engine.close() == 0
    files = list(tmp_path.glob("*/*.kv"))
    assert files and not list(tmp_path.glob("*/*.part"))
    with DrivenEngine(n_ctx=2048, **kept) as engine:
        cached, again, same = ask(engine, prompt)
        assert cached == len(tokens) - 1 and again == tokens
        assert same == answer
        oracle.assert_followed(again, same)
    # with another type of keys nothing of it fits
    with DrivenEngine(n_ctx=2048, type_k="q8_0", **kept) as engine:
        assert ask(engine, prompt)[0] == 0
    damaged = next(path for path in files if path.stat().st_size > 4096)
    content = bytearray(damaged.read_bytes())
    content[-2000] ^= 1
    damaged.write_bytes(content)
    with DrivenEngine(n_ctx=2048, **kept) as engine:
        cached, again, same = ask(engine, prompt)
        assert cached < len(tokens) - 1
        oracle.assert_followed(again, same)
    assert not damaged.exists() or damaged.read_bytes() != bytes(content)


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path):
    place = tmp_path / "file"
    place.write_text("no folder")
    with DrivenEngine(n_ctx=2048, cache_dir=str(place), cache_disk=1 << 30) as engine:
        assert "not kept on disk" in engine.expect(m.Log).text
        assert ask(engine, SHARED)[2]


def test_nobody_waits_for_what_cannot_be_kept():
    """There is no room for what two prompts share: the second one computes it itself."""
    prompts = ["# no room\n" + SHARED + f"# number {i}\n" for i in range(2)]
    endless = m.Sampling(temperature=0.0, ignore_eos=True)
    with DrivenEngine(n_ctx=2048, cache_bytes=1 << 14) as engine:
        first = engine.submit(prompts[0], domain=SCOPE, max_tokens=1500, sampling=endless)
        second = engine.submit(prompts[1], domain=SCOPE, max_tokens=2)
        engine.wait(second)
        assert len(engine.generated(first)) < 1500


def test_an_idle_engine_gives_back_what_others_need(tmp_path):
    sign = tmp_path / "short"
    patch = functools.partial(memory_runs_out, sign=str(sign))
    with DrivenEngine(n_ctx=2048, patch=patch) as engine:
        ask(engine, SHARED)
        until(lambda: engine.table.header.cache_bytes > 0)
        sign.touch()
        until(lambda: engine.table.header.cache_bytes == 0)
        assert ask(engine, SHARED)[0] == 0
