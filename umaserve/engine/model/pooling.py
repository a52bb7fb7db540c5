"""Pooling: how a model makes one vector of the rows of a text's tokens."""

from __future__ import annotations

from umaserve.llama import Context, Model

MEAN, CLS, LAST, RANK = "mean", "cls", "last", "rank"
_NAMES = {"1": MEAN, "2": CLS, "3": LAST, "4": RANK}  # LLAMA_POOLING_TYPE_*, as metadata has them
NUMBERS = {name: int(number) for number, name in _NAMES.items()}


def pooling_of(model: Model, *, causal: bool) -> str:
    """Return MEAN, CLS, LAST or RANK, as the model's file says.

    Where it does not say: LAST for a ``causal`` model, whose last token has seen all others, else
    MEAN, as all tokens of an encoder have.
    """
    metadata = model.metadata
    named = metadata.get(f"{metadata.get('general.architecture', '')}.pooling_type", "")
    return _NAMES.get(named, LAST if causal else MEAN)


def way_of(context: Context) -> str:
    """Return the pooling of an open context; as the file says where the context does not pool.

    Only contexts of causal models, which generate, do not pool.
    """
    number = context.library.lib.llama_pooling_type(context.pointer)
    return _NAMES.get(str(number)) or pooling_of(context.model, causal=True)
