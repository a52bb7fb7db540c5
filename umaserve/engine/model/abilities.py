"""Abilities of this model on this device."""

from __future__ import annotations

from typing import Any

from umaserve.llama import Context, Model
from umaserve.models.states import GO_BACK, RESERVED
from umaserve.wire import messages as m

from .loaded import Loaded

ENDED = 48  # ended ones that may have cells
STATE = "the model keeps a recurrent state"
NO_ROOM = "there is no room for earlier ones (in memory, or in --n-ubatch)"


def why_not_plain(loaded: Loaded) -> str:
    """Why tokens of a sequence of nobody's cannot be computed beside others; "" = they can."""
    if loaded.context.n_seq_max <= loaded.n_seq:
        return "the context has no spare sequence"
    return why_no_plain_model(loaded.library.lib, loaded.model.pointer)


def can_fill_up(loaded: Loaded, tokens: int) -> bool:
    """Whether ticks of a processor may be filled up to ``tokens`` with tokens of nobody's.

    Rows of a model with a recurrent state are computed apart, by their number of tokens.
    """
    lib, model = loaded.library.lib, loaded.model.pointer
    has_spare = loaded.context.n_seq_max > loaded.n_seq
    has_room = min(loaded.n_batch, loaded.n_ubatch) >= tokens
    is_fit = not keeps_state(lib, model) and not _why_no_decoder(lib, model)
    return loaded.on_processor and has_spare and has_room and is_fit


def why_no_shift(loaded: Loaded) -> str:
    """Why a sequence cannot lose tokens of its middle; "" = it can."""
    why = why_not_plain(loaded)
    if not why and has_several_dimensions(loaded.library.lib, loaded.model.pointer):
        why = "the model's positions have several dimensions"
    if not why and not loaded.library.lib.llama_memory_can_shift(loaded.context.memory):
        why = "its keys cannot be moved to other positions"
    return why


def why_no_eyes(start: m.Start, loaded: Loaded) -> str:
    """Why the model reads no pictures; "" = it does."""
    if not start.mmproj or not loaded.generates:
        return "this model reads text only"
    return loaded.library.build.why_no_eyes


def what_is_off(loaded: Loaded) -> str:
    """A sentence about what this model cannot have here, and why; empty where it can have all."""
    if not loaded.generates:
        return ""
    lib, model = loaded.library.lib, loaded.model.pointer
    if why := why_no_plain_model(lib, model):
        drafts = why_no_drafts(lib, model, loaded.no_way_back)
        saved = can_be_saved(loaded)
        cache = "the prefix cache goes on at ends of messages" if saved else "nothing is cached"
        off = "drafts and context shift are" if drafts else "context shift is"
        return f"{off} off, and {cache}: {drafts or why}"
    why = why_no_shift(loaded)
    return f"context shift is off: {why}" if why else ""


def can_be_saved(loaded: Loaded) -> bool:
    """Whether the state of a sequence can be saved and restored as a whole."""
    lib, model = loaded.library.lib, loaded.model.pointer
    return not (lib.llama_model_has_encoder(model) or lib.llama_model_is_diffusion(model))


def has_several_dimensions(lib: Any, model: Any) -> bool:
    """Return whether positions have several dimensions (M-RoPE)."""
    several = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)
    return lib.llama_model_rope_type(model) in several


def why_no_plain_model(lib: Any, model: Any) -> str:
    """Part of `why_not_plain` that the model decides; ``lib``: libllama, ``model``: its pointer."""
    if why := STATE if keeps_state(lib, model) else _why_no_decoder(lib, model):
        return why
    return "the model has sliding-window attention" if lib.llama_model_n_swa(model) > 0 else ""


def keeps_state(lib: Any, model: Any) -> bool:
    """Return whether the model has layers with a recurrent state."""
    return bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))


def why_no_drafts(lib: Any, model: Any, no_way_back: str) -> str:
    """Why the last tokens of a tick cannot be forgotten after it; "" = they can.

    Tokens of a sliding window can be, if one batch computed them.  Such tokens take only cells that
    the first of them does not see.  ``no_way_back`` says why a recurrent state stays as it is.
    """
    return no_way_back if keeps_state(lib, model) else _why_no_decoder(lib, model)


def why_no_way_back(start: m.Start, context: Context, wanted: int) -> str:
    """Why a recurrent state cannot go back; "" = it can, or nobody asked for it.

    ``wanted``: earlier states of each sequence that there is room for.
    """
    lib, model = context.library.lib, context.model
    if lib.llama_n_rs_seq(context.pointer) or not keeps_state(lib, model.pointer):
        return ""
    if wanted or model.metadata.get("general.architecture") not in GO_BACK:
        return STATE
    return "" if start.speculate == "off" else f"{STATE}, and {NO_ROOM}"


def _why_no_decoder(lib: Any, model: Any) -> str:
    encodes = lib.llama_model_has_encoder(model) or lib.llama_model_is_diffusion(model)
    return "the model is no plain decoder" if encodes else ""


def device_memory(loaded: Loaded) -> int | None:
    """Free bytes of the first accelerator; None where its driver does not say."""
    lib, ffi = loaded.library.lib, loaded.library.ffi
    for kind in (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU):
        device = lib.ggml_backend_dev_by_type(kind)
        if device != ffi.NULL:
            free, total = ffi.new("size_t *"), ffi.new("size_t *")
            lib.ggml_backend_dev_memory(device, free, total)
            return int(free[0]) if total[0] else None
    return None


def spare_sequences(n_seq: int, on_processor: bool, model: Model) -> int:
    """Number of KV sequences beside ``n_seq``: one for pieces of KV, and some that have ended.

    Ended sequences are held where copies are dear (`umaserve.engine.cells.sequences`).
    """
    lib = model.library.lib
    # each costs logits of a row, and a state where the model is recurrent, used or not
    more = not on_processor and not why_no_plain_model(lib, model.pointer)
    wanted = RESERVED + (ENDED if more else 0)
    return max(min(wanted, int(lib.llama_max_parallel_sequences()) - n_seq), 0)


def flash_attention(start: m.Start) -> bool | None:
    """None leaves the choice to libllama; a transposed V rules it out."""
    if start.head_major:
        return False
    return {"auto": None, "on": True, "off": False}[start.flash_attn]
