"""Recurrent states of a model: bytes of a state, and the number that is kept.

Each recurrent layer keeps a state of each sequence, however long that is, in two tensors of float32
(``llama_memory_recurrent``).  Beside it libllama can keep earlier states, to which a sequence goes
back.  The functions are pure, as those of `kv_shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .kv_shape import HeaderNumbers, KvShape

GO_BACK = frozenset((
    "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h",
    "nemotron_h_moe", "qwen35", "qwen35moe", "qwen4exp",
))  # fmt: skip
"""Architectures of which libllama keeps earlier states (``llm_arch_supports_rs_rollback``)."""

RESERVED = 1  # sequences after those of the rows: pieces of KV pass through it
TEXTS_AT_ONCE = 64  # that an encoder computes in one llama_decode, each in a sequence
SNAPSHOTS = 7, 3, 1  # earlier states of a sequence for drafts, most first
SNAPSHOT_SHARE = 8  # one part in so many of the memory that is left is theirs at most
_MLP_LAYERS = ("nemotron_h", "nemotron_h_moe")
"""Architectures of which some layers are an MLP alone: they have neither cells nor a state."""


@dataclass(frozen=True)
class StateShape:
    """Bytes of one state of a sequence; ``goes_back``: libllama keeps earlier states."""

    n_bytes: int = 0
    goes_back: bool = False

    @classmethod
    def of(cls, architecture: str, metadata: Mapping[str, object]) -> StateShape:
        """From a header's ``metadata`` (``n_embd_r`` and ``n_embd_s``).

        Recurrent are all layers without KV cells, but for draft layers and MLPs.  Where all layers
        have cells, all are recurrent too (Falcon-H1).
        """
        header = HeaderNumbers(architecture, metadata)
        names = ("inner_size", "state_size", "conv_kernel", "group_count")
        inner, state, kernel, groups = (header.number(f"ssm.{name}") for name in names)
        row = inner * state + max(kernel - 1, 0) * (inner + 2 * groups * state)
        row += header.number("embedding_length") * max(header.number("shortconv.l_cache") - 1, 0)
        if head := header.number("kda.head_dim"):
            row = max(header.numbers("attention.head_count", 1), default=0) * head
            row *= head + 3 * max(kernel - 1, 0)
        layers = header.layers
        others = len(KvShape.of(architecture, metadata).rows)
        if architecture in _MLP_LAYERS:
            others += sum(n > 0 for n in header.numbers("feed_forward_length", layers)[:layers])
        return cls(max(layers - others or layers, 0) * row * 4, architecture in GO_BACK)

    def total(self, n_sequences: int) -> int:
        """Bytes of the states of ``n_sequences``, without earlier ones."""
        return n_sequences * self.n_bytes

    def earlier(self, n_sequences: int, room: int) -> int:
        """Return the number of earlier states of each sequence that ``room`` bytes bear.

        Their number and a state more are a power of two, as the tokens of a row with drafts are.
        """
        if not self.goes_back:
            return 0
        most, one = room // SNAPSHOT_SHARE, self.total(n_sequences)
        return next((n for n in SNAPSHOTS if n * one <= most), 0)
