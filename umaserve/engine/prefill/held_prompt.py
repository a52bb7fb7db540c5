"""Record of a prompt that the prefill worker's context holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HeldPrompt:
    """A prompt in the worker's context: it holds [0, past), of which [0, exported) has left.

    [0, end) is computed here: all tokens but the last, whose logits the engine needs.  It is all of
    them where the first token is sampled here, which is done once.
    """

    slot: int
    serial: int
    life: int
    epoch: int
    seq: int
    end: int = 0
    past: int = 0
    exported: int = 0
    asked: bool = False  # for what the engine computed, and not there yet
    sampled: bool = False
    strictly: bool = False  # no chunk larger than asked for: one took too long
