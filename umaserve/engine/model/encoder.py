"""The context of a model that only encodes: a whole text at once, and no KV cells of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from umaserve.wire import messages as m

from .abilities import flash_attention
from .capacity import padded
from .loaded import CannotLoad

if TYPE_CHECKING:
    from umaserve.llama import Context, Model

MOST_TOKENS = 2048  # of a text, where nobody chose: attention's memory grows with their square


def open_encoder(model: Model, start: m.Start, n_threads: int) -> Context:
    """A context for texts of up to ``n_ubatch`` tokens, which gives embeddings.

    So many as the model was trained for, `MOST_TOKENS` at most; ``--n-ubatch`` allows others.  The
    model pools.  Raises CannotLoad.
    """
    from umaserve import llama

    bounds = (model.n_ctx_train, start.n_ctx, start.positions, start.n_ubatch or MOST_TOKENS)
    tokens = min(bound for bound in bounds if bound > 0)
    try:
        context = llama.Context.open(
            model,
            n_ctx=padded(tokens),
            n_batch=tokens,
            n_ubatch=tokens,
            n_threads=n_threads,
            flash_attn=flash_attention(start),
            embeddings=True,
        )
    except llama.LlamaError as error:
        raise CannotLoad(f"{error}; a smaller --n-ubatch takes less") from error
    if context.n_ubatch >= tokens:
        return context
    context.close()
    raise CannotLoad(f"libllama computes {context.n_ubatch} of {tokens} tokens at once")
