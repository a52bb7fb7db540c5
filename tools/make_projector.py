"""Writes a projector of pictures with random weights, as small as llama.cpp takes one.

It is the encoder of a family: what it makes of a picture means nothing, but depends on every pixel.
Embeddings of gemma3 see each other, those of Janus-Pro what comes before (SigLIP both).  Those of
Qwen-VL lie in a grid as large as the picture, and Qwen3-VL's have a part for its first layer
(deepstack).  Tests compare with llama.cpp's own server on the same file.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf_container as container
import numpy as np

F32 = 0
GEMMA3, JANUS_PRO, QWEN25VL, QWEN3VL = KINDS = (
    "gemma3", "janus_pro", "qwen2.5vl_merger", "qwen3vl_merger",
)  # fmt: skip
QWEN = (QWEN25VL, QWEN3VL)
LOUD = 16.0  # times what trained weights are: so that a picture changes what is said
PATCH, MERGE = 14, 4  # pixels of a patch's side, and patches of an embedding's side


def keys(
    kind: str, width: int, side: int, n_embd: int, n_layer: int
) -> dict[str, container.Value]:
    """The metadata; ``side``: pixels that a picture is scaled to."""
    half = struct.pack("<IQ3f", container.FLOAT32, 3, 0.5, 0.5, 0.5)
    plain: dict[str, str | bool | int | float] = {
        "general.architecture": "clip",
        "general.name": "random projector",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        "clip.use_gelu": True,
        "clip.vision.image_size": side,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": n_embd,
        "clip.vision.feed_forward_length": 2 * n_embd,
        "clip.vision.projection_dim": width,
        "clip.vision.block_count": n_layer,
        "clip.vision.attention.head_count": 2,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projector.scale_factor": MERGE,
    }
    if kind == QWEN25VL:
        del plain["clip.use_gelu"]
        plain |= {"clip.use_silu": True, "clip.vision.n_wa_pattern": 2}
    found = {name: container.Value.of(value) for name, value in plain.items()}
    for name in ("image_mean", "image_std"):
        found[f"clip.vision.{name}"] = container.Value(container.ARRAY, half)
    return found


def tensors(
    kind: str, width: int, side: int, n_embd: int, n_layer: int
) -> dict[str, tuple[int, ...]]:
    """Names and dimensions, the row length first."""
    if kind in QWEN:
        return _qwen_tensors(kind, width, side, n_embd, n_layer)
    patches, n_ff = (side // PATCH) ** 2, 2 * n_embd
    found: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (PATCH, PATCH, 3, n_embd),
        "v.patch_embd.bias": (n_embd,),
        "v.position_embd.weight": (n_embd, patches),
        "v.post_ln.weight": (n_embd,),
        "v.post_ln.bias": (n_embd,),
    }
    if kind == GEMMA3:
        found["mm.input_projection.weight"] = (width, n_embd)
        found["mm.soft_emb_norm.weight"] = (n_embd,)
    else:
        found["mm.0.weight"], found["mm.0.bias"] = (n_embd, width), (width,)
        found["mm.1.weight"], found["mm.1.bias"] = (width, width), (width,)
    for layer in range(n_layer):
        name = f"v.blk.{layer}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            found[f"{name}{part}.weight"], found[f"{name}{part}.bias"] = (n_embd, n_embd), (n_embd,)
        for part in ("ln1", "ln2"):
            found[f"{name}{part}.weight"] = found[f"{name}{part}.bias"] = (n_embd,)
        found[f"{name}ffn_up.weight"], found[f"{name}ffn_up.bias"] = (n_embd, n_ff), (n_ff,)
        found[f"{name}ffn_down.weight"], found[f"{name}ffn_down.bias"] = (n_ff, n_embd), (n_embd,)
    return found


def _qwen_tensors(
    kind: str, width: int, side: int, n_embd: int, n_layer: int
) -> dict[str, tuple[int, ...]]:
    """`tensors` of Qwen-VL, whose embeddings are of two by two patches."""
    n_ff, merged = 2 * n_embd, 4 * n_embd
    found: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (PATCH, PATCH, 3, n_embd),
        "v.patch_embd.weight.1": (PATCH, PATCH, 3, n_embd),  # of the second of two frames
        "v.post_ln.weight": (n_embd,),
        "mm.0.weight": (merged, merged),
        "mm.0.bias": (merged,),
        "mm.2.weight": (merged, width),
        "mm.2.bias": (width,),
    }
    names = {"attn_q": n_embd, "attn_k": n_embd, "attn_v": n_embd}
    if kind == QWEN3VL:
        names = {"attn_qkv": 3 * n_embd}
        found["v.patch_embd.bias"] = found["v.post_ln.bias"] = (n_embd,)
        found["v.position_embd.weight"] = (n_embd, (side // PATCH) ** 2)
        for part, dims in (
            ("norm", (merged,)),
            ("fc1", (merged, merged)),
            ("fc2", (merged, width)),
        ):
            found[f"v.deepstack.0.{part}.weight"] = dims
            found[f"v.deepstack.0.{part}.bias"] = dims[-1:]
    for layer in range(n_layer):
        at = f"v.blk.{layer}."
        parts = {**names, "attn_out": n_embd, "ffn_up": n_ff}
        parts |= {"ffn_gate": n_ff} if kind == QWEN25VL else {}
        for part, out in parts.items():
            found[f"{at}{part}.weight"], found[f"{at}{part}.bias"] = (n_embd, out), (out,)
        found[f"{at}ffn_down.weight"], found[f"{at}ffn_down.bias"] = (n_ff, n_embd), (n_embd,)
        for part in ("ln1", "ln2"):
            found[f"{at}{part}.weight"] = (n_embd,)
            if kind == QWEN3VL:
                found[f"{at}{part}.bias"] = (n_embd,)
    return found


def write_projector(
    out: Path, width: int, *, kind: str = GEMMA3, side: int = 224, n_embd: int = 32,
    n_layer: int = 2,
) -> Path:  # fmt: skip
    """Write a projector for models of ``width``; returns its path."""
    shapes, random = tensors(kind, width, side, n_embd, n_layer), np.random.default_rng(1)
    found = {}
    for name, dims in shapes.items():
        values = random.standard_normal(int(np.prod(dims)), np.float32)
        is_norm = "ln" in name or "norm" in name
        scale = 0.3 if is_norm else 1.0 / np.sqrt(dims[0] if len(dims) == 2 else PATCH * PATCH * 3)
        if name in ("mm.input_projection.weight", "mm.1.weight", "mm.2.weight"):
            scale *= LOUD
        values = values * np.float32(scale) + np.float32(is_norm and name.endswith("weight"))
        found[name] = dims, F32, values.astype(np.float32).tobytes()
    out.write_bytes(container.whole(keys(kind, width, side, n_embd, n_layer), found))
    return out
