"""Memory that cannot be cut: states are saved where the next turn will go on, and are right."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.made_models import written
from tests.support.oracle import Oracle
from tests.support.patches.engine_spies import spied_next_turns
from umaserve import llama
from umaserve.cache.whole import NEAR
from umaserve.wire import messages as m

SHAPES = ["mamba-micro", "jamba-micro", "lfm2-micro", "gemma3-micro"]
NEW = 12  # tokens of each turn


@pytest.fixture(scope="module", params=SHAPES)
def path(request, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp(request.param) / "model.gguf"
    return str(written(request.param, out, "--quant", "f16"))


@pytest.fixture(scope="module")
def end(path) -> int:
    """A token that ends a message."""
    with llama.Model.open(llama.load(), path, n_gpu_layers=0) as model:
        return int(np.flatnonzero(model.eog_mask())[0])


@pytest.fixture(scope="module")
def engine(path) -> Iterator[DrivenEngine]:
    with DrivenEngine(model=path, n_ctx=2048, n_seq=4) as engine:
        yield engine


@pytest.fixture(scope="module")
def judge(path) -> Iterator[Oracle]:
    oracle = Oracle(2048, path)
    yield oracle
    oracle.close()


def ask(engine: DrivenEngine, judge: Oracle, tokens: list[int], domain: str) -> tuple:
    """Tokens that were known, and the answer."""
    endless = m.Sampling(temperature=0.0, ignore_eos=True)
    serial = engine.submit(
        tokens=tokens, n_prompt=len(tokens), domain=domain, max_tokens=10, sampling=endless
    )
    engine.wait(serial)
    cached, answer = int(engine.table.cached[engine.slots[serial]]), engine.generated(serial)
    engine.release(serial)
    assert judge.greedy_gaps(tokens, answer).max() < 0.5
    return cached, answer


def words(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(300, 900, n).tolist()


def test_a_turn_whose_answer_is_written_otherwise_computes_what_is_new(engine, judge):
    prompt, known = words(1, 400), 0
    for turn in range(3):
        cached, _ = ask(engine, judge, prompt, "plain")
        if turn:
            assert cached >= known - NEAR
        known = len(prompt)
        prompt = prompt[: known - 4] + words(100 + turn, 80)  # without the answer's own tokens


def test_a_turn_goes_on_at_a_mark_of_the_cells_that_are_held(path, judge, tmp_path):
    """Without a copy of a whole state, and whatever the answer is written as."""
    if "mamba" in path:  # which has no marks
        return
    patch = functools.partial(spied_next_turns, path=str(tmp_path / "told"), whole=False)
    with DrivenEngine(model=path, n_ctx=2048, n_seq=4, patch=patch) as engine:
        prompt, known = words(70, 400), 0
        for turn in range(3):
            cached, _ = ask(engine, judge, prompt, "held")
            assert not turn or cached == known - NEAR
            known = len(prompt)
            prompt = prompt[: known - 4] + words(71 + turn, 80)
        assert int(engine.table.header.cells_used) == 0


def test_a_turn_goes_on_behind_the_last_message(engine, judge, end):
    system, question = [*words(2, 200), end], [*words(3, 100), end]
    prompt = system + question
    ask(engine, judge, [*prompt, *words(4, 20)], "chat")  # what a template puts there
    cached, _ = ask(engine, judge, prompt + words(5, NEW), "chat")
    assert cached == len(prompt)


def test_another_chat_has_the_first_message_in_common(engine, judge, end):
    system = [*words(6, 250), end]
    ask(engine, judge, [*system, *words(7, 100), end, *words(8, 5)], "shared")
    cached, _ = ask(engine, judge, [*system, *words(9, 100), end, *words(8, 5)], "shared")
    assert cached == len(system)
    assert ask(engine, judge, [*system, *words(9, 100)], "another")[0] == 0


def test_a_history_that_is_edited_goes_on_at_the_end_of_a_message(engine, judge, end):
    messages = [[*words(20 + n, 170), end] for n in range(6)]
    before = [token for message in messages for token in message]
    ask(engine, judge, [*before, *words(30, 5)], "edited")
    for kept in (5, 3, 2):
        history = [token for message in messages[:kept] for token in message]
        cached, _ = ask(engine, judge, [*history, *words(40 + kept, 200)], "edited")
        assert cached >= len(history) - 171, kept
        assert cached >= 0.4 * len(before) or kept < 4


def test_turns_of_a_chat_keep_one_state_of_more_than_half_of_it(engine, judge, end):
    """Marks stand for the others, but where a memory is recurrent alone, whose states are small."""
    prompt = [*words(50, 300), end]
    for turn in range(4):
        _, answer = ask(engine, judge, prompt, "turns")
        prompt = [*prompt, *answer, end, *words(51 + turn, 40), end]
    assert ask(engine, judge, prompt, "turns")[0] >= len(prompt) - 45


def submitted(engine: DrivenEngine, tokens: list[int], domain: str) -> int:
    endless = m.Sampling(temperature=0.0, ignore_eos=True)
    return engine.submit(
        tokens=tokens, n_prompt=len(tokens), domain=domain, max_tokens=10, sampling=endless
    )


def test_a_turn_that_continues_the_last_computes_only_what_is_new(engine, judge):
    """The answer's last token was never fed."""
    prompt, known = words(60, 300), 0
    for turn in range(3):
        cached, answer = ask(engine, judge, prompt, "goes on")
        assert cached == known
        known = len(prompt) + len(answer) - 1
        prompt = [*prompt, *answer, *words(61 + turn, 40)]


def test_both_branches_of_a_chat_have_what_they_share(engine, judge, end):
    """The first goes on in the cells of the turn before, and the other is restored."""
    prompt = [*words(70, 300), end, *words(8, 5)]
    _, answer = ask(engine, judge, prompt, "branches")
    for seed in (71, 72):
        cached, _ = ask(engine, judge, [*prompt, *answer, *words(seed, 40)], "branches")
        assert cached >= len(prompt) - NEAR
    again, _ = ask(engine, judge, prompt, "branches")
    assert again >= len(prompt) - NEAR


def test_chats_that_come_at_once_wait_for_the_message_that_they_share(engine, judge, end):
    system = [*words(80, 300), end]
    prompts = [[*system, *words(81 + n, 100), end, *words(8, 5)] for n in range(3)]
    serials = [submitted(engine, prompt, "at once") for prompt in prompts]
    cached = []
    for serial, prompt in zip(serials, prompts, strict=True):
        engine.wait(serial)
        assert judge.greedy_gaps(prompt, engine.generated(serial)).max() < 0.5
        cached.append(int(engine.table.cached[engine.slots[serial]]))
        engine.release(serial)
    assert cached == [0, len(system), len(system)]


def test_states_and_marks_on_disk_are_known_to_the_next_engine(path, judge, end, tmp_path):
    kept = {"cache_dir": str(tmp_path), "cache_disk": 1 << 30}
    first, second, tail = [*words(90, 700), end], [*words(91, 300), end], words(8, 5)
    prompt = first + second + tail
    with DrivenEngine(model=path, n_ctx=2048, n_seq=4, **kept) as engine:
        _, answer = ask(engine, judge, prompt, "disk")
        assert engine.close() == 0
    files = list(tmp_path.glob("*/*.kv"))
    assert files and not list(tmp_path.glob("*/*.part"))
    with DrivenEngine(model=path, n_ctx=2048, n_seq=4, **kept) as engine:
        assert ask(engine, judge, prompt, "another")[0] == 0
        again = ask(engine, judge, prompt, "disk")
        assert again == (len(prompt) - len(tail), answer)
        assert ask(engine, judge, [*prompt, *answer, *words(92, 40)], "disk")[0] > len(prompt)
        assert ask(engine, judge, [*first, *words(93, 200)], "disk")[0] == len(first)
    for file in files:
        content = bytearray(file.read_bytes())
        content[-2000] ^= 1
        file.write_bytes(content)
    with DrivenEngine(model=path, n_ctx=2048, n_seq=4, **kept) as engine:
        assert ask(engine, judge, prompt, "disk")[0] < len(prompt) - len(tail)
