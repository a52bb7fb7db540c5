"""A tripwire: what one has asked never shows in what another gets, whatever is kept of prompts.

Each client's text has two markers.  One is a word in letters that nobody else has: no frame of
another may hold it.  The other is a token, repeated: the model goes on with the token that its
text repeats, among those of all clients, so keys and values of another's text would show in the
answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.gateway import post
from tests.support.http_client import port_of
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess, RawClient, Result

CLIENTS, KEYS = 32, 16
KEPT = 3 << 20  # bytes, of about three times as many that all texts take
REPEATS = 30  # of a token
COMMON = "def common(path, mode):\n    with open(path, mode) as file:\n        return file.read()\n"
WORDS = """
argument direct element stream operator inspect bytearray distribution globals columns underlying
according representing entries compatibility similar failed lowercase priority writer platforms
implementations replacement permission unavailable factory container sequence attribute exception
boolean iterator timeout encoding subclass separator directory characters keyword variable position
interface function document default returns another string module object number method current
process message version package address section context header
"""  # of a token each, the most of them
SECRETS = {name: f"{name}-secret-0123456789" for name in ("alice", "bob")}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("daemon")
    keys = folder / "keys"
    keys.write_text("".join(f"{name} {key}\n" for name, key in SECRETS.items()))
    keys.chmod(0o600)
    with real(folder, cache_ram=KEPT, http="127.0.0.1:0", api_key_file=str(keys)) as daemon:
        yield daemon


@dataclass
class Asker:
    """One client: who it is for the cache, its markers, and all that it has been told."""

    number: int
    client: RawClient
    word: str
    token: int
    bias: list[list[float]]
    common: list[int]
    own: list[int]  # the ids of its word
    count: int = 0

    @property
    def whose(self) -> dict[str, Any]:
        """The first ones share with their API key, the others keep to their session."""
        fields: dict[str, Any] = {"key": f"key {self.number % KEYS}"}
        if self.number >= KEYS:
            fields |= {"cache_scope": "private", "session": f"session {self.number}"}
        return fields

    def text(self, kind: str) -> list[int]:
        """Token ids: with what all have in front, or with what nobody else has."""
        head = self.common + self.own if kind == "common" else self.own + self.common
        return head + REPEATS * [self.token]

    def ask(self, tokens: list[int], **fields: Any) -> str:
        self.count += 1
        id = f"{self.word} {self.count}"
        self.client.results[id] = Result()
        given = {
            "max_tokens": 6, "temperature": 0.0, "logit_bias": self.bias, "echo": True,
            "begin": True, "app": self.word, "metadata": self.word, **self.whose,
        }  # fmt: skip
        self.client.send(id=id, tokens=tokens, **{**given, **fields})
        return id

    def result(self, id: str) -> Result:
        return self.client.finish(id)[0]

    def cached(self, tokens: list[int]) -> int:
        eos = self.result(self.ask(tokens)).eos
        assert eos is not None
        return int(eos["usage"]["cached_tokens"])

    def told(self) -> str:
        """Everything that came, as text."""
        results = [vars(result) for result in self.client.results.values()]
        return json.dumps([self.client.other, results])


@pytest.fixture(scope="module")
def askers(daemon: DaemonProcess) -> Iterator[list[Asker]]:
    choose = random.Random(31)
    with daemon.client() as admin:

        def ids(text: str) -> list[int]:
            admin.send(type="tokenize", text=text)
            return list(admin.answer("tokens")["tokens"])

        candidates = [found[0] for word in WORDS.split() if len(found := ids(f" {word}")) == 1]
        bias = [[token, 100.0] for token in candidates]
        common, found = ids(COMMON), []
        for number in range(CLIENTS):
            word = "".join(choose.choices("bcdfghjklmnpqrstvwxz", k=10))
            asker = Asker(number, daemon.client(), word, 0, bias, common, ids(f"# {word}, mine\n"))
            while not goes_on(asker):
                asker.token = candidates.pop()
            found.append(asker)
        yield found
        for asker in found:
            asker.client.socket.close()


def goes_on(asker: Asker) -> bool:
    """Whether the model goes on with the token that its texts repeat; nothing of these is kept."""
    return asker.token > 0 and all(
        set(asker.result(asker.ask(asker.text(kind), cache_prompt=False)).tokens) == {asker.token}
        for kind in ("common", "own")
    )


def test_no_answer_error_or_header_shows_what_another_has_asked(
    daemon: DaemonProcess, askers: list[Asker]
) -> None:
    choose = random.Random(32)
    for asker in askers:  # the beginning that all have is not shared either
        assert asker.cached(asker.text("common")) == 0
    cached = 0
    for _ in range(4):
        asked = [(asker, asker.ask(asker.text("common"))) for asker in askers]
        for asker in choose.sample(askers, 8):
            asker.client.send(type="cancel", id=asker.ask(asker.text("own"), max_tokens=200))
            asker.ask(asker.text("own"), max_tokens=10**5)
            asker.ask(asker.text("own"), temperature=asker.word)
        for asker, id in asked:
            result = asker.result(id)
            assert result.eos is not None, result
            assert set(result.tokens) == {asker.token}
            usage = result.eos["usage"]
            assert usage["cached_tokens"] < usage["prompt_tokens"]
            cached += usage["cached_tokens"]
        for asker in askers:
            asker.client.finish()
    counts = daemon.metrics()
    assert cached > 0 and counts["cache_evictions_total"]["room"] > 0
    assert 0 < counts["cache_ram_bytes"] <= KEPT == counts["cache_ram_max_bytes"]
    for asker in askers:
        told = asker.told()
        assert told.count(asker.word) > 8
        assert not [other.word for other in askers if other is not asker and other.word in told]


@pytest.mark.parametrize("apart", [1, KEYS])
def test_a_text_that_only_another_knows_is_computed(askers: list[Asker], apart: int) -> None:
    """Of another key, of the same key in another session, and of other sessions."""
    choose = random.Random(apart)
    for number in (0, 5, 10, KEYS, KEYS + 5):
        first, second = askers[number], askers[(number + apart) % CLIENTS]
        for one, other in ((first, second), (second, first)):
            text = [*choose.choices(range(300, 900), k=12), *one.text("own")]
            assert one.cached(text) == 0
            assert one.cached(text) == len(text) - 1
            assert other.cached(text) == 0


def test_over_http_keys_share_nothing(daemon: DaemonProcess) -> None:
    def ask(name: str) -> tuple[int, int]:
        body = {"prompt": f"# whose is it\n{COMMON}", "max_tokens": 3}
        key = {"Authorization": f"Bearer {SECRETS[name]}"}
        reply = post(port_of(daemon), "/v1/completions", body, **key)
        cached, prompt = map(int, reply.headers["x-uma-cache"].split("/"))
        assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        return cached, prompt

    first, again, other = ask("alice"), ask("alice"), ask("bob")
    assert first[0] == other[0] == 0 and again[0] == again[1] - 1
    with daemon.client() as client:
        client.ask("a", f"# whose is it\n{COMMON}", max_tokens=3)
        eos = client.finish("a")[0].eos
        assert eos is not None and eos["usage"]["cached_tokens"] == 0


def test_the_own_user_is_told_what_is_kept_and_where_prompts_left_it(
    daemon: DaemonProcess, askers: list[Asker]
) -> None:
    with daemon.client() as client:
        for minute in (31, 32):
            client.ask(f"{minute}", f"{COMMON}# It is 10:{minute} now\n", app="clock", max_tokens=3)
            client.finish()
        askers[KEYS].cached(askers[KEYS].text("own"))
        client.send(type="cache")
        cache = client.answer("cache")["cache"]
    private, late, early = cache["prompts"][:3]
    assert cache["on"] and cache["ram_bytes"] <= cache["ram_max_bytes"] == KEPT
    assert (private["app"], private["key"]) == (askers[KEYS].word, "key 0")
    assert private["session"] == f"session {KEYS}" and private["place"] is None
    assert (late["app"], late["key"], late["session"]) == ("clock", "", None)
    assert late["cached_tokens"] == late["known_tokens"] > early["cached_tokens"]
    assert late["place"]["before"].endswith("10:3")
    assert late["place"]["kept"].startswith("1 now")
    assert late["place"]["wanted"].startswith("2 now")
    assert "time or date" in late["hint"] and not early["hint"]
    told = json.dumps(cache)
    sessions = [asker for asker in askers[KEYS:] if f"session {asker.number}" in told]
    assert sessions and not [a for a in sessions if a.word in json.dumps(cache["texts"])]
