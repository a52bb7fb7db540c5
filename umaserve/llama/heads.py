"""Functions of libllama that a model's own heads for several tokens (MTP) are fed through.

``src/llama-ext.h`` declares these functions in C++, and no header that is installed has them.  They
are exported under names that spell their parameters' types.  So a libllama that has changed one
lacks its name, and the heads are not used.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .context import Context
from .library import Library

_SET = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_ALL = "_Z26llama_get_embeddings_nextnP13llama_context"
_ONE = "_Z30llama_get_embeddings_nextn_ithP13llama_contexti"


class HiddenStates(NamedTuple):
    """Addresses of C functions for the hidden states behind a context's last layer.

    ``set_states(context, wanted, masked)`` has a context keep them with each batch, ``masked``: of
    tokens with logits alone.  ``states(context)`` returns those of all tokens, as float32[n_embd]
    each, ``state(context, i)`` that of token ``i``.
    """

    set_states: int
    states: int
    state: int

    @classmethod
    def of(cls, library: Library) -> HiddenStates | None:
        """Return the functions of ``library``; None where it has no such functions."""
        symbols = ctypes.CDLL(str(library.build.library))  # loaded already: the same library
        try:
            functions = [getattr(symbols, name) for name in (_SET, _ALL, _ONE)]
        except AttributeError:
            return None
        return cls._make(int(ctypes.cast(f, ctypes.c_void_p).value or 0) for f in functions)

    def keep(self, context: Context, *, masked: bool) -> None:
        """Have ``context`` keep hidden states from its next batch on."""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
        kind(self.set_states)(context.address, True, masked)
