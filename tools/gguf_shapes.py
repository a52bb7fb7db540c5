"""The model shapes that ``make_model.py`` knows: hyperparameters, tensors and metadata.

Hyperparameters are the published ones (each model's ``config.json``); tensor names and dimensions
are what llama.cpp's loaders ask for (``src/models/{llama,qwen2,qwen3moe,gemma3}.cpp``; the
families that are no plain decoders are in ``gguf_families``).

Long: an entry for each shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import gguf_families
import numpy as np

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
RERANK = (
    "<|im_start|>system\nJudge whether the Document meets the Query.<|im_end|>\n"
    "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


class Ssm(NamedTuple):
    """A state-space layer: convolution, inner width, state size, step rank (heads), groups."""

    conv: int
    inner: int
    state: int
    rank: int
    groups: int = 1


@dataclass(frozen=True)
class Shape:
    """One model's hyperparameters, under llama.cpp's names."""

    name: str
    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_ctx: int
    rope_base: float
    norm_eps: float
    tied: bool
    vocab: str  # of models/ggml-vocab-{vocab}.gguf
    n_vocab: int
    end_of_turn: str
    template: str
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_ff_shared: int = 0  # of the expert that all tokens use
    # llama 3.1's long-context scaling: factor, low and high frequency factor, original context
    rope_scaling: tuple[float, float, float, int] | None = None
    yarn: tuple[float, int] | None = None  # long-context scaling: factor and original context
    rope_sections: tuple[int, ...] = ()  # of a head's rotations, to each dimension of a position
    window: int = 0  # positions that most layers see (sliding-window attention)
    window_pattern: int = 2  # one layer in so many sees all
    ssm: Ssm | None = None
    attention_every: int = 0  # of a hybrid: one layer in so many attends
    ranks: bool = False  # documents by a query: a head makes scores
    draft_layers: int = 0  # behind the others: heads for several tokens (MTP)
    draft_output: bool = False  # these have an output matrix of their own


_QWEN = {
    "norm_eps": 1e-6,
    "rope_base": 1e6,
    "vocab": "qwen2",
    "n_vocab": 151936,
    "end_of_turn": "<|im_end|>",
    "template": CHATML,
}

_SMALL = {
    "n_embd": 128,
    "n_ctx": 2048,
    "norm_eps": 1e-5,
    "rope_base": 1e4,
    "tied": False,
    "template": CHATML,
}
_NO_HEADS = {"n_head": 0, "n_head_kv": 0, "head_dim": 0, "n_ff": 0}
_HEADS = {"n_head": 4, "n_head_kv": 2, "head_dim": 32, "n_ff": 256}
_EXPERTS = {"n_expert": 8, "n_expert_used": 2}
_GPT_NEOX = {"vocab": "gpt-neox", "n_vocab": 50432, "end_of_turn": "<|endoftext|>"}
_LLAMA_SPM = {"vocab": "llama-spm", "n_vocab": 32000, "end_of_turn": "</s>"}

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape(
            "micro-151k", "qwen2", n_layer=4, n_embd=256, n_head=4, n_head_kv=2, head_dim=64,
            n_ff=768, n_ctx=32768, tied=True, **_QWEN,
        ),
        Shape(
            "qwen2.5-0.5b", "qwen2", n_layer=24, n_embd=896, n_head=14, n_head_kv=2, head_dim=64,
            n_ff=4864, n_ctx=32768, tied=True, **_QWEN,
        ),
        Shape(
            "qwen2vl-micro", "qwen2vl", n_layer=4, n_embd=128, n_head=4, n_head_kv=2, head_dim=32,
            n_ff=256, n_ctx=2048, tied=True, rope_sections=(4, 6, 6, 0), **_QWEN,
        ),
        Shape(
            "qwen3vl-micro", "qwen3vl", n_layer=4, n_embd=128, n_head=4, n_head_kv=2, head_dim=32,
            n_ff=256, n_ctx=2048, tied=True, rope_sections=(4, 6, 6, 0), **_QWEN,
        ),
        Shape(
            "llama3.2-1b", "llama", n_layer=16, n_embd=2048, n_head=32, n_head_kv=8, head_dim=64,
            n_ff=8192, n_ctx=131072, rope_base=500000.0, norm_eps=1e-5, tied=True,
            vocab="llama-bpe", n_vocab=128256, end_of_turn="<|eot_id|>", template=LLAMA3,
            rope_scaling=(32.0, 1.0, 4.0, 8192),
        ),
        Shape(
            "qwen3-30b-a3b", "qwen3moe", n_layer=48, n_embd=2048, n_head=32, n_head_kv=4,
            head_dim=128, n_ff=6144, n_ctx=40960, tied=False, n_expert=128, n_expert_used=8,
            n_ff_expert=768, **_QWEN,
        ),
        Shape(
            "moe-micro", "qwen3moe", n_layer=4, n_embd=256, n_head=4, n_head_kv=2, head_dim=64,
            n_ff=768, n_ctx=32768, tied=True, n_expert=16, n_expert_used=4, n_ff_expert=128,
            **_QWEN,
        ),
        Shape(
            "mamba-micro", "mamba", n_layer=2, ssm=Ssm(4, 256, 16, 8),
            **_SMALL, **_NO_HEADS, **_GPT_NEOX,
        ),
        Shape(
            "mamba2-micro", "mamba2", n_layer=2, ssm=Ssm(4, 256, 32, 4),
            **_SMALL, **_NO_HEADS, **_GPT_NEOX,
        ),
        Shape(
            "jamba-micro", "jamba", n_layer=4, ssm=Ssm(4, 256, 16, 8), attention_every=2,
            **_SMALL, **_HEADS, **_LLAMA_SPM,
        ),
        Shape(
            "lfm2-micro", "lfm2", n_layer=4, attention_every=2, **_SMALL, **_HEADS, **_LLAMA_SPM,
        ),
        Shape(
            "qwen35-micro", "qwen35", n_layer=4, attention_every=2, ssm=Ssm(4, 128, 32, 4, 2),
            rope_sections=(4, 6, 6, 0), **_SMALL | _QWEN | {"tied": True}, **_HEADS,
        ),
        Shape(
            "qwen35-mtp-micro", "qwen35", n_layer=4, attention_every=2, draft_layers=1,
            ssm=Ssm(4, 128, 32, 4, 2), rope_sections=(4, 6, 6, 0),
            **_SMALL | _QWEN | {"tied": True}, **_HEADS,
        ),
        Shape(  # with Qwen 2's vocabulary, and positions that turn all of a head
            "qwen35-0.8b", "qwen35", n_layer=24, n_embd=1024, n_head=8, n_head_kv=2, head_dim=256,
            n_ff=3584, n_ctx=262144, tied=True, attention_every=4,
            ssm=Ssm(4, 2048, 128, 16, 16), rope_sections=(11, 11, 10, 0), **_QWEN,
        ),
        Shape(
            "qwen35-0.8b-mtp", "qwen35", n_layer=24, n_embd=1024, n_head=8, n_head_kv=2,
            head_dim=256, n_ff=3584, n_ctx=262144, tied=True, attention_every=4, draft_layers=1,
            ssm=Ssm(4, 2048, 128, 16, 16), rope_sections=(11, 11, 10, 0), **_QWEN,
        ),
        Shape(
            "nemotron-h-micro", "nemotron_h", n_layer=4, attention_every=2,
            ssm=Ssm(4, 256, 32, 4), **_SMALL, **_HEADS, **_LLAMA_SPM,
        ),
        Shape(  # LFM2's attention is in layers 2, 5, 8, 10, 12 and 14
            "lfm2-1.2b", "lfm2", n_layer=16, n_embd=2048, n_head=32, n_head_kv=8, head_dim=64,
            n_ff=8192, n_ctx=128000, attention_every=3, tied=False, **_QWEN | {"norm_eps": 1e-5},
        ),
        Shape(
            "qwen35moe-micro", "qwen35moe", n_layer=4, attention_every=2,
            ssm=Ssm(4, 128, 32, 4, 2), rope_sections=(4, 6, 6, 0), n_ff_expert=64, n_ff_shared=64,
            **_SMALL | _QWEN | {"tied": True}, **_HEADS, **_EXPERTS,
        ),
        Shape(  # with Qwen 2's tokens, filled up, and positions that turn all of a head
            "qwen3.5-35b-a3b", "qwen35moe", n_layer=40, n_embd=2048, n_head=16, n_head_kv=2,
            head_dim=256, n_ff=512, n_ctx=262144, tied=False, n_expert=256, n_expert_used=8,
            n_ff_expert=512, n_ff_shared=512, attention_every=4, ssm=Ssm(4, 4096, 128, 32, 16),
            rope_sections=(11, 11, 10, 0),
            **_QWEN | {"rope_base": 1e7, "vocab": "qwen35", "n_vocab": 248320},
        ),
        Shape(
            "qwen35moe-mtp-micro", "qwen35moe", n_layer=4, attention_every=2, draft_layers=1,
            ssm=Ssm(4, 128, 32, 4, 2), rope_sections=(4, 6, 6, 0), n_ff_expert=64, n_ff_shared=64,
            **_SMALL | _QWEN | {"tied": True}, **_HEADS, **_EXPERTS,
        ),
        Shape(
            "glm4moe-mtp-micro", "glm4moe", n_layer=4, draft_layers=1, n_ff_expert=64,
            n_ff_shared=64, **_SMALL | _QWEN, **_HEADS, **_EXPERTS,
        ),
        Shape(  # Qwen 3.5 35B A3B with its heads for several tokens
            "qwen3.5-35b-a3b-mtp", "qwen35moe", n_layer=40, n_embd=2048, n_head=16, n_head_kv=2,
            head_dim=256, n_ff=512, n_ctx=262144, tied=False, n_expert=256, n_expert_used=8,
            n_ff_expert=512, n_ff_shared=512, attention_every=4, ssm=Ssm(4, 4096, 128, 32, 16),
            rope_sections=(11, 11, 10, 0), draft_layers=1,
            **_QWEN | {"rope_base": 1e7, "vocab": "qwen35", "n_vocab": 248320},
        ),
        Shape(
            "qwen3next-micro", "qwen3next", n_layer=4, attention_every=2,
            ssm=Ssm(4, 128, 32, 4, 2), n_ff_expert=64, n_ff_shared=64,
            **_SMALL | _QWEN | {"tied": True}, **_HEADS, **_EXPERTS,
        ),
        Shape(  # with positions that turn all of a head
            "qwen3-next-80b-a3b", "qwen3next", n_layer=48, n_embd=2048, n_head=16, n_head_kv=2,
            head_dim=256, n_ff=5120, n_ctx=262144, tied=False, n_expert=512, n_expert_used=10,
            n_ff_expert=512, n_ff_shared=512, attention_every=4, ssm=Ssm(4, 4096, 128, 32, 16),
            **_QWEN | {"rope_base": 1e7},
        ),
        Shape(
            "granitehybrid-micro", "granitehybrid", n_layer=4, attention_every=2,
            ssm=Ssm(4, 256, 32, 4), n_ff_shared=64, **_SMALL, **_HEADS, **_EXPERTS, **_LLAMA_SPM,
        ),
        Shape(  # with Qwen's vocabulary; Granite's attention is in layers 5, 15, 25 and 35
            "granite-4.0-h-tiny", "granitehybrid", n_layer=40, n_embd=1536, n_head=12, n_head_kv=4,
            head_dim=128, n_ff=512, n_ctx=131072, tied=True, n_expert=64, n_expert_used=6,
            n_ff_shared=1024, attention_every=10, ssm=Ssm(4, 3072, 128, 48),
            **_QWEN | {"norm_eps": 1e-5, "rope_base": 1e4},
        ),
        Shape(
            "gpt-oss-micro", "gpt-oss", n_layer=4, window=64, n_ff_expert=64,
            **_SMALL | _QWEN, **_HEADS, **_EXPERTS,
        ),
        Shape(  # with Qwen's vocabulary, filled up to the size of its own
            "gpt-oss-20b", "gpt-oss", n_layer=24, n_embd=2880, n_head=64, n_head_kv=8, head_dim=64,
            n_ff=2880, n_ctx=131072, tied=False, n_expert=32, n_expert_used=4, n_ff_expert=2880,
            window=128, yarn=(32.0, 4096),
            **_QWEN | {"n_vocab": 201088, "norm_eps": 1e-5, "rope_base": 150000.0},
        ),
        Shape(
            "gpt2-micro", "gpt2", n_layer=2, vocab="gpt-2", n_vocab=50304,
            end_of_turn="<|endoftext|>", **_SMALL | {"n_ctx": 512}, **_HEADS | {"n_head_kv": 4},
        ),
        Shape("gemma3-micro", "gemma3", n_layer=4, window=64, **_SMALL, **_HEADS, **_LLAMA_SPM),
        Shape(  # with Qwen's vocabulary: Gemma's is not among those that llama.cpp has
            "gemma3-4b", "gemma3", n_layer=34, n_embd=2560, n_head=8, n_head_kv=4, head_dim=256,
            n_ff=10240, n_ctx=131072, tied=True, window=1024, window_pattern=6, **_QWEN,
        ),
        Shape(
            "bert-micro", "bert", n_layer=2, vocab="bert-bge", n_vocab=30522, end_of_turn="",
            **_SMALL | {"n_ctx": 512, "tied": True}, **_HEADS | {"n_head_kv": 4},
        ),
        Shape(
            "bert-rank-micro", "bert", n_layer=2, vocab="bert-bge", n_vocab=30522, end_of_turn="",
            ranks=True, **_SMALL | {"n_ctx": 512, "tied": True}, **_HEADS | {"n_head_kv": 4},
        ),
        Shape(  # as Qwen's rerankers: causal, with a template for queries and documents
            "qwen3-rank-micro", "qwen3", n_layer=2, ranks=True,
            **_SMALL | _QWEN | {"tied": True}, **_HEADS,
        ),
        Shape("t5-micro", "t5", n_layer=2, **_SMALL, **_HEADS | {"n_head_kv": 4}, **_LLAMA_SPM),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One tensor: dimensions in GGUF's order (row length first) and what to fill it with."""

    name: str
    dims: tuple[int, ...]
    # standard deviation of the random values; 0.0 stands for ones (a norm's weight)
    std: float
    # kept in float32 whatever the file's quantization, as llama.cpp's own quantizer does
    f32: bool = False
    values: np.ndarray | None = None

    @property
    def n_elements(self) -> int:
        return math.prod(self.dims)


def rope_factors(shape: Shape) -> np.ndarray:
    """Divisors of the rotary frequencies, float32 ``[head_dim / 2]`` (Llama 3.1's scaling)."""
    assert shape.rope_scaling is not None
    factor, low, high, original = shape.rope_scaling
    out = []
    for i in range(0, shape.head_dim, 2):
        turns = original * shape.rope_base ** (-i / shape.head_dim) / (2 * math.pi)
        if turns > high:
            out.append(1.0)
        elif turns < low:
            out.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Every tensor of *shape*, in file order.

    Matrices keep the scale of what goes through them (std = fan-in ** -0.5), so that activations
    stay near 1 however many layers there are; the output matrix gives logits with a deviation near
    3, as trained models have, over which no single token (an end of text, say) is likely.
    """
    if gguf_families.is_one(shape):
        yield from gguf_families.tensors(shape, Tensor)
        return
    d, hd = shape.n_embd, shape.head_dim
    q, kv = shape.n_head * hd, shape.n_head_kv * hd
    inner = d**-0.5
    yield Tensor("token_embd.weight", (d, shape.n_vocab), 3 * inner)
    if shape.rope_scaling is not None:
        yield Tensor("rope_freqs.weight", (hd // 2,), 0.0, f32=True, values=rope_factors(shape))
    for i in range(shape.n_layer):
        at = f"blk.{i}."
        yield Tensor(at + "attn_norm.weight", (d,), 0.0, f32=True)
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            yield Tensor(f"{at}attn_{name}.weight", (d, width), inner)
            if shape.arch in ("qwen2", "qwen2vl"):
                yield Tensor(f"{at}attn_{name}.bias", (width,), 0.1, f32=True)
        if shape.arch in ("qwen3", "qwen3moe", "qwen3vl", "gemma3", "gemma-embedding"):
            yield Tensor(at + "attn_q_norm.weight", (hd,), 0.0, f32=True)
            yield Tensor(at + "attn_k_norm.weight", (hd,), 0.0, f32=True)
        yield Tensor(at + "attn_output.weight", (q, d), q**-0.5)
        if shape.arch in ("gemma3", "gemma-embedding"):
            yield Tensor(at + "post_attention_norm.weight", (d,), 0.0, f32=True)
            yield Tensor(at + "post_ffw_norm.weight", (d,), 0.0, f32=True)
        yield Tensor(at + "ffn_norm.weight", (d,), 0.0, f32=True)
        if shape.n_expert:
            ff, n = shape.n_ff_expert, shape.n_expert
            yield Tensor(at + "ffn_gate_inp.weight", (d, n), inner, f32=True)
            yield Tensor(at + "ffn_gate_exps.weight", (d, ff, n), inner)
            yield Tensor(at + "ffn_up_exps.weight", (d, ff, n), inner)
            yield Tensor(at + "ffn_down_exps.weight", (ff, d, n), ff**-0.5)
        else:
            yield Tensor(at + "ffn_gate.weight", (d, shape.n_ff), inner)
            yield Tensor(at + "ffn_up.weight", (d, shape.n_ff), inner)
            yield Tensor(at + "ffn_down.weight", (shape.n_ff, d), shape.n_ff**-0.5)
    yield Tensor("output_norm.weight", (d,), 0.0, f32=True)
    if shape.ranks:
        yield Tensor("cls.output.weight", (d, 2), inner)
    if not shape.tied:
        yield Tensor("output.weight", (d, shape.n_vocab), 3 * inner)


def metadata(shape: Shape) -> dict[str, gguf_families.Key]:
    """The GGUF keys that describe *shape*, without the tokenizer's; ints are written as uint32."""
    arch = shape.arch
    out: dict[str, gguf_families.Key] = {
        "general.architecture": arch,
        "general.name": f"{shape.name} (random weights)",
        "general.description": "Random weights in a model's shape, for benchmarks.",
        f"{arch}.context_length": shape.n_ctx,
        f"{arch}.embedding_length": shape.n_embd,
        f"{arch}.block_count": shape.n_layer + shape.draft_layers,
        f"{arch}.feed_forward_length": shape.n_ff,
        f"{arch}.attention.head_count": shape.n_head,
        f"{arch}.attention.head_count_kv": shape.n_head_kv,
        f"{arch}.attention.key_length": shape.head_dim,
        f"{arch}.attention.value_length": shape.head_dim,
        f"{arch}.rope.dimension_count": shape.head_dim,
        f"{arch}.rope.freq_base": float(shape.rope_base),
        f"{arch}.attention.layer_norm_rms_epsilon": float(shape.norm_eps),
        f"{arch}.vocab_size": shape.n_vocab,
    }
    if shape.draft_layers:
        out[f"{arch}.nextn_predict_layers"] = shape.draft_layers
    if shape.n_expert:
        out[f"{arch}.expert_count"] = shape.n_expert
        out[f"{arch}.expert_used_count"] = shape.n_expert_used
    if shape.n_ff_expert:
        out[f"{arch}.expert_feed_forward_length"] = shape.n_ff_expert
    if shape.n_ff_shared:
        out[f"{arch}.expert_shared_feed_forward_length"] = shape.n_ff_shared
    if shape.yarn is not None:
        out[f"{arch}.rope.scaling.type"] = "yarn"
        out[f"{arch}.rope.scaling.factor"] = shape.yarn[0]
        out[f"{arch}.rope.scaling.original_context_length"] = shape.yarn[1]
    if shape.arch == "qwen3vl":
        out[f"{arch}.n_deepstack_layers"] = 1
    if shape.rope_sections:
        out[f"{arch}.rope.dimension_sections"] = list(shape.rope_sections)
    if shape.window:
        out[f"{arch}.attention.sliding_window"] = shape.window
        out[f"{arch}.attention.sliding_window_pattern"] = shape.window_pattern
    if shape.ranks and arch == "qwen3":
        out["qwen3.pooling_type"] = gguf_families.POOLING_RANK
        out["qwen3.classifier.output_labels"] = ["yes", "no"]
        out["tokenizer.chat_template.rerank"] = RERANK
    return out | gguf_families.keys(shape)
