"""From a Start message to a model that has decoded its first token."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from umaserve import llama
from umaserve.llama import Context, Library, Model, purpose
from umaserve.llama.adapters import Adapters
from umaserve.models.experts import why_not_used
from umaserve.models.gguf.faults import GGUFInfo, check_gguf
from umaserve.models.gguf.header import GGUFError
from umaserve.models.identity import ModelIdentity, file_facts, identify
from umaserve.models.needs import available_bytes
from umaserve.models.purpose import why_no_model
from umaserve.texts import sendable_path
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control

from . import adapters as lora
from . import capacity, heads, load_warnings
from .abilities import (
    device_memory,
    spare_sequences,
    what_is_off,
    why_no_drafts,
    why_no_eyes,
    why_no_shift,
    why_no_way_back,
)
from .contexts import Sizes, bytes_of, open_context, sizes_of
from .loaded import PROCESSOR, CannotLoad, Loaded, usable_cores

# How long a thread of libgomp waits for the others before it sleeps, in turns of its loop.  Its own
# 300,000 last milliseconds, longer than the time between two ticks.  The front, woken by a tick's
# tokens, then finds every core of a small machine taken, and gets the engine's.  Ours last a
# tenth or two of a millisecond and cover the waits inside a decode.  Where others take the cores, a
# thread that sleeps gets its turn sooner than a thread that spins (docs/THREADS.md).
SPIN_COUNT = 5_000


def _places(on_processor: bool) -> Any:
    """Return the places of the threads that compute, on a processor."""
    from .thread_places import find_places, no_places  # it loads a compiler
    return find_places() if on_processor else no_places()


def load(
    start: m.Start, pieces_fd: int, control: Control, wait_for_imports: Callable[[], None]
) -> Loaded:
    """Load what ``start`` asks for.  Raises CannotLoad with a reason for the user.

    ``wait_for_imports`` returns when no other thread imports anything.  To be called in the thread
    of the ticks.
    """
    control.send(m.LoadProgress(0.0, "start"))
    facts, began = _file_facts(start.model_path), time.monotonic()
    library, info = _open_library(start)
    n_ctx, snapshots = _cells(library, start, info)
    model = _open_model(library, start, info, control)
    wait_for_imports()  # what is free in the memory of this process is looked at below
    _refuse(_why_no_use(model, info), model)
    adapters = lora.open_adapters(start, model, info.architecture)
    on_processor = (device := _device_name(library, start)) == PROCESSOR
    n_seq = start.n_seq + spare_sequences(start.n_seq, on_processor, model)
    wanted = sizes_of(start, n_ctx, n_seq, snapshots)
    control.send(m.LoadProgress(1.0, "context"))
    mark = library.log_position()
    context, sizes, encodes, unused_bytes = _open_context(
        start, model, info, wanted, adapters, control, on_processor
    )
    load_warnings.tell(control, model, mark, start, info, device)
    no_way_back = why_no_way_back(start, context, wanted.snapshots)
    kv_bytes, state_bytes = bytes_of(start, context, sizes.n_ctx)
    _write_pieces(start, model, pieces_fd)
    is_eog = np.ascontiguousarray(model.eog_mask(), dtype=np.uint8)
    told = start, context, info, sizes, no_way_back, control
    drafter = (None, "") if encodes else heads.open_drafter(*told)
    return Loaded(
        library=library,
        model=model,
        context=context,
        identity=_identity(start.model_path, facts, adapters.digests),
        n_vocab=model.n_vocab,
        n_ctx=sizes.n_ctx,
        n_positions=min(m.positions_of_one(sizes.n_ctx, model.n_ctx_train), start.positions),
        n_seq=context.n_seq_max if encodes else start.n_seq,
        n_batch=sizes.n_batch,
        n_ubatch=sizes.n_ubatch,
        n_threads=sizes.n_threads,
        n_threads_batch=sizes.n_threads_batch,
        n_cores=usable_cores(),
        device=device,
        eog_ids=np.flatnonzero(is_eog).astype(np.int32),
        is_eog=is_eog,
        draft=drafter[0],
        load_ms=(time.monotonic() - began) * 1000.0,
        kv_bytes=kv_bytes, state_bytes=state_bytes, unused_bytes=unused_bytes,
        on_processor=on_processor,
        places=_places(on_processor),
        generates=not encodes,
        adapters=adapters,
        no_way_back=no_way_back,
        heads=drafter[1],
    )


def _open_library(start: m.Start) -> tuple[Library, GGUFInfo]:
    """libllama, and what the model's file says of itself; refuses what it says too much of."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))  # read when libgomp is loaded
    try:
        library = llama.load(start.backend)
        library.show_errors()
        info = check_gguf(start.model_path)
    except (llama.LlamaError, GGUFError) as error:
        raise CannotLoad(str(error)) from error
    _refuse(why_no_model(info))
    _refuse(why_not_used(info, start.experts_used))
    _refuse(capacity.why_no_such_cells(start, info) or capacity.why_no_mapping(start, info))
    return library, info


def _cells(library: Library, start: m.Start, info: GGUFInfo) -> tuple[int, int]:
    """KV cells, as many as were asked for, else what memory bears; and states for drafts."""
    also = heads.bytes_needed(start)
    _refuse(capacity.why_no_memory(start, also))
    fits = capacity.find_fits(start, info, llama.devices(library), available_bytes(), also)
    snapshots, fits = capacity.leave_snapshots(start, info, fits)
    return start.n_ctx or capacity.auto_cells(start, fits), snapshots


def _why_no_use(model: Model, info: GGUFInfo) -> str:
    """Why nobody has use for this model; empty where somebody has."""
    encodes = purpose.only_encodes(model, info)
    why = "" if encodes else purpose.why_no_generation(model)
    return why or purpose.why_no_positions(model, info) or purpose.why_no_scores(model, info)


def _write_pieces(start: m.Start, model: Model, pieces_fd: int) -> None:
    """Fill the table of the vocabulary's texts."""
    try:
        pieces = t.PieceTable(pieces_fd, model.n_vocab)
        pieces.write(model.piece_table(), model.piece_table(hidden=True))
    except ValueError as error:
        raise CannotLoad(f"{start.model_path} cannot be served: {error}") from error


def _refuse(why: str, *opened: Context | Model) -> None:
    """Closes what was opened and raises CannotLoad, unless ``why`` is empty."""
    if why:
        for each in opened:
            each.close()
        raise CannotLoad(why)


def _file_facts(path: str) -> tuple[tuple[int, ...], ...]:
    try:
        return file_facts(path)
    except (OSError, ValueError):
        return ()  # `check_gguf` says what is wrong


def _identity(path: str, facts: tuple[Any, ...], adapters: tuple[str, ...]) -> ModelIdentity:
    """Identity of the loaded files; ``facts`` are theirs from before.  Raises `CannotLoad`."""
    try:
        found = identify(path)
    except OSError as error:
        raise CannotLoad(f"{path} cannot be read: {error.strerror}") from error
    if found.files != facts:
        raise CannotLoad(f"{path} was changed while it was loaded; load it again")
    return ModelIdentity(found.files, found.digest, adapters)


def _open_model(
    library: Library, start: m.Start, info: GGUFInfo, control: Control
) -> Model:
    last = 0.0

    def progress(fraction: float) -> bool:
        nonlocal last
        if fraction - last >= 0.01 or fraction == 1.0:
            last = fraction
            control.send(m.LoadProgress(fraction, "weights"))
        return not control.closed

    try:
        return llama.Model.open(
            library,
            start.model_path,
            n_gpu_layers=start.gpu_layers,
            use_mmap=start.use_mmap,
            use_mlock=start.use_mlock,
            experts_used=start.experts_used,
            heads=heads.are_asked_for(start, info),
            progress=progress,
        )
    except llama.LlamaError as error:
        raise CannotLoad(str(error)) from error


def _open_context(
    start: m.Start, model: Model, info: GGUFInfo, wanted: Sizes, adapters: Adapters,
    control: Control, on_processor: bool,
) -> tuple[Context, Sizes, bool, int]:  # fmt: skip
    """Open the context as `open_context`; return also the bytes of unused memory given back."""
    from . import unused_memory  # it loads a compiler

    # an accelerator's library may have told a device where this memory lies
    lean = not start.pretouch and on_processor and model.library.build.backend == "cpu"
    before = unused_memory.private_memory() if lean else []
    context, sizes, encodes = open_context(start, model, info, wanted, control)
    adapters.set(context)
    return context, sizes, encodes, unused_memory.give_back_since(before) if lean else 0


def describe(start: m.Start, loaded: Loaded, start_ms: float) -> m.Ready:
    """The Ready message for a loaded model."""
    model = loaded.model
    metadata = model.metadata
    build = loaded.library.build
    free = None if loaded.on_processor else device_memory(loaded)
    return m.Ready(
        model_path=start.model_path,
        model_name=metadata.get("general.name") or Path(start.model_path).stem,
        description=model.description,
        architecture=metadata.get("general.architecture", "unknown"),
        n_vocab=loaded.n_vocab,
        n_ctx=loaded.n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_seq=loaded.n_seq,
        n_batch=loaded.n_batch,
        n_ubatch=loaded.n_ubatch,
        n_threads=loaded.n_threads,
        n_threads_batch=loaded.n_threads_batch,
        backend=build.backend,
        device=loaded.device,
        library_version=loaded.library.version,
        model_bytes=model.size_bytes,
        kv_bytes=loaded.kv_bytes,
        state_bytes=loaded.state_bytes,
        n_params=model.n_params,
        chat_template=model.chat_template,
        tool_template=model.tool_template,
        gap=_gap(model),
        adds_bos=model.adds_bos,
        adds_eos=model.adds_eos,
        chat_program=sendable_path(str(build.chat_program or "")),
        why_no_chat=build.why_no_chat,
        bos=_text(model, model.token_bos),
        eos=_text(model, model.token_eos),
        load_ms=loaded.load_ms,
        start_ms=start_ms,
        identity=loaded.identity,
        device_free=-1 if free is None else free,
        n_embd=model.n_embd,
        pooling=loaded.pooling,
        generates=loaded.generates,
        off=what_is_off(loaded),
        why_no_shift=why_no_shift(loaded),
        why_no_drafts=why_no_drafts(loaded.library.lib, model.pointer, loaded.no_way_back),
        draft_model=start.draft_model if loaded.draft_model is not None else "",
        draft_bytes=loaded.draft.n_bytes if loaded.draft is not None else 0,
        heads=loaded.heads,
        eyes_program=sendable_path(str(build.eyes_program or "")),
        why_no_eyes=why_no_eyes(start, loaded),
        n_embd_input=model.n_embd_input,
        adapters=lora.facts(start, loaded),
    )


def _gap(model: Model) -> dict[str, int]:
    start = model.adds_bos and model.token_bos >= 0
    return model.gap_tokens | ({"bos": model.token_bos} if start else {})


def _text(model: Model, token: int) -> str:
    if token < 0:
        return ""
    return model.token_to_piece_bytes(token, special=True).decode("utf-8", "replace")


def _device_name(library: Library, start: m.Start) -> str:
    """The first accelerator where layers may lie, else the processor."""
    if start.gpu_layers != 0:
        for device in llama.devices(library):
            if device["type"] in ("gpu", "igpu"):
                return str(device["description"])
    return PROCESSOR
