"""States of texts that cannot be cut, beside a plain search over all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from umaserve.cache.entry import Part, common
from umaserve.cache.whole import APART, FAR, LEAST_NEW, MARK, WholeTexts, checkpoints

END = 9
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def data(size: int = 8) -> np.ndarray:
    return np.zeros(size, np.uint8)


def reach(part: Part, tokens: np.ndarray) -> bool:
    """Whether a part is what its states are, and of a text that begins so."""
    same = common(part.entry.tokens, tokens)
    if part.mark is None:
        return part.end == part.entry.p1 == same
    return part.end == part.mark.p1 <= min(same, common(part.mark.tokens, tokens))


@given(st.lists(TEXTS, max_size=10), st.lists(TEXTS, max_size=10), TEXTS)
def test_the_longest_beginning_is_found(
    marks: list[list[int]], wholes: list[list[int]], wanted: list[int]
) -> None:
    """Also where a longer state has taken the place of one that reached a mark."""
    store = WholeTexts(1 << 20)
    for text in marks:
        store.mark("a", array(text), data(), 1.0)
    for text in wholes:
        store.add("a", array(text), 0, data(), 1.0)
        store.check()
    tokens = array(wanted)
    parts = store.match("a", tokens)
    assert all(reach(part, tokens) for part in parts) and len(parts) <= 1
    ends = [len(text) for text in wholes if wanted[: len(text)] == text]
    for mark in marks:
        covered = [w for w in wholes if w[: len(mark)] == mark and len(w) <= FAR * len(mark)]
        if covered and wanted[: len(mark)] == mark:
            ends.append(len(mark))
    assert (parts[-1].end if parts else 0) == max(ends, default=0)
    assert store.match("b", tokens) == []


def test_a_longer_state_takes_the_place_of_one_that_has_a_mark() -> None:
    store = WholeTexts(1 << 20)
    text = array(list(range(100)))
    for n in (30, 60, 80):
        store.add("a", text[:n], 0, data(1000), 1.0)
    store.mark("a", text[:60], data(10), 1.0)
    assert sorted(entry.p1 for entry in store.entries("a")) == [30, 60, 60, 80]
    store.add("a", text, 0, data(1000), 1.0)
    assert sorted(entry.p1 for entry in store.entries("a")) == [30, 60, 80, 100]
    assert [(p.end, p.entry.p1) for p in store.match("a", text[:70])] == [(60, 80)]
    store.check()


def test_all_turns_of_a_chat_stay_in_reach_of_few_states() -> None:
    store = WholeTexts(1 << 20)
    text, ends = array(list(range(5000))), list(range(200, 5001, 160))
    for end in ends:
        store.mark("a", text[:end], data(1), 1.0)
        store.add("a", text[:end], 0, data(end), 1.0)
    for end in ends:
        assert store.match("a", text[:end])[0].end == end
    wholes = [entry for entry in store.entries("a") if entry.data.size > 1]
    assert sum(entry.p1 for entry in wholes) < 2 * ends[-1]


@given(st.lists(st.tuples(TEXTS, st.booleans(), st.integers(1, 400)), max_size=30))
def test_bytes_are_bounded_and_counted(puts: list[tuple[list[int], bool, int]]) -> None:
    store = WholeTexts(1000)
    for text, is_mark, size in puts:
        if is_mark:
            store.mark("a", array(text), data(size), 1.0)
        else:
            store.add("a", array(text), 0, data(size), 1.0)
        store.check()
        assert store.bytes_held <= 1000
    store.drop("a")
    assert store.bytes_held == store.count == 0 and store.domains() == []


@given(st.integers(0, 3000), st.lists(st.integers(0, 4000), max_size=30), st.integers(1, 4000))
def test_stops_are_apart_and_leave_no_long_way(known: int, ends: list[int], size: int) -> None:
    tokens = np.zeros(size, np.int32)
    tokens[[at for at in ends if at < size]] = END
    stops = checkpoints(tokens, np.array([END]), known)
    if size - known < LEAST_NEW:
        assert stops == []
        return
    assert stops == sorted(set(stops)) and all(known + APART <= at < size for at in stops)
    first = int(np.flatnonzero(tokens == END)[0]) + 1 if (tokens == END).any() else 0
    way = np.diff([max(known, first), *[at for at in stops if at > max(known, first)], size])
    assert way.size == 0 or way.max() <= 1.5 * max(512, size // 8) + 64


DISK_STEPS = st.tuples(st.integers(0, 3), TEXTS, st.booleans(), st.integers(1, 400))


@given(st.lists(DISK_STEPS, max_size=40))
def test_what_is_on_disk_too_stays_known_without_its_bytes(
    steps: list[tuple[int, list[int], bool, int]],
) -> None:
    """Found, read, written and lost files, while others evict them from memory."""
    store = WholeTexts(600)
    entries = []
    for kind, text, is_mark, size in steps:
        tokens, path = array(text), f"{is_mark} {text}"
        if kind == 0:
            put = store.mark if is_mark else lambda d, t, b, c: store.add(d, t, 0, b, c)
            entry = put("a", tokens, data(size), 1.0)
        else:
            entry = store.find(MARK + "a" if is_mark else "a", tokens, 0, 1.0)
        if entry is not None and (kind == 1 or not entry.data.size):
            entry.path = path
            entries.append(entry)
        store.check()
        for each in entries[: kind - 1 if kind > 1 else 0]:
            if kind == 2:
                store.fill(each, data(size))
            else:
                store.lose(each)
            store.check()
    for entry in [*store.entries("a")]:
        assert entry.data.size or entry.path
        assert not entry.data.size or entry.size <= 600


def test_an_entry_with_a_file_gives_up_its_bytes_first() -> None:
    store = WholeTexts(300)
    kept = store.add("a", array([1, 2]), 0, data(200), 1.0)
    assert kept is not None
    kept.path = "file"
    assert store.add("a", array([3]), 0, data(200), 1.0) is not None
    (part,) = store.match("a", array([1, 2, 5]))
    assert part.entry is kept and not kept.data.size
    store.fill(kept, data(200))
    assert kept.data.size == 200 and not store.match("a", array([3, 1]))
    store.check()
    kept.data = kept.data[:0]
    store.bytes_held -= 200
    store.lose(kept)
    assert not store.match("a", array([1, 2, 5])) and store.count == 0
