"""The draft model: a second, smaller model of the same vocabulary, and a context of its own."""

from __future__ import annotations

import numpy as np

from umaserve import llama
from umaserve.llama import Model
from umaserve.models.draft_model import draft_bytes, draft_cells, is_asked_for
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFError
from umaserve.wire import messages as m
from umaserve.wire.control import Control

from .abilities import why_no_drafts, why_no_plain_model
from .contexts import Sizes
from .loaded import CannotLoad, DraftModel

SPARE_TOKENS = 128  # that one of a family may have more than another, as llama.cpp allows
CHUNK = 512  # tokens of a text that it reads at once, at most


def open_draft_model(
    start: m.Start, model: Model, sizes: Sizes, no_way_back: str, control: Control
) -> DraftModel | None:
    """Load it, for drafts of what ``model`` says; None where there is none, or it cannot be used.

    ``sizes``: of the model's own context.  ``no_way_back``: why its recurrent state stays as it is.
    A person is told why the draft model cannot be used.  Raises CannotLoad where its file cannot be
    loaded at all.
    """
    from umaserve.engine.native.batch import Batch

    if not is_asked_for(start.draft_model, start.speculate):
        return None
    library = model.library
    control.send(m.LoadProgress(1.0, "draft model"))
    try:
        check_gguf(start.draft_model)
        draft = llama.Model.open(
            library, start.draft_model, n_gpu_layers=start.gpu_layers, use_mmap=start.use_mmap,
            use_mlock=start.use_mlock,
        )  # fmt: skip
    except (llama.LlamaError, GGUFError) as error:
        raise CannotLoad(f"--draft-model: {error}") from error
    why = _why_no_drafts(draft, model, no_way_back)
    if why:
        control.send(m.Log("warn", f"{start.draft_model} drafts nothing: {why}"))
        draft.close()
        return None
    n_ctx = draft_cells(start.n_ctx)
    n_batch = min(max(CHUNK, start.n_slots), n_ctx)
    try:
        context = llama.Context.open(
            draft, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch, n_seq_max=start.n_slots,
            n_threads=sizes.n_threads, n_threads_batch=sizes.n_threads_batch,
        )  # fmt: skip
    except llama.LlamaError as error:
        draft.close()
        raise CannotLoad(f"--draft-model: {error}") from error
    n_positions = min(draft.n_ctx_train or n_ctx, n_ctx)
    batch = Batch(library.ffi, n_batch, start.n_slots)
    n_bytes = draft_bytes(start.draft_model, start.speculate, start.n_ctx)
    n_vocab = min(draft.n_vocab, model.n_vocab)
    return DraftModel(draft, context, batch, n_vocab, n_positions, n_bytes=n_bytes)


def _why_no_drafts(draft: Model, model: Model, no_way_back: str) -> str:
    """Why it cannot draft for ``model``; empty where it can."""
    lib = model.library.lib
    if why := why_no_plain_model(lib, draft.pointer):
        return f"{draft.path.name}: {why}"
    if why := why_no_drafts(lib, model.pointer, no_way_back):
        return f"{model.path.name}: {why}"
    if abs(draft.n_vocab - model.n_vocab) > SPARE_TOKENS:
        return f"it has {draft.n_vocab} tokens, and {model.path.name} has {model.n_vocab}"
    if (draft.token_bos, draft.token_eos) != (model.token_bos, model.token_eos):
        return f"its texts begin or end with other tokens than those of {model.path.name}"
    own, others = _texts(draft), _texts(model)
    both = range(min(len(own), len(others)))
    differs = next((i for i in both if own[i] != others[i]), None)
    if differs is None:
        return ""
    return f"token {differs} is {own[differs]!r}, and {others[differs]!r} in {model.path.name}"


def _texts(model: Model) -> list[bytes]:
    offsets, data = model.piece_table()
    whole, ends = data.tobytes(), np.asarray(offsets).tolist()
    return [whole[a:b] for a, b in zip(ends, ends[1:], strict=False)]
