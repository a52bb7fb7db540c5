"""Models and ticks for the budget of bytes."""

from __future__ import annotations

import numpy as np

from umaserve.llama.traffic import Traffic
from umaserve.policy.bytes import bandwidth as bw
from umaserve.policy.bytes.bandwidth import Budget

DENSE = Traffic(
    dense=380e6, head=145e6, embedding=952.0, expert=0.0, n_expert=0.0, n_expert_used=0.0,
    kv_cell=12288.0, kv_exact=1.0, mask_cell=50.0, activation=2.2e6, logits=607744.0,
    n_ubatch=512.0,
)  # fmt: skip


# Qwen3-30B-A3B at 8 bits: 128 experts of which 8 are used
MOE = DENSE._replace(
    dense=1.0e9, head=331e6, expert=240e6, n_expert=128.0, n_expert_used=8.0, kv_cell=98304.0
)


def feed(budget: Budget, bps: np.ndarray, n: int = 1, moved: float = 525e6) -> None:
    for value in bps:
        bw.observe(budget, moved, int(moved / value * 1e9), n)


def noisy(rng: np.random.Generator, bps: float, count: int) -> np.ndarray:
    """Ticks of a machine: a little jitter, and every tenth held up by something."""
    out = bps * rng.normal(1.0, 0.02, count)
    held_up = rng.random(count) < 0.1
    out[held_up] /= rng.uniform(2, 20, held_up.sum())
    return out
