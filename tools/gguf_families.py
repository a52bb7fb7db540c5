"""Tensors and keys of the families beside Llama's: recurrent, hybrid, mixtures, encoders.

Names and dimensions are what llama.cpp's loaders ask for (``src/models/{mamba,mamba2,jamba,lfm2,
qwen35,qwen35moe,qwen3next,glm4-moe,granite-hybrid,openai-moe,nemotron-h,gpt2,bert,t5}.cpp``).

Long: the tensors of each family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gguf_shapes import Shape, Tensor

Key = str | bool | int | float | list[int] | list[str]
# Before softplus: a step of about 0.02, in the range that trained models begin with.
_STEP_BIAS = -4.0
_REL_BUCKETS = 32
_POOLING_MEAN, POOLING_RANK = 1, 4


def tensors(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    """Every tensor of a *shape* of these families, made with *make* (``gguf_shapes.Tensor``)."""
    yield from _FAMILIES[shape.arch](shape, make)


def is_one(shape: Shape) -> bool:
    """Whether *shape* is of these families."""
    return shape.arch in _FAMILIES


def keys(shape: Shape) -> dict[str, Key]:
    """What the loaders of these families ask for beside the keys that all models have."""
    arch = shape.arch
    out: dict[str, Key] = {}
    if shape.ssm is not None:
        out[f"{arch}.ssm.conv_kernel"] = shape.ssm.conv
        out[f"{arch}.ssm.inner_size"] = shape.ssm.inner
        out[f"{arch}.ssm.state_size"] = shape.ssm.state
        out[f"{arch}.ssm.time_step_rank"] = shape.ssm.rank
        if arch not in ("mamba", "jamba"):
            out[f"{arch}.ssm.group_count"] = shape.ssm.groups
    if arch in _DELTA:
        out[f"{arch}.full_attention_interval"] = shape.attention_every
    elif shape.attention_every:
        heads = [shape.n_head_kv if is_attention(shape, i) else 0 for i in range(shape.n_layer)]
        out[f"{arch}.attention.head_count_kv"] = heads
    if arch == "nemotron_h":
        ends = [0 if i % 2 == 0 else shape.n_ff for i in range(shape.n_layer)]
        out["nemotron_h.feed_forward_length"] = ends
        out["nemotron_h.attention.layer_norm_epsilon"] = float(shape.norm_eps)
    if arch == "glm4moe":
        out["glm4moe.expert_shared_count"] = 1
    if arch == "granitehybrid":
        out["granitehybrid.rope.scaling.finetuned"] = False  # positions turn nothing
    if arch == "lfm2":
        out["lfm2.shortconv.l_cache"] = _SHORT_CONV
    if arch in ("bert", "gpt2"):
        out[f"{arch}.attention.layer_norm_epsilon"] = float(shape.norm_eps)
    if arch == "bert":
        out["bert.attention.causal"] = False
        out["bert.pooling_type"] = POOLING_RANK if shape.ranks else _POOLING_MEAN
        out["tokenizer.ggml.token_type_count"] = _TOKEN_TYPES
    if arch in ("t5", "t5encoder"):
        out[f"{arch}.attention.relative_buckets_count"] = _REL_BUCKETS
        out[f"{arch}.decoder_start_token_id"] = 0
    return out


_DELTA = ("qwen35", "qwen35moe", "qwen3next")  # a delta net where a layer does not attend
_SHORT_CONV = 3
_TOKEN_TYPES = 2


def is_attention(shape: Shape, layer: int) -> bool:
    """Whether *layer* of a hybrid attends; the others are recurrent, or Nemotron-H's MLPs."""
    if shape.arch == "nemotron_h":
        return layer % (2 * shape.attention_every) == 2 * shape.attention_every - 2
    return layer % shape.attention_every == shape.attention_every - 1


class _Layers:
    """Makes the tensors of one prefix, ``blk.3.`` say."""

    def __init__(self, make: type[Tensor], at: str) -> None:
        self.make = make
        self.at = at

    def norm(self, name: str, width: int) -> Tensor:
        return self.make(f"{self.at}{name}.weight", (width,), 0.0, f32=True)

    def bias(self, name: str, width: int) -> Tensor:
        return self.make(f"{self.at}{name}.bias", (width,), 0.1, f32=True)

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """`rows` values go in; rows that are no whole block stay float32."""
        return self.make(
            f"{self.at}{name}.weight", (rows, columns), rows**-0.5, f32=rows % 32 != 0
        )

    def filled(self, name: str, values: np.ndarray) -> Tensor:
        """`values` in NumPy's order, the row last."""
        return self.make(self.at + name, values.shape[::-1], 1.0, f32=True, values=values)

    def feed_forward(self, shape: Shape) -> Iterator[Tensor]:
        yield self.matrix("ffn_gate", shape.n_embd, shape.n_ff)
        yield self.matrix("ffn_up", shape.n_embd, shape.n_ff)
        yield self.matrix("ffn_down", shape.n_ff, shape.n_embd)

    def experts(self, shape: Shape, biased: bool = False) -> Iterator[Tensor]:
        """A router, the experts, and the expert that all tokens use."""
        d, ff, n = shape.n_embd, shape.n_ff_expert or shape.n_ff, shape.n_expert
        for name, rows, columns in (("gate", d, ff), ("up", d, ff), ("down", ff, d)):
            tensor = self.matrix(f"ffn_{name}_exps", rows, columns)
            yield dataclasses.replace(tensor, dims=(rows, columns, n))
            if biased:
                bias = self.bias(f"ffn_{name}_exps", columns)
                yield dataclasses.replace(bias, dims=(columns, n))
            if shape.n_ff_shared:
                width = shape.n_ff_shared
                rows, columns = (width, d) if name == "down" else (d, width)
                yield self.matrix(f"ffn_{name}_shexp", rows, columns)
        yield dataclasses.replace(self.matrix("ffn_gate_inp", d, n), f32=True)
        if biased:
            yield self.bias("ffn_gate_inp", n)

    def attention(
        self, shape: Shape, prefix: str = "attn_", out: str = "output"
    ) -> Iterator[Tensor]:
        q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            yield self.matrix(prefix + name, shape.n_embd, width)
        yield self.matrix(prefix + out, q, shape.n_embd)


def _ends(shape: Shape, make: type[Tensor], norm: str) -> Iterator[Tensor]:
    """The token embedding, the last norm and the output matrix."""
    std = 3 * shape.n_embd**-0.5
    yield make("token_embd.weight", (shape.n_embd, shape.n_vocab), std)
    yield make(f"{norm}.weight", (shape.n_embd,), 0.0, f32=True)
    if not shape.tied:
        yield make("output.weight", (shape.n_embd, shape.n_vocab), std)


def _mamba_layer(shape: Shape, layers: _Layers) -> Iterator[Tensor]:
    """Mamba 1; Jamba's has three norms more."""
    assert shape.ssm is not None
    conv, inner, state, rank, _ = shape.ssm
    yield layers.matrix("ssm_in", shape.n_embd, 2 * inner)
    yield layers.matrix("ssm_conv1d", conv, inner)
    yield layers.bias("ssm_conv1d", inner)
    yield layers.matrix("ssm_x", inner, rank + 2 * state)
    yield layers.matrix("ssm_dt", rank, inner)
    yield layers.filled("ssm_dt.bias", np.full(inner, _STEP_BIAS, np.float32))
    decay = -np.arange(1, state + 1, dtype=np.float32)
    yield layers.filled("ssm_a", np.tile(decay, (inner, 1)))
    yield layers.filled("ssm_d", np.ones(inner, np.float32))
    yield layers.matrix("ssm_out", inner, shape.n_embd)
    if shape.arch == "jamba":
        yield layers.norm("ssm_dt_norm", rank)
        yield layers.norm("ssm_b_norm", state)
        yield layers.norm("ssm_c_norm", state)


def _mamba2_layer(shape: Shape, layers: _Layers) -> Iterator[Tensor]:
    assert shape.ssm is not None
    conv, inner, state, heads, groups = shape.ssm
    mixed = inner + 2 * groups * state
    yield layers.matrix("ssm_in", shape.n_embd, inner + mixed + heads)
    yield layers.matrix("ssm_conv1d", conv, mixed)
    yield layers.bias("ssm_conv1d", mixed)
    yield layers.filled("ssm_dt.bias", np.full(heads, _STEP_BIAS, np.float32))
    yield layers.filled("ssm_a", -np.linspace(1, 16, heads, dtype=np.float32)[:, None])
    yield layers.filled("ssm_d", np.ones((heads, 1), np.float32))
    yield layers.filled("ssm_norm.weight", np.ones((groups, inner // groups), np.float32))
    yield layers.matrix("ssm_out", inner, shape.n_embd)


def _delta_layer(shape: Shape, layers: _Layers) -> Iterator[Tensor]:
    """Gated delta net (Qwen 3 Next, 3.5): heads of values, and groups of keys that they share."""
    assert shape.ssm is not None
    conv, inner, state, heads, groups = shape.ssm
    mixed = inner + 2 * groups * state
    yield layers.matrix("attn_qkv", shape.n_embd, mixed)
    yield layers.matrix("attn_gate", shape.n_embd, inner)
    yield layers.matrix("ssm_conv1d", conv, mixed)
    yield layers.filled("ssm_dt.bias", np.full(heads, _STEP_BIAS, np.float32))
    yield layers.filled("ssm_a", -np.linspace(1, 16, heads, dtype=np.float32))
    if shape.arch == "qwen3next":
        yield layers.matrix("ssm_ba", shape.n_embd, 2 * heads)
    else:
        yield layers.matrix("ssm_beta", shape.n_embd, heads)
        yield layers.matrix("ssm_alpha", shape.n_embd, heads)
    yield layers.norm("ssm_norm", state)
    yield layers.matrix("ssm_out", inner, shape.n_embd)


def _delta_net(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    yield from _ends(shape, make, "output_norm")
    for i in range(shape.n_layer):
        layers = _Layers(make, f"blk.{i}.")
        yield from _delta_block(shape, layers, is_attention(shape, i))
    for i in range(shape.n_layer, shape.n_layer + shape.draft_layers):
        layers = _Layers(make, f"blk.{i}.")
        yield from _delta_block(shape, layers, attends=True)
        yield from _draft_ends(shape, layers)


def _delta_block(shape: Shape, layers: _Layers, attends: bool) -> Iterator[Tensor]:
    yield layers.norm("attn_norm", shape.n_embd)
    yield layers.norm("post_attention_norm", shape.n_embd)
    if attends:  # half of a query is a gate
        for tensor in layers.attention(shape):
            d, q = tensor.dims
            is_query = tensor.name.endswith("attn_q.weight")
            yield dataclasses.replace(tensor, dims=(d, 2 * q)) if is_query else tensor
        yield layers.norm("attn_q_norm", shape.head_dim)
        yield layers.norm("attn_k_norm", shape.head_dim)
    else:
        yield from _delta_layer(shape, layers)
    if shape.n_expert:
        yield from layers.experts(shape)
        yield layers.filled(
            "ffn_gate_inp_shexp.weight", np.zeros(shape.n_embd, np.float32)
        )  # half of what the shared expert says is added
    else:
        yield from layers.feed_forward(shape)


def _draft_ends(shape: Shape, layers: _Layers) -> Iterator[Tensor]:
    """Yield what a head for several tokens has beside its layer.

    It reads a token's embedding and the model's state before that token, one behind the other.
    """
    d = shape.n_embd
    yield layers.matrix("nextn.eh_proj", 2 * d, d)
    yield layers.norm("nextn.enorm", d)
    yield layers.norm("nextn.hnorm", d)
    yield layers.norm("nextn.shared_head_norm", d)
    if shape.draft_output:
        std = 3 * d**-0.5
        yield layers.make(f"{layers.at}nextn.shared_head_head.weight", (d, shape.n_vocab), std)


def _glm4_moe(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    """All layers are mixtures, with an expert that all tokens use."""
    yield from _ends(shape, make, "output_norm")
    for i in range(shape.n_layer + shape.draft_layers):
        layers = _Layers(make, f"blk.{i}.")
        yield layers.norm("attn_norm", shape.n_embd)
        yield from layers.attention(shape)
        yield layers.norm("post_attention_norm", shape.n_embd)
        yield from layers.experts(shape)
        yield layers.filled("exp_probs_b.bias", np.zeros(shape.n_expert, np.float32))
        if i >= shape.n_layer:
            yield from _draft_ends(shape, layers)


def _gpt_oss(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    """Each second layer has a window, and heads may attend to nothing (sinks)."""
    yield from _ends(shape, make, "output_norm")
    for i in range(shape.n_layer):
        layers = _Layers(make, f"blk.{i}.")
        yield layers.norm("attn_norm", shape.n_embd)
        for tensor in layers.attention(shape):
            yield tensor
            yield layers.bias(tensor.name.split(".")[-2], tensor.dims[1])
        yield make(layers.at + "attn_sinks.weight", (shape.n_head,), 1.0, f32=True)
        yield layers.norm("post_attention_norm", shape.n_embd)
        yield from layers.experts(shape, biased=True)


def _nemotron_h(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    """Each second layer is an MLP without a gate; the others attend or are Mamba 2."""
    yield from _ends(shape, make, "output_norm")
    for i in range(shape.n_layer):
        layers = _Layers(make, f"blk.{i}.")
        yield layers.norm("attn_norm", shape.n_embd)
        if i % 2:
            yield layers.matrix("ffn_up", shape.n_embd, shape.n_ff)
            yield layers.matrix("ffn_down", shape.n_ff, shape.n_embd)
        else:
            attends = is_attention(shape, i)
            yield from layers.attention(shape) if attends else _mamba2_layer(shape, layers)


def _short_conv_layer(shape: Shape, layers: _Layers) -> Iterator[Tensor]:
    d = shape.n_embd
    yield layers.matrix("shortconv.conv", _SHORT_CONV, d)
    yield layers.matrix("shortconv.in_proj", d, 3 * d)
    yield layers.matrix("shortconv.out_proj", d, d)


_RECURRENT: dict[str, Callable[[Shape, _Layers], Iterator[Tensor]]] = {
    "granitehybrid": _mamba2_layer,
    "jamba": _mamba_layer,
    "lfm2": _short_conv_layer,
}


def _mamba(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    yield from _ends(shape, make, "output_norm")
    layer = _mamba2_layer if shape.arch == "mamba2" else _mamba_layer
    for i in range(shape.n_layer):
        layers = _Layers(make, f"blk.{i}.")
        yield layers.norm("attn_norm", shape.n_embd)
        yield from layer(shape, layers)


def _hybrid(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    lfm2 = shape.arch == "lfm2"
    yield from _ends(shape, make, "token_embd_norm" if lfm2 else "output_norm")
    for i in range(shape.n_layer):
        layers = _Layers(make, f"blk.{i}.")
        yield layers.norm("attn_norm", shape.n_embd)
        if is_attention(shape, i):
            yield from layers.attention(shape)
            if lfm2:
                yield layers.norm("attn_q_norm", shape.head_dim)
                yield layers.norm("attn_k_norm", shape.head_dim)
        else:
            yield from _RECURRENT[shape.arch](shape, layers)
        yield layers.norm("ffn_norm", shape.n_embd)
        yield from layers.experts(shape) if shape.n_expert else layers.feed_forward(shape)


def _gpt2(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    """Positions are rows of a matrix here: there are none beyond those that were trained."""
    d, ff = shape.n_embd, shape.n_ff
    yield from _ends(shape, make, "output_norm")
    yield make("position_embd.weight", (d, shape.n_ctx), 0.1, f32=True)
    yield _Layers(make, "").bias("output_norm", d)
    for i in range(shape.n_layer):
        layers = _Layers(make, f"blk.{i}.")
        for name in ("attn_norm", "ffn_norm"):
            yield layers.norm(name, d)
            yield layers.bias(name, d)
        for name, rows, columns in (
            ("attn_qkv", d, 3 * d), ("attn_output", d, d), ("ffn_up", d, ff), ("ffn_down", ff, d),
        ):  # fmt: skip
            yield layers.matrix(name, rows, columns)
            yield layers.bias(name, columns)


def _bert(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    d, ff = shape.n_embd, shape.n_ff
    whole = _Layers(make, "")
    yield make("token_embd.weight", (d, shape.n_vocab), 3 * d**-0.5)
    yield make("token_types.weight", (d, _TOKEN_TYPES), 0.1, f32=True)
    yield make("position_embd.weight", (d, shape.n_ctx), 0.1, f32=True)
    yield whole.norm("token_embd_norm", d)
    yield whole.bias("token_embd_norm", d)
    for i in range(shape.n_layer):
        layers = _Layers(make, f"blk.{i}.")
        yield from layers.attention(shape)
        yield layers.matrix("ffn_up", d, ff)
        yield layers.matrix("ffn_down", ff, d)
        for name in ("attn_output_norm", "layer_output_norm"):
            yield layers.norm(name, d)
            yield layers.bias(name, d)
        for name, width in (("attn_output", d), ("ffn_up", ff), ("ffn_down", d)):
            yield layers.bias(name, width)
    if shape.ranks:
        yield whole.matrix("cls", d, d)
        yield whole.bias("cls", d)
        yield whole.matrix("cls.output", d, 1)
        yield whole.bias("cls.output", 1)


def _t5(shape: Shape, make: type[Tensor]) -> Iterator[Tensor]:
    d = shape.n_embd
    yield from _ends(shape, make, "enc.output_norm")
    if shape.arch == "t5":
        yield make("dec.output_norm.weight", (d,), 0.0, f32=True)
    for side in ("enc", "dec") if shape.arch == "t5" else ("enc",):
        for i in range(shape.n_layer):
            layers = _Layers(make, f"{side}.blk.{i}.")
            yield layers.norm("attn_norm", d)
            yield from layers.attention(shape, out="o")
            if i == 0:  # the layers after it use the first one's
                yield layers.matrix("attn_rel_b", shape.n_head, _REL_BUCKETS)
            if side == "dec":
                yield layers.norm("cross_attn_norm", d)
                yield from layers.attention(shape, "cross_attn_", "o")
            yield layers.norm("ffn_norm", d)
            yield from layers.feed_forward(shape)


_FAMILIES: dict[str, Callable[[Shape, type[Tensor]], Iterator[Tensor]]] = {
    "mamba": _mamba,
    "mamba2": _mamba,
    "jamba": _hybrid,
    "lfm2": _hybrid,
    "granitehybrid": _hybrid,
    "qwen35": _delta_net,
    "qwen35moe": _delta_net,
    "qwen3next": _delta_net,
    "glm4moe": _glm4_moe,
    "gpt-oss": _gpt_oss,
    "nemotron_h": _nemotron_h,
    "gpt2": _gpt2,
    "bert": _bert,
    "t5": _t5,
    "t5encoder": _t5,
}
