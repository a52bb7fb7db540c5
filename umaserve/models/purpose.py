"""Purpose of a GGUF file by its header: a model, or a file that goes with a model."""

from __future__ import annotations

from collections.abc import Mapping

from .gguf.header import GGUFInfo

POOLING_RANK = 4  # LLAMA_POOLING_TYPE_RANK

_OTHER_TYPES = {
    "adapter": "a LoRA adapter; name the model that it changes, and this by --lora NAME=FILE",
    "imatrix": "an importance matrix, which quantizing a model needs; name the model",
    "mmproj": "the projector of a multimodal model (mmproj); name the language model beside it",
}
_OTHER_ARCHITECTURES = {
    "clip": _OTHER_TYPES["mmproj"],
    "controlvector": "a control vector; name the model that it steers",
}
# They read another model's states; libllama has no question to ask about it.
_DRAFTS = ("eagle3", "dflash", "gemma4-assistant")


def why_no_model(info: GGUFInfo) -> str:
    """Return why the file of `info` cannot be served, by its header; empty where it may be."""
    architecture, metadata = info.architecture, info.metadata
    kind = str(metadata.get("general.type", "model")).lower()
    if "adapter.type" in metadata:
        kind = "adapter"
    other = _OTHER_ARCHITECTURES.get(architecture, _OTHER_TYPES.get(kind))
    if other:
        return f"it is no model but {other}"
    if architecture in _DRAFTS:
        return (
            f"it is a draft model ({architecture}), which makes another model faster and cannot "
            "generate alone; name that one"
        )
    if not info.tensors:
        return "it has no weights (a vocabulary alone?); name the whole model"
    return ""


def makes_vectors(info: GGUFInfo) -> bool:
    """Whether it turns whole texts into vectors, as its header says; some models say nothing."""
    return info.metadata.get(f"{info.architecture}.attention.causal") is False


def role_of(architecture: str, metadata: Mapping[str, object]) -> str:
    """Return a model's role by its header: "embed", "rerank", or empty where it has none."""
    if metadata.get(f"{architecture}.pooling_type") == POOLING_RANK:
        return "rerank"
    return "embed" if metadata.get(f"{architecture}.attention.causal") is False else ""
