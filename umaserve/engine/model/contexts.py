"""The context of a model: for token after token, or for whole texts where it only encodes."""

from __future__ import annotations

from typing import NamedTuple

from umaserve import llama
from umaserve.llama import Context, Model, purpose
from umaserve.models.gguf.header import GGUFInfo
from umaserve.models.kv_shape import padded
from umaserve.models.needs import MOST_CAUSAL
from umaserve.models.states import TEXTS_AT_ONCE
from umaserve.wire import messages as m
from umaserve.wire.control import Control

from . import capacity
from .abilities import flash_attention
from .loaded import CannotLoad, usable_cores
from .pooling import LAST, NUMBERS, RANK, pooling_of

DEFAULT_BATCH = 2048  # tokens of one llama_decode; the policy's time budget rules below it
MOST_TOKENS = 2048  # of a text, where nobody chose: attention's memory grows with their square


class Sizes(NamedTuple):
    """Sizes of a context, and numbers of threads that compute with it."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_threads: int
    n_threads_batch: int
    snapshots: int  # earlier states of each sequence


def sizes_of(start: m.Start, n_ctx: int, n_seq_max: int, snapshots: int) -> Sizes:
    """Sizes to ask libllama for."""
    n_threads = start.n_threads or usable_cores()
    # libllama ends the process where a batch has no room for a token of each sequence
    n_batch = max(min(start.n_batch or DEFAULT_BATCH, n_ctx), n_seq_max)
    n_ubatch = min(start.n_ubatch or capacity.DEFAULT_UBATCH, n_batch)
    n_threads_batch = start.n_threads_batch or n_threads
    # all rows of a tick with drafts are one ubatch
    snapshots = min(snapshots, max((n_ubatch - 1) // start.n_seq - 1, 0))
    return Sizes(n_ctx, n_batch, n_ubatch, n_seq_max, n_threads, n_threads_batch, snapshots)


def open_context(
    start: m.Start, model: Model, info: GGUFInfo, wanted: Sizes, control: Control
) -> tuple[Context, Sizes, bool]:
    """A context, with the sizes that it got, and whether it only encodes texts.

    Raises CannotLoad; the model is closed then.
    """
    causal = not purpose.only_encodes(model, info)
    way = pooling_of(model, causal=causal)
    if causal and way != RANK and not start.encodes:
        context, sizes = _open_generator(start, model, wanted, control)
        if purpose.goes_on(context):
            return context, sizes, False
        context.close()
        causal, way = False, pooling_of(model, causal=False)
    context = _open_encoder(model, start, way, causal, wanted.n_threads_batch)
    n, n_ubatch = context.n_batch, context.n_ubatch
    return context, wanted._replace(n_ctx=n, n_batch=n, n_ubatch=n_ubatch), True


def bytes_of(start: m.Start, context: Context, n_ctx: int) -> tuple[int, int]:
    """Bytes of the KV cells and of the recurrent states; 0 where the context has no memory."""
    if context.memory == context.library.ffi.NULL:
        return 0, 0
    needs = llama.memory_needed(start.model_path, n_ctx=n_ctx, kind=capacity.kv_kind(start))
    states = context.n_seq_max * (1 + context.library.lib.llama_n_rs_seq(context.pointer))
    return needs.kv_bytes, needs.state_bytes * states


def _open_generator(
    start: m.Start, model: Model, sizes: Sizes, control: Control
) -> tuple[Context, Sizes]:
    """A context of those sizes, or of fewer cells where libllama makes no such one."""
    while True:
        try:
            context = llama.Context.open(
                model,
                n_ctx=padded(sizes.n_ctx),
                n_batch=sizes.n_batch,
                n_ubatch=sizes.n_ubatch,
                n_seq_max=sizes.n_seq_max,
                n_rs_seq=sizes.snapshots,
                n_threads=sizes.n_threads,
                n_threads_batch=sizes.n_threads_batch,
                type_k=start.type_k,
                type_v=start.type_v,
                flash_attn=flash_attention(start),
            )
            return context, sizes
        except llama.LlamaError as error:
            n_ctx = sizes.n_ctx
            fewer = capacity.after_refusal(start, n_ctx)
            if not fewer:
                model.close()
                plain = start.type_k == start.type_v == "f16"
                raise CannotLoad(f"{error}{'' if plain else capacity.OTHER_KV_TYPE}") from error
            control.send(m.Log("warn", f"{error}; trying {fewer} KV cells instead of {n_ctx}"))
            sizes = sizes._replace(n_ctx=fewer)


def _open_encoder(
    model: Model, start: m.Start, way: str, causal: bool, n_threads: int
) -> Context:
    """A context for whole texts, several of them at once, which it pools.

    An encoder takes a text in one ubatch, of as many tokens as the model was trained for,
    `MOST_TOKENS` at most; ``--n-ubatch`` allows others.  A causal model whose last token stands for
    a text takes it in several.  Raises CannotLoad.
    """
    in_parts = causal and way in (LAST, RANK)
    most = MOST_CAUSAL if in_parts else start.n_ubatch or MOST_TOKENS
    bounds = (model.n_ctx_train, start.n_ctx, start.positions, most)
    tokens = min(bound for bound in bounds if bound > 0)
    n_ubatch = min(start.n_ubatch or capacity.DEFAULT_UBATCH, tokens) if in_parts else tokens
    try:
        context = llama.Context.open(
            model,
            n_ctx=padded(tokens),
            n_batch=tokens,
            n_ubatch=n_ubatch,
            n_seq_max=TEXTS_AT_ONCE,
            n_threads=n_threads,
            flash_attn=flash_attention(start),
            embeddings=True,
            pooling_type=NUMBERS[way],
        )
    except llama.LlamaError as error:
        raise CannotLoad(f"{error}; a smaller --n-ubatch takes less") from error
    if context.n_ubatch >= n_ubatch and context.n_batch >= tokens:
        return context
    context.close()
    raise CannotLoad(f"libllama computes {context.n_ubatch} of {tokens} tokens at once")
