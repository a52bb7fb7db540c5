"""How many bytes a model moves, from its GGUF header alone: the constants of the ΣBMT model.

Bytes moved per token (BMT) is the roofline's memory side (Williams et al. 2009): decoding reads
every weight for few operations.  So bytes over bandwidth is its time.  What is counted is
compulsory traffic, each byte once per graph.  What a cache saves is not modelled: activations of a
single row never leave the processor.  Neither is what a kernel reads again: llama.cpp's processor
backend walks a matrix once for 64 columns.  Ticks for which that matters are bound by arithmetic.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from umaserve.models.gguf.header import GGUFInfo, GGUFTensor
from umaserve.models.kv_shape import KvKind

from .memory import kv_bytes_per_cell

# llama-arch.cpp: LLM_TENSOR_FFN_{GATE,DOWN,UP,GATE_UP}_{EXPS,CHEXPS}; the last dimension is the
# expert.  Shared experts (_shexp) and routers (_inp) are read for every token.
_EXPERTS = re.compile(r"\.ffn_(gate|up|down|gate_up)_(ch)?exps\.")
# ggml_get_rows takes one row a token of these
_TABLES = re.compile(r"^(token_embd|per_layer_token_embd|position_embd|token_types)\.weight$")
_HEAD = re.compile(r"^(output|output_norm)\.")
_UNUSED = re.compile(r"^(cls|mm|v|enc)\.|\.nextn\.")  # classifiers, pictures, encoders, drafts
_BLOCK = re.compile(r"^blk\.(\d+)\.")
# Keys of layers whose memory is not one cell a token: sliding windows, recurrent states, indexers,
# layers that borrow another layer's cells.
_OTHER_MEMORY = (
    "attention.sliding_window", "attention.shared_kv_layers", "attention.indexer.head_count",
    "ssm.state_size", "wkv.head_size", "kda.head_dim", "shortconv.l_cache",
)  # fmt: skip
_F32 = 4.0
_F16 = 2.0


class Traffic(NamedTuple):
    """Bytes by what a tick does; all floats, so that compiled code takes it as it is.

    The weights of a file are ``dense + n_expert * expert``, plus the token table where the model
    has an output matrix of its own.  What decoding never reads
    (classifiers, draft layers) is in it too.
    """

    dense: float  # weights that every graph reads, however many tokens: no experts, no head
    head: float  # output matrix and norm, read by a graph that has outputs
    embedding: float  # one token's rows of the embedding tables
    expert: float  # weights of one expert, summed over layers
    n_expert: float  # 0 = not a mixture of experts
    n_expert_used: float  # experts that the router picks for one token
    kv_cell: float  # K and V of one token over all layers
    kv_exact: float  # 1 = kv_cell is exact; 0 = other memory than that exists, see `of`
    mask_cell: float  # attention mask for one token and one cell of the span: written, read a layer
    activation: float  # one token's rows between the matrices
    logits: float  # one row of logits, float32
    n_ubatch: float  # tokens of one graph; a longer batch reads the weights again

    @classmethod
    def of(
        cls,
        info: GGUFInfo,
        *,
        type_k: str = "f16",
        type_v: str = "f16",
        n_ubatch: int = 512,
        experts_used: int = 0,
    ) -> Traffic:
        """Return the traffic of the model that a header describes.

        `type_k` and `type_v` are ggml's names of the KV types.  `experts_used` of 0 is the file's
        own number of experts a token uses.  `activation` is an estimate: each matrix product's
        input and output row once, in float32.  The estimate leaves out values that stay in
        registers between fused operations, and includes values that stay in a cache.  Where
        `kv_exact` is 0, `kv_cell` counts every layer that has cells as if it attended to all of
        them.  That is an upper bound for sliding windows.  `kv_cell` leaves out recurrent states,
        and reads of cells that a layer shares with an earlier layer.
        """
        layers = _positive(info, "block_count") - _positive(info, "nextn_predict_layers")
        used = [t for t in info.tensors if not _unused(t, layers)]
        tables = [t for t in used if _TABLES.search(t.name)]
        experts = [t for t in used if _EXPERTS.search(t.name)]
        head = [t for t in used if _HEAD.search(t.name)]
        if not any(t.name == "output.weight" for t in head):  # tied
            head += [t for t in tables if t.name == "token_embd.weight"]
        apart = {t.name for t in (*tables, *experts, *head)}
        dense = [t for t in used if t.name not in apart]
        n_expert = _positive(info, "expert_count") or max((t.shape[-1] for t in experts), default=0)
        n_expert = n_expert if experts else 0
        own = _positive(info, "expert_used_count") or n_expert
        n_used = min(experts_used or own, n_expert)
        matrices = [t for t in dense if len(t.shape) == 2 and _BLOCK.match(t.name)]
        cell = kv_bytes_per_cell(info, KvKind(type_k, type_v))
        vocabulary = next((t.shape[-1] for t in head if len(t.shape) == 2), 0)
        return cls(
            dense=float(sum(t.n_bytes for t in dense)),
            head=float(sum(t.n_bytes for t in head)),
            embedding=float(sum(t.n_bytes // max(t.shape[-1], 1) for t in tables)),
            expert=sum(t.n_bytes for t in experts) / n_expert if n_expert else 0.0,
            n_expert=float(n_expert),
            n_expert_used=float(n_used),
            kv_cell=float(cell),
            kv_exact=float(cell > 0 and not any(_positive(info, key) for key in _OTHER_MEMORY)),
            mask_cell=_F16 * (1 + layers),
            activation=_F32 * (_rows(matrices) + n_used * _rows(experts)),
            logits=_F32 * vocabulary,
            n_ubatch=float(max(n_ubatch, 1)),
        )


def _unused(tensor: GGUFTensor, layers: int) -> bool:
    """Whether decoding never reads it; draft layers come after the model's own."""
    block = _BLOCK.match(tensor.name)
    if block is not None and layers > 0 and int(block[1]) >= layers:
        return True
    return _UNUSED.search(tensor.name) is not None


def _rows(matrices: list[GGUFTensor]) -> int:
    """Elements of one token's input and output rows of each matrix."""
    return sum(t.shape[0] + t.shape[1] for t in matrices if len(t.shape) >= 2)


def _positive(info: GGUFInfo, name: str) -> int:
    """A whole number of the header; the largest where it is given once a layer; 0 = not there."""
    value = info.metadata.get(f"{info.architecture}.{name}", 0)
    values = value if isinstance(value, list) else [value]
    return max((v for v in values if isinstance(v, int) and not isinstance(v, bool)), default=0)
