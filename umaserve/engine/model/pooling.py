"""How the rows of a text's tokens become one vector: what a model's file says."""

from __future__ import annotations

from umaserve.llama import Context, Model

MEAN, CLS, LAST, RANK = "mean", "cls", "last", "rank"
_NAMES = {"1": MEAN, "2": CLS, "3": LAST, "4": RANK}  # LLAMA_POOLING_TYPE_*, as metadata has them
NUMBERS = {name: int(number) for number, name in _NAMES.items()}


def pooling_of(model: Model, *, causal: bool) -> str:
    """MEAN, CLS, LAST or RANK.

    A file that names no way: the last token of a causal model has seen all others, and of an
    encoder all tokens have.
    """
    metadata = model.metadata
    named = metadata.get(f"{metadata.get('general.architecture', '')}.pooling_type", "")
    return _NAMES.get(named, LAST if causal else MEAN)


def way_of(context: Context) -> str:
    """The same for a model that has its context; only one that generates does not pool."""
    number = context.library.lib.llama_pooling_type(context.pointer)
    return _NAMES.get(str(number)) or pooling_of(context.model, causal=True)
