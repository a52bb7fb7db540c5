"""A chat's next turn goes on in the cells of the turn before, and is right.

What an answer should be is judged as in `test_engine_prefixes`.
"""

from __future__ import annotations

import functools
import json
import random

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.oracle import Oracle
from tests.support.patches.engine_spies import spied_next_turns
from tests.support.waiting import until
from umaserve.wire import messages as m

SHARED = "".join(f"def function_{i}(value):\n    return value + {i}\n\n\n" for i in range(12))
ENDLESS = m.Sampling(temperature=0.0, ignore_eos=True)
TURN = "\n# and then\nx = "


class Chat:
    """One conversation, by tokens."""

    def __init__(self, engine: DrivenEngine, text: str, domain: str | None = "a", lane: int = 0):
        self.engine, self.domain, self.lane = engine, domain, lane
        self.tokens = engine.ids(text)
        self.new = len(self.tokens)
        self.cached = 0

    def ask(self, max_tokens: int = 16, **more) -> None:
        self.serial = self.engine.submit(
            tokens=self.tokens, n_prompt=len(self.tokens), domain=self.domain, lane=self.lane,
            max_tokens=max_tokens, sampling=ENDLESS, **more,
        )  # fmt: skip

    def hear(self, oracle: Oracle, more: str = TURN) -> None:
        """The answer, and what is said next."""
        engine, serial = self.engine, self.serial
        engine.wait(serial)
        answer = engine.generated(serial)
        self.cached = int(engine.table.cached[engine.slots[serial]])
        if answer:
            oracle.assert_followed(self.tokens, answer)
        engine.release(serial)
        new = engine.ids(more)
        self.tokens, self.new = self.tokens + answer + new, len(new)


def told(path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def path(tmp_path):
    return tmp_path / "told"


def patched(path, **more):
    return functools.partial(spied_next_turns, path=str(path), **more)


def test_agents_go_on_in_their_own_cells(path, oracle):
    """Their answers lie scattered among each other's; each has its own turn, and nothing twice."""
    with DrivenEngine(n_ctx=2048, n_seq=4, patch=patched(path)) as engine:
        chats = [Chat(engine, SHARED + f"# agent {i}\n" + f"a = {i}\n" * 30) for i in range(3)]
        for turn in range(4):
            for chat in chats:
                chat.ask(16 + turn)
            for chat in chats:
                known = len(chat.tokens) - chat.new
                chat.hear(oracle)
                if turn:
                    # the last token of an answer was never fed
                    assert chat.cached >= known - 1, turn
        assert int(engine.table.header.cells_used) == 0
    ons = [each for each in told(path) if each[0] == "on"]
    assert len(ons) == 9 and all(done for _, _, done, _ in ons)


def test_what_is_copied_nowhere_is_there_all_the_same(path, oracle):
    """The cache has no room: only the cells know the turn before."""
    with DrivenEngine(n_ctx=2048, n_seq=4, cache_bytes=1, patch=patched(path)) as engine:
        chat = Chat(engine, SHARED)
        for turn in range(3):
            known = len(chat.tokens) - chat.new
            chat.ask()
            chat.hear(oracle)
            assert chat.cached == (known - 1 if turn else 0)


def test_nobody_else_goes_on_there(path, oracle):
    with DrivenEngine(n_ctx=2048, n_seq=4, cache_bytes=1, patch=patched(path)) as engine:
        whose = Chat(engine, SHARED)
        whose.ask()
        whose.hear(oracle)
        for domain in ("b", "a\0session", None):
            other = Chat(engine, "", domain)
            other.tokens = list(whose.tokens)
            other.ask()
            other.hear(oracle)
            assert other.cached == 0
        # with the same system prompt and another question it is another chat
        other = Chat(engine, SHARED[:-200] + "class Other:\n" * 12)
        other.ask()
        other.hear(oracle)
        assert other.cached == 0 and not [each for each in told(path) if each[0] == "on"]
        whose.ask()
        whose.hear(oracle)
        assert whose.cached > 100


def test_a_pause_that_is_used_to_make_a_graph_ready_leaves_the_cells_alone(path, oracle):
    with DrivenEngine(
        n_ctx=2048, n_seq=4, cache_bytes=1, patch=patched(path, graph=True)
    ) as engine:
        chat = Chat(engine, SHARED)
        for turn in range(4):
            known = len(chat.tokens) - chat.new
            chat.ask()
            chat.hear(oracle, more="\n# so\n")
            assert chat.cached == (known - 1 if turn else 0)
            # a long prompt wants no graph
            until(lambda n=turn: told(path).count(["graph", True]) >= n)


@pytest.mark.parametrize("seed", range(2))
def test_random_chats_are_right_while_cells_run_short(path, oracle: Oracle, seed):
    """Turns, forks, cancels, parked rows, two domains; what is held gives way to who runs."""
    choose = random.Random(seed)
    with DrivenEngine(n_ctx=768, n_seq=4, patch=patched(path)) as engine:
        chats = [Chat(engine, SHARED[: choose.randint(200, 500)], d) for d in "aabb"]
        for _ in range(14):
            asked = choose.sample(chats, choose.randint(1, 4))
            for chat in asked:
                chat.lane = choose.randint(0, 1)
                if len(chat.tokens) > 350:
                    chat.tokens = chat.tokens[: choose.randint(60, 200)]
                elif choose.random() < 0.2:  # a fork, or the answer is written otherwise
                    chat.tokens = chat.tokens[: -choose.randint(20, 40)] or chat.tokens
                chat.ask(choose.randint(1, 60))
            if choose.random() < 0.3:
                engine.send(m.Cancel(asked[0].serial))
            for chat in asked:
                chat.hear(oracle, f"\n# {choose.randint(0, 9)}\nx = ")
        assert int(engine.table.header.cells_used) == 0
    kinds = [each[0] for each in told(path)]
    assert kinds.count("on") > 5 and kinds.count("let go") > 0


LONG = SHARED * 4  # more than one piece


def test_a_text_that_ends_beside_a_stream_is_there_for_a_prompt_that_shares_it(path, oracle):
    with DrivenEngine(n_ctx=4096, n_seq=4, patch=patched(path, late="never")) as engine:
        first, other = (Chat(engine, LONG + end) for end in ("# one\n" * 30, "# another\n" * 30))
        for chat in (first, other):
            chat.ask()
            chat.hear(oracle)
            assert told(path)[-1][0] == "later"
        assert other.cached >= len(engine.ids(LONG)) - 1


@pytest.mark.parametrize("dear", [False, True])
def test_a_text_whose_cells_others_need_is_kept_where_copies_are_cheap(path, oracle, dear):
    """Where they are dear, a copy of all of it would delay the row that needs the cells."""
    patch = patched(path, late="never", dear=dear)
    with DrivenEngine(n_ctx=2048, n_seq=4, patch=patch) as engine:
        chats = [Chat(engine, f"# chat {i}\n{LONG}") for i in range(3)]
        for chat in chats:
            chat.ask()
            chat.hear(oracle)
        assert "let go" in [each[0] for each in told(path)]
        chats[0].ask()
        chats[0].hear(oracle)
        known = chats[0].cached
        assert known == 0 if dear else known >= len(chats[0].tokens) - 40


def test_all_of_a_late_text_is_kept_once_nobody_asks_any_more(path):
    with DrivenEngine(n_ctx=4096, n_seq=4, patch=patched(path, late="beside")) as engine:
        chat = Chat(engine, LONG)
        chat.ask(max_tokens=1)
        engine.wait(chat.serial)
        until(lambda: told(path) == [["later", len(chat.tokens)]])
        pieces = -(-len(chat.tokens) // 512)
        until(lambda: engine.table.header.cache_entries == pieces)


def test_no_request_waits_until_a_text_is_saved(path):
    """An editor asks for the next completion before a text of the last one is saved in a pause."""
    with DrivenEngine(n_ctx=4096, n_seq=4, patch=patched(path, dear=True)) as engine:
        chat, entries = Chat(engine, LONG), []
        for _ in range(4):
            chat.ask(max_tokens=4)
            engine.wait(chat.serial)
            chat.tokens += engine.generated(chat.serial) + engine.ids(TURN)
            entries.append(int(engine.table.header.cache_entries))
            engine.release(chat.serial)
        assert entries == [0] * 4
        assert [each[0] for each in told(path)].count("on") == 3
        until(lambda: engine.table.header.cache_entries > 0)
