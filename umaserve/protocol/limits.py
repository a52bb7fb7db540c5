"""Limits of a request: those of this package, and any others with the same numbers."""

from __future__ import annotations

from typing import Protocol

import msgspec


class PromptLimits(Protocol):
    """Anything with these numbers: ``Limits`` of this package or the server's."""

    @property
    def max_prompt_bytes(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def max_picture_bytes(self) -> int: ...


class Limits(msgspec.Struct, frozen=True):
    """Limits of a request; the server's own limits have the same names and serve as well."""

    max_prompt_bytes: int = 65536
    max_tokens: int = 2048
    n_ctx: int = 0  # tokens of one session
    max_picture_bytes: int = 0  # of all pictures of a conversation; 0: every model reads text only
