"""Prompts that no cache can help with: from a seed, each of its own from its first word on."""

from __future__ import annotations

import random

WORDS = """
the a of to and in for on with from over under after before about between without within
river stone window garden letter market engine silver forest bridge candle winter harbor
number value list file line function class return string index table column record report
system server client process thread memory page cache disk network message request answer
question result error reason change version release branch people country city street house
school family friend doctor teacher student worker manager water light sound color energy
power money price cost trade company product service project small large early late open
read write find keep make take give show hold turn start build check test move carry follow
""".split()  # noqa: SIM905


class Prompts:
    """Prompts of random words; equal seeds give equal prompts in equal order.

    No two prompts begin alike: each begins with a number of 48 bits that was not used before.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._given: set[int] = set()

    def words(self, n: int) -> str:
        """A prompt of ``n`` words, the number at its beginning counted."""
        number = self._random.getrandbits(48)
        while number in self._given:
            number = self._random.getrandbits(48)
        self._given.add(number)
        return " ".join([f"{number:012x}", *self._random.choices(WORDS, k=max(0, n - 1))])
