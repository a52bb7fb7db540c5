"""A model's own heads for several tokens (MTP), and the context that they draft in."""

from __future__ import annotations

from umaserve import llama
from umaserve.llama import Context, Model
from umaserve.llama.heads import HiddenStates
from umaserve.models.draft_model import HEAD_FAMILIES, draft_bytes, head_bytes, head_cells
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFError, GGUFInfo
from umaserve.models.kv_shape import KvShape
from umaserve.wire import messages as m
from umaserve.wire.control import Control

from .abilities import why_no_drafts
from .contexts import Sizes
from .draft_model import CHUNK, open_draft_model
from .loaded import DraftModel

USED = "its own heads draft, for texts of which they have read all tokens"


def are_asked_for(start: m.Start, info: GGUFInfo) -> bool:
    """Return whether a model's heads are loaded: it has some, and nothing else is to draft."""
    wanted = start.speculate == "mtp" or start.speculate == "auto" and not start.draft_model
    return wanted and not why_none(info)


def why_none(info: GGUFInfo) -> str:
    """Why the file's heads cannot draft; empty where they can."""
    arch = info.architecture
    n, layers = (
        info.metadata.get(f"{arch}.{name}", 0) for name in ("nextn_predict_layers", "block_count")
    )
    if not isinstance(n, int) or not isinstance(layers, int) or n < 1:
        return "the model has none"
    if arch not in HEAD_FAMILIES:
        return f"libllama's graph for those of {arch} was not tried"
    if n > 1:
        return f"it has {n} layers of them, which would take turns"
    if all(each.name != f"blk.{layers - 1}.nextn.eh_proj.weight" for each in info.tensors):
        return "the file leaves them out"
    return ""


def bytes_needed(start: m.Start) -> int:
    """Bytes of a draft model, or of the heads' KV cells and buffers; 0 where neither drafts.

    The heads' weights count as weights of the model.
    """
    if draft := draft_bytes(start.draft_model, start.speculate, start.n_ctx):
        return draft
    try:
        info = check_gguf(start.model_path)
    except (GGUFError, OSError):
        return 0  # whoever loads the model says why
    if not are_asked_for(start, info):
        return 0
    return head_bytes(KvShape.of(info.architecture, info.metadata), start.n_ctx)


def open_drafter(
    start: m.Start, context: Context, info: GGUFInfo, sizes: Sizes, no_way_back: str,
    control: Control,
) -> tuple[DraftModel | None, str]:  # fmt: skip
    """Open a draft model, or a context for the heads of ``context``'s model.

    Returns None where neither drafts.  The text says whether the heads do, or why they do not; it
    is empty where nobody asked for them.  A person is told why.  Raises CannotLoad.
    """
    model = context.model
    if draft := open_draft_model(start, model, sizes, no_way_back, control):
        return draft, ""
    if not are_asked_for(start, info):
        if start.speculate != "mtp":
            return None, ""
        why = why_none(info)
    else:
        functions = HiddenStates.of(model.library)
        why = why_no_drafts(model.library.lib, model.pointer, no_way_back)
        if not why and functions is None:
            why = "this libllama does not give their inputs"
        if not why and functions is not None:
            draft, why = _open(start, model, sizes, functions)
            if draft is not None:
                functions.keep(context, masked=False)
                return draft, USED
    control.send(m.Log("warn", f"{start.model_path} drafts nothing with its own heads: {why}"))
    return None, f"its own heads draft nothing: {why}"


def _open(
    start: m.Start, model: Model, sizes: Sizes, functions: HiddenStates
) -> tuple[DraftModel | None, str]:
    """Open the heads' context; None and why where libllama makes none."""
    from umaserve.engine.native.batch import Batch

    library, n_ctx = model.library, head_cells(start.n_ctx)
    n_batch = min(max(CHUNK, start.n_slots), n_ctx)
    try:
        context = llama.Context.open(
            model, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch, n_seq_max=start.n_slots,
            n_threads=sizes.n_threads, n_threads_batch=sizes.n_threads_batch,
            ctx_type=library.lib.LLAMA_CONTEXT_TYPE_MTP, n_outputs_max=start.n_slots,
        )  # fmt: skip
    except llama.LlamaError as error:
        return None, str(error)
    functions.keep(context, masked=True)
    batch = Batch(library.ffi, n_batch, start.n_slots, n_embd=model.n_embd)
    n_positions = min(model.n_ctx_train or n_ctx, n_ctx)
    n_bytes = bytes_needed(start)
    return DraftModel(None, context, batch, model.n_vocab, n_positions, functions, n_bytes), ""
