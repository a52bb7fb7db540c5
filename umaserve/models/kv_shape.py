"""Content of a model's KV cell: its bytes by type, and the types and layouts that libllama takes.

A cell has keys and values of one token in every layer that has cells.  Keys and values of a layer
are each a row of a tensor of their own (``llama_kv_cache``).  The functions are pure: they turn
numbers of a header into numbers and words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from .gguf.faults import GGML_TYPES
from .gguf.header import GGUFError

KV_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8,
    "iq4_nl": 20,
}  # fmt: skip
"""ggml type ids of the KV cell types that llama.cpp takes, by ``ggml_type_name``."""

PLAIN = "f16"
CELL_PADDING = 256  # libllama makes a multiple of so many KV cells
_MOST_LAYERS = 4096  # of a damaged header no more are counted
_OWN_CELLS = {"gemma3n": 20}  # layers that have cells of their own, where no header says so
_NO_FLASH = ("grok",)  # families without flash attention in libllama
_ONE_TYPE = ("deepseek4",)  # families whose K and V have to be of one type, besides latent ones


class KvKind(NamedTuple):
    """Types of K and V by their ggml names, and whether V is transposed (``--kv-pack``)."""

    type_k: str = PLAIN
    type_v: str = PLAIN
    head_major: bool = False

    @property
    def flags(self) -> str:
        """As the daemon takes it."""
        pack = "head-major" if self.head_major else "token-major"
        return f"--kv-type {self.type_k}:{self.type_v} --kv-pack {pack}"


@dataclass(frozen=True)
class KvShape:
    """K and V of the layers that have cells; without rows where a header does not say.

    ``rows``: K and V values of a token, a pair a layer.  ``heads``: K and V values of a head, each
    pair once.  ``flash``: libllama has flash attention for the architecture.  ``one_type``: K and V
    must have one type.
    """

    rows: tuple[tuple[int, int], ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    flash: bool = True
    one_type: bool = False

    @classmethod
    def of(cls, architecture: str, metadata: Mapping[str, object]) -> KvShape:
        """From a header's ``metadata``.

        Draft layers (``nextn_predict_layers``) get no cells, neither do recurrent layers, nor those
        that read an earlier layer's.  Latent attention (MLA) keeps one row that serves as K and V
        (``llama_kv_cache``: ``has_v = !is_mla``).  An encoder has no cells.
        """
        if metadata.get(f"{architecture}.attention.causal") is False:
            return cls()
        header = HeaderNumbers(architecture, metadata)
        layers = header.layers
        heads = header.numbers("attention.head_count", layers)
        n_heads = header.numbers("attention.head_count_kv", layers) or heads
        widest = max(heads, default=0)
        if not layers or not widest:
            return cls()
        head = header.number("embedding_length") // widest
        full = header.widths("attention.{}_length", (head, head))
        in_window = header.widths("attention.{}_length_swa", full)
        latent = bool(header.number("attention.key_length_mla"))
        windows = header.flags("attention.sliding_window_pattern", layers)
        rows, found = [], []
        for n, has_cells, window in zip(n_heads, header.with_cells(layers), windows, strict=False):
            if n and has_cells:
                k, v = in_window if window else full
                rows.append((n * k, 0 if latent else n * v))
                found.append((k, v))
        return cls(
            tuple(rows),
            tuple(dict.fromkeys(found)),
            architecture not in _NO_FLASH,
            latent or architecture in _ONE_TYPE,
        )

    def bytes_per_cell(self, kind: KvKind) -> int:
        """Bytes of one token in all layers.

        A transposed V is as wide in every layer as in the widest (``n_embd_v_gqa_max``).  Raises
        ``GGUFError`` where there is no such type.
        """
        widest = max((v for _, v in self.rows), default=0)
        transposed = kind.head_major or not self.flash
        return sum(
            _row_bytes(kind.type_k, k) + _row_bytes(kind.type_v, widest if transposed else v)
            for k, v in self.rows
        )

    def why_not(self, kind: KvKind) -> str:
        """Why there are no such cells, and which of the kinds like it works; empty = they work.

        libllama refuses most of these once the weights are loaded.  Where a head's keys are no
        whole blocks and V is transposed, it ends the process, or reads other values than it wrote.
        """
        why = self._why_not(kind)
        if not why:
            return ""
        k, v, head_major = kind
        likely = (
            KvKind(k, PLAIN, head_major), KvKind(PLAIN, v, head_major), KvKind(k, v, False),
            KvKind(PLAIN, PLAIN, head_major), KvKind(),
        )  # fmt: skip
        works = next(each for each in likely if not self._why_not(each))
        return f"{why}; take {works.flags}"

    def _why_not(self, kind: KvKind) -> str:
        k, v, head_major = kind
        if _block(v) > 1 and (head_major or not self.flash):
            which = "V that lies head by head" if head_major else "this model"
            return f"{which} is computed without flash attention, which V of {v} needs"
        if self.one_type and k != v:
            return f"this model's K and V have to be of one type, not {k} and {v}"
        for name, kv_type, of in (("K", k, 0), ("V", v, 1)):
            width = next((head[of] for head in self.heads if head[of] % _block(kv_type)), 0)
            if width:
                return (
                    f"each head of this model has {width} {name} values, which are no whole blocks "
                    f"of {_block(kv_type)} as {kv_type} has"
                )
        return ""


def padded(n_ctx: int) -> int:
    """KV cells that libllama makes of so many, which it bounds a batch by before it does."""
    return -(-n_ctx // CELL_PADDING) * CELL_PADDING


class HeaderNumbers:
    """Numbers of a header, under its architecture's name; what is no size counts as not there."""

    def __init__(self, architecture: str, metadata: Mapping[str, object]) -> None:
        self._prefix, self._metadata = f"{architecture}.", metadata
        self._own_cells = _OWN_CELLS.get(architecture, 0)

    @property
    def layers(self) -> int:
        """Number of layers, without draft layers."""
        layers = self.number("block_count") - self.number("nextn_predict_layers")
        return min(max(layers, 0), _MOST_LAYERS)

    def number(self, name: str) -> int:
        value = self._metadata.get(self._prefix + name)
        return value if is_size(value) else 0

    def flags(self, name: str, layers: int) -> list[bool]:
        """Return a flag for each layer; False where there is no such list."""
        value = self._metadata.get(self._prefix + name)
        given = [bool(each) for each in value] if isinstance(value, list) else []
        return (given + [False] * layers)[:layers]

    def numbers(self, name: str, layers: int) -> list[int]:
        """A value that the header gives once or once a layer, as a list with an entry a layer."""
        if isinstance(value := self._metadata.get(self._prefix + name), list):
            return [each for each in value if is_size(each)]
        number = self.number(name)
        return [number] * layers if number else []

    def widths(self, name: str, otherwise: tuple[int, int]) -> tuple[int, int]:
        """K and V values of a head."""
        k, v = (self.number(name.format(part)) for part in ("key", "value"))
        return k or otherwise[0], v or otherwise[1]

    def with_cells(self, layers: int) -> list[bool]:
        """Whether a layer has cells of its own, where it attends at all."""
        recurrent = self.flags("attention.recurrent_layers", layers)
        if not any(recurrent) and (every := self.number("full_attention_interval")):
            recurrent = [(layer + 1) % every != 0 for layer in range(layers)]
        own = self._own_cells or layers - self.number("attention.shared_kv_layers")
        return [not recurrent[layer] and layer < own for layer in range(layers)]


def is_size(value: object) -> TypeGuard[int]:
    """Whether a header's value can be a size: no text, no fraction, no negative number."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _block(kv_type: str) -> int:
    """Values that such a type stores together."""
    if kv_type not in KV_TYPES:
        raise GGUFError(f"there is no KV type {kv_type!r}; take one of {', '.join(KV_TYPES)}")
    return GGML_TYPES[KV_TYPES[kv_type]][0]


def _row_bytes(kv_type: str, count: int) -> int:
    block = _block(kv_type)
    return -(-count // block) * GGML_TYPES[KV_TYPES[kv_type]][1]
