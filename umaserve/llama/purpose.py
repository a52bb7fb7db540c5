"""What a GGUF file is for, where it serves neither for text nor for embeddings: in words, before
libllama aborts.

The header tells much; what only libllama knows about an architecture is asked of the model and of
its context. Each answer says what the file is and what to do, or is empty where nothing is wrong.
"""

from __future__ import annotations

from umaserve.models.header import GGUFInfo

from .context import Context
from .model import Model

_OTHER_TYPES = {
    "adapter": "a LoRA adapter; name the model that it changes, or merge the two",
    "imatrix": "an importance matrix, which quantizing a model needs; name the model",
    "mmproj": "the projector of a multimodal model (mmproj); name the language model beside it",
}
_OTHER_ARCHITECTURES = {
    "clip": _OTHER_TYPES["mmproj"],
    "controlvector": "a control vector; name the model that it steers",
}
# They read another model's states; libllama has no question to ask about it.
_DRAFTS = ("eagle3", "dflash", "gemma4-assistant")
_INSTEAD = "name a model that goes on with a text"


def why_no_model(info: GGUFInfo) -> str:
    """What the file of `info` is, where its header says that it cannot be served."""
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
    if info.n_tensors == 0:
        return "it has no weights (a vocabulary alone?); name the whole model"
    return ""


def only_encodes(model: Model, info: GGUFInfo) -> bool:
    """Whether `model` turns whole texts into vectors, and generates nothing.

    Of some architectures only a context tells (`goes_on`).
    """
    lib = model.library.lib
    if not lib.llama_model_has_decoder(model.pointer):
        return True
    if lib.llama_model_is_diffusion(model.pointer):
        return False
    return info.metadata.get(f"{info.architecture}.attention.causal") is False


def why_no_generation(model: Model) -> str:
    """Why libllama cannot generate text with `model` token by token."""
    lib = model.library.lib
    architecture = model.metadata.get("general.architecture", "unknown")
    if lib.llama_model_is_diffusion(model.pointer):
        return (
            f"it is a diffusion model ({architecture}): it fills in a whole text at once and "
            f"cannot generate token by token; {_INSTEAD}"
        )
    if lib.llama_model_has_encoder(model.pointer):
        return (
            f"it is an encoder-decoder model ({architecture}): it turns one whole text into "
            f"another and cannot generate from a prompt; {_INSTEAD}"
        )
    return ""


def why_no_positions(model: Model, info: GGUFInfo) -> str:
    """Why libllama would never end the first token of `model`: it is to rotate no values.

    ggml's loop over the values beside the rotated ones does not end then
    (``ggml_compute_forward_rope_flt``). A model that rotates in its sliding windows alone may say
    0 of the other layers, and Granite without rotation says ``scaling.finetuned`` false.
    """
    lib = model.library.lib
    if lib.llama_model_rope_type(model.pointer) == lib.LLAMA_ROPE_TYPE_NONE:
        return ""
    full, windows, tuned = (
        info.metadata.get(f"{info.architecture}.rope.{name}")
        for name in ("dimension_count", "dimension_count_swa", "scaling.finetuned")
    )
    if tuned is not False and (windows == 0 or full == 0 and not windows):
        return "it claims to rotate 0 values of a key (rope.dimension_count); fetch it again"
    return ""


def goes_on(context: Context) -> bool:
    """Whether `context` can go on token by token: it keeps a text, and no token sees later ones."""
    lib, nothing = context.library.lib, context.library.ffi.NULL
    return context.memory != nothing and bool(lib.llama_get_causal_attn(context.pointer))


def why_no_vectors(model: Model) -> str:
    """Why nobody has use for the vectors of a `model` that only encodes."""
    architecture = model.metadata.get("general.architecture", "unknown")
    if model.metadata.get(f"{architecture}.pooling_type") == "4":  # LLAMA_POOLING_TYPE_RANK
        return (
            f"it ranks texts ({architecture}, pooling rank): it neither generates nor makes "
            f"embeddings; {_INSTEAD}"
        )
    return ""
