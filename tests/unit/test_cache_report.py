"""What the daemon's own user is told of the prefix cache, and the hints."""

from __future__ import annotations

import numpy as np
import pytest

from umaserve.cache.tree import PrefixTree
from umaserve.cache.whole import WholeTexts
from umaserve.cli.cache import summary, why
from umaserve.engine.prefixes.report import PROMPTS, TEXTS, PrefixReport
from umaserve.server.figures.cache_report import (
    CLOCK_HINT,
    REMINDER_HINT,
    TOOL_HINT,
    cache_report,
    hint,
)
from umaserve.wire import messages as m
from umaserve.wire.header import Header

CLOCK = ("You help. It is ", "10:31 now.", "10:32 now.")


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def spelled(token: int) -> bytes:
    return bytes([token])


def keep(tree: PrefixTree, text: str, domain: str = "") -> None:
    tokens = ids(text)
    parts = tree.match(domain, tokens)
    p0 = parts[-1].end if parts else 0
    assert tree.add(domain, tokens, p0, np.zeros(100, np.uint8), 1.0)


def read(report: PrefixReport) -> dict:
    """As it arrives, over the control socket."""
    (message,) = m.Channel("front").feed(m.encode(report.message(7)))
    assert isinstance(message, m.CacheReport) and message.ref == 7
    return cache_report(message, spelled, lambda serial: f"app {serial}")


@pytest.fixture
def tree() -> PrefixTree:
    return PrefixTree(10_000)


@pytest.fixture
def report(tree: PrefixTree) -> PrefixReport:
    return PrefixReport(tree, "", Header.fresh())


def test_what_is_held_and_for_whom(tree: PrefixTree, report: PrefixReport) -> None:
    keep(tree, "one text")
    keep(tree, "one text and more")
    keep(tree, "another", "ci")
    keep(tree, "a secret", f"ci{m.PRIVATE}s1")
    (entry,) = (part.entry for part in tree.match("ci", ids("another")))
    entry.path, entry.n_bytes = "a file", 100
    found = read(report)
    assert (found["on"], found["entries"]) == (True, 4)
    assert {of["key"]: of["disk_bytes"] for of in found["domains"] if not of["session"]} == {
        "": 0, "ci": 100,
    }  # fmt: skip
    assert found["ram_bytes"] == tree.bytes_held and found["ram_max_bytes"] == 10_000
    domains = {(of["key"], of["session"]): of for of in found["domains"]}
    assert {whose: (of["entries"], of["tokens"]) for whose, of in domains.items()} == {
        ("", None): (2, 17), ("ci", None): (1, 7), ("ci", "s1"): (1, 8),
    }  # fmt: skip
    assert sum(of["ram_bytes"] for of in domains.values()) == tree.bytes_held
    texts = {text["tokens"]: text["begins"] for text in found["texts"]}
    assert texts == {17: "one text and", 7: "another", 8: ""}  # of what is private, no word
    assert summary(found) == "4 entries take 0.0 MB of 0.0 MB at most"


def test_the_most_used_texts_come_first(tree: PrefixTree, report: PrefixReport) -> None:
    keep(tree, "system: ")
    for number in range(2 * TEXTS):
        keep(tree, f"system: {number:02} says")
    for part in tree.match("", ids("system: ")):
        part.entry.hits += 5
    texts = read(report)["texts"]
    assert len(texts) == TEXTS
    assert (texts[0]["tokens"], texts[0]["hits"]) == (8, 5)
    assert {(text["tokens"], text["hits"]) for text in texts[1:]} == {(15, 0)}


def test_where_a_prompt_left_the_tree(tree: PrefixTree, report: PrefixReport) -> None:
    before, kept, wanted = CLOCK
    keep(tree, before + kept)
    report.note(3, "", ids(before + wanted), 0)
    (prompt,) = read(report)["prompts"]
    assert (prompt["app"], prompt["key"], prompt["session"]) == ("app 3", "", None)
    assert (prompt["cached_tokens"], prompt["prompt_tokens"]) == (0, 26)
    assert (prompt["known_tokens"], prompt["hint"]) == (20, CLOCK_HINT)
    place = {"before": ". It is 10:3", "kept": "1 now.", "wanted": "2 now."}
    assert prompt["place"] == place
    assert why(prompt) == [
        "left what is kept at token 20, behind “. It is 10:3”",
        "  prompt: “2 now.”", "  cache:  “1 now.”",
        "the rest of these could not be copied, or is computed as fast",
        f"hint: {CLOCK_HINT}",
    ]  # fmt: skip


def test_the_kept_text_goes_on_over_entries(tree: PrefixTree, report: PrefixReport) -> None:
    keep(tree, "abc")
    keep(tree, "abcdef")
    keep(tree, "abcdefghi")
    report.note(1, "", ids("abXYZ"), 0)
    place = read(report)["prompts"][0]["place"]
    assert place == {"before": "ab", "kept": "cdefghi", "wanted": "XYZ"}


def test_a_prompt_that_only_goes_on_has_nothing_beside_it(
    tree: PrefixTree, report: PrefixReport
) -> None:
    keep(tree, "a chat of many turns")
    report.note(1, "", ids("a chat of many turns, one longer"), 20)
    report.note(2, "", ids("a chat of many turns"), 19)
    whole, longer = read(report)["prompts"]
    assert longer["place"]["kept"] == "" and longer["known_tokens"] == 20
    assert why(longer) == ["known up to token 20, “f many turns”; goes on with “, one longer”"]
    assert whole["place"] is None and why(whole) == ["all of it was known"]


def test_of_private_prompts_and_of_those_that_asked_for_nothing_no_text_is_told(
    tree: PrefixTree, report: PrefixReport
) -> None:
    secret = f"{m.PRIVATE}mine"
    keep(tree, "the secret plan", secret)
    report.note(1, secret, ids("the secret plot"), 0)
    report.note(2, None, ids("the secret plot"), 0)
    found = read(report)
    assert "secret" not in repr(found)
    unasked, private = found["prompts"]
    assert private["session"] == "mine" and private["known_tokens"] == 13
    assert why(private)[0] == "private: 13 tokens were known"
    assert unasked["asked"] is False and why(unasked) == ["its program wanted none of it"]


def test_one_domain_is_not_told_what_stands_in_another(
    tree: PrefixTree, report: PrefixReport
) -> None:
    keep(tree, "shared beginning: alice", "alice")
    report.note(1, "bob", ids("shared beginning: bob"), 0)
    (prompt,) = read(report)["prompts"]
    assert prompt["known_tokens"] == 0 and prompt["place"]["kept"] == ""
    assert why(prompt) == ["nothing that is kept begins with “shared begin”"]


def test_only_the_newest_prompts_are_told_of(report: PrefixReport) -> None:
    for serial in range(PROMPTS + 5):
        report.note(serial, "", ids("x"), 0)
    apps = [prompt["app"] for prompt in read(report)["prompts"]]
    assert apps == [f"app {serial}" for serial in range(PROMPTS + 4, 4, -1)]


def test_whole_texts_are_told_of_too() -> None:
    store = WholeTexts(10_000)
    for text, domain in (("You help. It is 10:31 now.", ""), ("You", ""), ("other", "ci")):
        assert store.add(domain, ids(text), 0, np.zeros(100, np.uint8), 1.0)
    report = PrefixReport(store, "", Header.fresh())
    report.note(1, "", ids("You help. It is 10:32 now."), 3)
    found = read(report)
    assert [(of["key"], of["entries"], of["tokens"]) for of in found["domains"]] == [
        ("", 2, 29), ("ci", 1, 5),
    ]  # fmt: skip
    assert found["entries"] == 3 and found["ram_bytes"] == store.bytes_held
    assert sorted(text["begins"] for text in found["texts"]) == ["You", "You help. It", "other"]
    (prompt,) = found["prompts"]
    assert (prompt["known_tokens"], prompt["cached_tokens"]) == (20, 3)
    assert prompt["hint"] == CLOCK_HINT and "could not be copied" in why(prompt)[-2]
    store.most_bytes = 0
    store.shrink()
    store.check()
    assert read(report)["domains"] == [] and sum(store.evictions.values()) == 3


def test_a_cache_that_is_off_says_why() -> None:
    found = read(PrefixReport(PrefixTree(0), "the model keeps a recurrent state", Header.fresh()))
    assert (found["on"], found["entries"]) == (False, 0)
    assert summary(found) == "nothing is kept of prompts: the model keeps a recurrent state"


@pytest.mark.parametrize(
    ("before", "kept", "wanted"),
    [
        CLOCK,
        ("It is 10:3", "1 now", "2 now"),
        ("Today: 2026-11-2", "6. Be", "7. Be"),
        ("Today is ", "Monday, the", "Tuesday, the"),
        ("Date:", " 26 Nov 2026", " 27 Nov 2026"),
        ("Date: Nov 2", "6, 2026", "7, 2026"),
    ],
)
def test_a_clock_in_the_prompt_is_named(before: str, kept: str, wanted: str) -> None:
    assert hint(before, kept, wanted) == CLOCK_HINT


@pytest.mark.parametrize(
    ("before", "kept", "wanted", "said"),
    [
        ('{"type": "function", "function": {"name": "', 'read", "d', 'write", ', TOOL_HINT),
        ('"function":{"name":"get_', 'time","par', 'weather","', TOOL_HINT),
        ("fix it\n", "<system-reminder>\nUse", "<|im_end|>\n", REMINDER_HINT),
        ("fix it\n<", "/b> and so", "system-reminder>", REMINDER_HINT),
        # what is not clear: other words, numbers, calls of tools, the same reminder
        ("Write about ", "cats", "dogs", ""),
        ("Add 1", "7 to it", "8 to it", ""),
        ('{"name": "', 'read", "arguments"', 'write", "arguments"', ""),
        ("<system-reminder>", " Use a", " Use b", ""),
        ("The meeting at 10:30 ", "is over", "was short", ""),
        ("It is ", "10:31 now", "late now", ""),
        ("It is ", "", "10:32 now", ""),
    ],
)
def test_hints_are_given_only_where_it_is_clear(
    before: str, kept: str, wanted: str, said: str
) -> None:
    assert hint(before, kept, wanted) == said
