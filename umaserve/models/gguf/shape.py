"""Faults in a GGUF file's model that libllama does not answer with an error.

libllama's loaders check the shapes of most tensors. A value that they do not check may end the
process later (a failed ``GGML_ASSERT``), or cause an endless loop (a rotation of no values). Or it
takes memory that no weight stands for. Each rule returns the fault in words, or an empty text.
No rule is stricter than libllama's assertions.
"""

from __future__ import annotations

import math
import re

from .header import GGUFInfo

_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
_MAX_WINDOW = 1 << 24  # libllama reserves a place for each position of a sliding window
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_EPSILONS = ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon")

_F32, _F16, _BF16 = 0, 1, 30
# ggml types without a product: llama.cpp converts no weight to them, some are for activations
_NOT_COMPUTED = {9: "q8_1", 15: "q8_K", 24: "i8", 25: "i16", 27: "i64", 28: "f64"}
_COMPUTED = (".weight", ".bias", ".ssm_a", ".ssm_d")  # what tensors of weights are called
_I32 = 26  # of tables of numbers, which have other names than these
_MATRIX = re.compile(
    r"(^|\.)(token_embd|output|attn_\w+|ssm_\w+|ffn_(up|down|gate)(_exps)?)\.weight$"
)

# Families by assertions of their graphs.  Alike: keys are as wide as values.  All rotated: all of a
# key is rotated.  Filling: the heads together are as wide as the model.  Doubled: a recurrent layer
# is twice as wide as the model.  Square: a head of a recurrent layer is as wide as its state.
_ALIKE = frozenset({
    "llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gpt2", "jamba", "lfm2", "gpt-oss",
})  # fmt: skip
_ALL_ROTATED = frozenset({"qwen2", "qwen2moe", "qwen3", "qwen3moe", "gpt-oss"})
_FILLING = frozenset({"qwen2", "qwen2moe", "gpt2", "jamba", "lfm2"})
_DOUBLED = frozenset({"jamba", "granitehybrid"})
_SQUARE = frozenset({"qwen35", "qwen35moe", "qwen3next"})


def why_no_shape(info: GGUFInfo) -> str:
    """Return the fault in `info`'s model that libllama would not survive; empty without one."""
    return next((why for rule in _RULES if (why := rule(info))), "")


def _number(info: GGUFInfo, name: str) -> int | None:
    """A whole number under the architecture's name; the largest where there is one a layer."""
    value = info.metadata.get(f"{info.architecture}.{name}")
    if isinstance(value, list):
        value = max((v for v in value if isinstance(v, int)), default=0)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _first(info: GGUFInfo, name: str) -> int:
    """The first layer's number; 0 where there is none."""
    value = info.metadata.get(f"{info.architecture}.{name}")
    if isinstance(value, list):
        value = value[0] if value else 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _head(info: GGUFInfo, name: str) -> int:
    """The width of a head's keys or values; 0 where the first layer has no heads."""
    heads = _first(info, "attention.head_count")
    if heads <= 0:
        return 0
    given = _number(info, f"attention.{name}")
    return given if given is not None else _first(info, "embedding_length") // heads


def _layers(info: GGUFInfo) -> str:
    layers = _number(info, "block_count")
    if layers is not None and not 1 <= layers <= _MAX_LAYERS:
        return f"it claims to have {layers} layers; 1 to {_MAX_LAYERS} are possible"
    decoder = _number(info, "decoder_block_count") or 0
    if decoder > _MAX_LAYERS:
        return f"it claims to have {decoder} decoder layers; {_MAX_LAYERS} are possible"
    drafts = _number(info, "nextn_predict_layers") or 0
    if layers is not None and drafts > layers:
        return f"it claims that {drafts} of its {layers} layers make drafts"
    return ""


def _experts(info: GGUFInfo) -> str:
    experts = _number(info, "expert_count") or 0
    used = _number(info, "expert_used_count") or 0
    if experts > _MAX_EXPERTS or used > experts or (experts > 0) != (used > 0):
        return f"it claims to use {used} of {experts} experts"
    groups = _number(info, "expert_group_count") or 0
    chosen = _number(info, "expert_group_used_count") or 0
    split = groups > 1 and (experts % groups != 0 or not 0 < chosen < groups)
    if groups and (groups >= experts or split):
        return f"it claims to use {chosen} of {groups} groups of its {experts} experts"
    return ""


def _epsilons(info: GGUFInfo) -> str:
    for name in _EPSILONS:
        key = f"{info.architecture}.attention.{name}"
        epsilon = info.metadata.get(key)
        if isinstance(epsilon, float) and not 0.0 <= epsilon < math.inf:
            return f"{key} is {epsilon}"
    return ""


def _rotation(info: GGUFInfo) -> str:
    scaling = info.metadata.get(f"{info.architecture}.rope.scaling.type")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALINGS:
        known = ", ".join(_ROPE_SCALINGS)
        return f"it scales positions by {scaling[:40]!r}; llama.cpp knows {known}"
    for rotated, head in (
        ("rope.dimension_count", "key_length"),
        ("rope.dimension_count_swa", "key_length_swa"),
    ):
        count, width = _number(info, rotated), _head(info, "key_length")
        if _number(info, f"attention.{head}"):
            width = _head(info, head)
        if count is not None and width and (count > width or count % 2):
            return f"it claims to rotate {count} of the {width} values of a key"
    return ""


def _window(info: GGUFInfo) -> str:
    window = _number(info, "attention.sliding_window") or 0
    if window > _MAX_WINDOW:
        return f"it claims to have a sliding window of {window} positions"
    if info.array_lengths.get(f"{info.architecture}.attention.sliding_window_pattern") == 0:
        return "it claims to have a pattern of sliding windows, and no layer is in it"
    return ""


def _heads(info: GGUFInfo) -> str:
    """Return a fault that some families assert only when their graph is built, or an empty text."""
    architecture = info.architecture
    keys, values = _head(info, "key_length"), _head(info, "value_length")
    heads, width = _number(info, "attention.head_count") or 0, _first(info, "embedding_length")
    if architecture in _ALIKE and keys != values:
        return f"its keys have {keys} values and its values {values}; {architecture} has as many"
    rotated = _number(info, "rope.dimension_count")
    if keys and architecture in _ALL_ROTATED and rotated is not None and rotated != keys:
        return f"it claims to rotate {rotated} of the {keys} values of a key"
    if architecture in _FILLING and heads and width and heads * keys != width:
        return f"its {heads} heads of {keys} values do not make the {width} of a row"
    inner = _number(info, "ssm.inner_size")
    if architecture in _DOUBLED and inner is not None and width and inner != 2 * width:
        return f"its recurrent layers are {inner} values wide, not twice {width}"
    state, n_heads = _number(info, "ssm.state_size"), _number(info, "ssm.time_step_rank")
    told = architecture in _SQUARE and inner is not None
    if told and state is not None and n_heads is not None and inner != state * n_heads:
        return f"its recurrent layers are {inner} values wide, not {n_heads} heads of {state}"
    return ""


def _cells(info: GGUFInfo) -> str:
    """Keys and values come out of a weight, so a token cannot have more than the widest gives.

    Without this, a few bytes of a header make KV cells of any size.
    """
    widest = max((max(t.shape) for t in info.tensors if len(t.shape) > 1), default=0)
    heads = _number(info, "attention.head_count_kv")
    if heads is None:
        heads = _number(info, "attention.head_count") or 0
    if not widest or not heads:
        return ""
    for name in ("key_length", "value_length"):
        count = heads * _head(info, name)
        if count > widest:
            return (
                f"it claims to keep {count} values of a token in a layer, "
                f"and its widest weight gives {widest}"
            )
    return ""


def _weights(info: GGUFInfo) -> str:
    for tensor in info.tensors:
        name, kind = tensor.name, tensor.kind
        if kind in _NOT_COMPUTED and name.endswith(_COMPUTED):
            return f"tensor {name} has the type {_NOT_COMPUTED[kind]}, which no weight has"
        if kind == _I32 and _MATRIX.search(name):
            return f"tensor {name} has the type i32, which no matrix has"
        added = name.endswith("norm.weight") or name.endswith(".bias") and len(tensor.shape) == 1
        if added and kind not in (_F32, _F16, _BF16):
            return f"tensor {name} has the type {kind}, and llama.cpp keeps it in float32"
    return ""


_RULES = (_layers, _experts, _epsilons, _rotation, _window, _heads, _cells, _weights)
