"""How ``llama_decode`` behaves on this device, as the first ticks found it.

Nothing here asks for the device's name.  What is switched on by it: `umaserve.engine.loop.engine`.
"""

from __future__ import annotations

from dataclasses import dataclass

# of a tick's time inside libllama, spent after llama_decode has returned; on a processor it is a
# microsecond
EARLY = 0.05


@dataclass(frozen=True)
class Ways:
    """The plain way, as far as nothing else was measured.

    ``overlaps``: ``llama_decode`` returns before the work is done, so something else can be done
    meanwhile.  ``abortable``: a running graph can be given up.
    """

    overlaps: bool = False
    abortable: bool = False

    @classmethod
    def of(cls, waited: float, asked: int, n_layer: int) -> Ways:
        """``waited``: share of a tick's time inside libllama after ``llama_decode`` has returned.

        ``asked``: how often libllama asked in it whether the graph is to go on.  It asks for what
        the processor computes; beside another device that is little more than the embedding.
        """
        overlaps = waited >= EARLY
        return cls(overlaps=bool(overlaps), abortable=bool(asked >= n_layer and not overlaps))
