"""Messages for a GGUF file that serves neither for text nor for embeddings, before libllama aborts.

`models.purpose` judges by the header. The functions here ask the model and its context for facts
about an architecture that only libllama knows. Each answer says what the file is and what to do,
or is empty where nothing is wrong.
"""

from __future__ import annotations

from umaserve.models.gguf.header import GGUFInfo
from umaserve.models.purpose import makes_vectors

from .context import Context
from .model import Model

_INSTEAD = "name a model that goes on with a text"


def only_encodes(model: Model, info: GGUFInfo) -> bool:
    """Whether `model` turns whole texts into vectors, and generates nothing.

    Of some architectures only a context tells (`goes_on`).
    """
    lib = model.library.lib
    if not lib.llama_model_has_decoder(model.pointer):
        return True
    if lib.llama_model_is_diffusion(model.pointer):
        return False
    return makes_vectors(info)


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


def why_no_scores(model: Model, info: GGUFInfo) -> str:
    """Why a file whose pooling is rank can rank nothing: it has no head that makes scores."""
    named = f"{info.architecture}.pooling_type"
    heads = ("cls.weight", "cls.output.weight")
    if info.metadata.get(named) != model.library.lib.LLAMA_POOLING_TYPE_RANK:
        return ""
    if any(tensor.name in heads for tensor in info.tensors):
        return ""
    return (
        f"it claims to rank texts ({info.architecture}, pooling rank) and has no tensor "
        "cls.weight or cls.output.weight, which makes scores; fetch it again"
    )
