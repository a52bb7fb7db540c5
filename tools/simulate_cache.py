"""What a lease in the prefix cache is worth: programs that share one cache, simulated.

    python -m tools.simulate_cache
    python -m tools.simulate_cache --cells 16000,32000 --leases 1,4 --flood interactive

Three chats name a session and pause for a minute or two between turns.  After each turn a title of
the same session is asked for in the background.  An editor completes at a cursor that moves, an
agent takes turns in the background, and an evaluation sends prompts that never come again.  Printed
are the tokens that a request of each computes in the mean.  Only the tree is real: no model runs.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
from collections.abc import Callable

import numpy as np

from umaserve.cache.tree import PrefixTree

PIECE, CELL_BYTES = 128, 1 << 16  # tokens of an entry, and bytes of a token
QUADRATIC = 8000  # tokens before a token, which make it twice as dear
SYSTEM, LONGEST = 1500, 8000
Event = Callable[[float], None]


class Cache:
    """A tree of ``cells`` tokens, filled as the engine does."""

    def __init__(self, cells: int, lease: float) -> None:
        self._tree, self._lease = PrefixTree(cells * (CELL_BYTES + 4)), lease
        self.computed: dict[str, list[int]] = {}

    def ask(self, who: str, prompt: list[int], answer: list[int], **of: bool) -> None:
        """``of``: whether it is in ``background``, and whether it names a ``session``."""
        lease = self._lease if of["session"] else 1.0
        lease /= self._lease if of["background"] else 1.0
        text = np.array(prompt + answer, np.int32)
        parts = self._tree.match("", text[: len(prompt) - 1])
        self._tree.use(parts, lease)
        known = parts[-1].end if parts else 0
        self.computed.setdefault(who, []).append(len(prompt) - known)
        while True:
            parts = self._tree.match("", text)
            p0 = parts[-1].end if parts else 0
            p1 = min(p0 + PIECE, text.size)
            data = np.broadcast_to(np.uint8(0), (p1 - p0) * CELL_BYTES)
            cost = (p1 - p0) * (1.0 + (p0 + p1) / 2 / QUADRATIC)
            if p0 == p1 or not self._tree.add("", text[:p1], p0, data, cost, lease):
                return


class Programs:
    """Who asks, and when; ``flood``: whether the evaluation is in the background."""

    def __init__(self, cache: Cache, seed: int, flood: bool) -> None:
        self._cache, self._random, self._flood = cache, random.Random(seed), flood
        self._next, self._order = itertools.count(), itertools.count()
        self._events: list[tuple[float, int, Event]] = []
        self._system = self._ids(SYSTEM)

    def play(self, seconds: float) -> None:
        for _ in range(3):
            self._at(60.0 * self._random.random(), self._chat(self._system + self._ids(200)))
        self._at(1.0, self._editor(self._ids(SYSTEM)))
        self._at(2.0, self._evaluation)
        self._at(3.0, self._agent(self._ids(2500)))
        while self._events[0][0] < seconds:
            now, _, event = heapq.heappop(self._events)
            event(now)

    def _ids(self, n: int) -> list[int]:
        return list(itertools.islice(self._next, n))

    def _at(self, time: float, event: Event) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _chat(self, past: list[int]) -> Event:
        def turn(now: float) -> None:
            answer = self._ids(300)
            past.extend(self._ids(150))
            self._cache.ask("chat", past, answer, background=False, session=True)
            past.extend(answer)
            self._at(now + 5.0, title)
            if len(past) > LONGEST:
                past[SYSTEM:] = self._ids(400)
            self._at(now + 10.0 + self._random.expovariate(1 / 90.0), turn)

        def title(_: float) -> None:
            wish = past + self._ids(40)
            self._cache.ask("title", wish, self._ids(20), background=True, session=True)

        return turn

    def _editor(self, file: list[int]) -> Event:
        def complete(now: float) -> None:
            file.extend(self._ids(10))
            self._cache.ask("editor", file, self._ids(16), background=False, session=False)
            if len(file) > 2 * SYSTEM:
                file[:] = self._ids(SYSTEM)
            self._at(now + 1.0 + self._random.expovariate(1 / 6.0), complete)

        return complete

    def _evaluation(self, now: float) -> None:
        prompt, answer = self._ids(1000), self._ids(200)
        self._cache.ask("evaluation", prompt, answer, background=self._flood, session=False)
        self._at(now + 4.0, self._evaluation)

    def _agent(self, past: list[int]) -> Event:
        def turn(now: float) -> None:
            answer = self._ids(80)
            past.extend(self._ids(500))
            self._cache.ask("agent", past, answer, background=True, session=True)
            past.extend(answer)
            if len(past) > 2 * LONGEST:
                past[2500:] = []
            self._at(now + 8.0, turn)

        return turn


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default="32000,64000", help="tokens that the cache holds")
    parser.add_argument("--leases", default="1,2,4,8", help="1 = none")
    parser.add_argument("--flood", choices=["background", "interactive"], default="background")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for cells in map(int, options.cells.split(",")):
        for lease in map(float, options.leases.split(",")):
            cache = Cache(cells, lease)
            flood = options.flood == "background"
            Programs(cache, options.seed, flood).play(60.0 * options.minutes)
            means = {who: round(sum(all_) / len(all_)) for who, all_ in cache.computed.items()}
            print(f"{cells} cells, lease {lease:g}:", *(f"{w} {n}" for w, n in means.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
