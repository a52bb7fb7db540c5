"""Limits for clients."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Bytes of a prompt, of a frame and of a body of HTTP, and tokens that one request may ask for.

    ``n_ctx`` are the tokens that one session holds; 0 = nobody knows yet.  ``max_picture_bytes``
    are those of all pictures of a conversation, as base64; 0 = every model reads text only.
    """

    max_prompt_bytes: int = 64 * 1024
    max_frame_bytes: int = 128 * 1024
    max_tokens: int = 2048
    max_body_bytes: int = 192 * 1024
    n_ctx: int = 0
    max_picture_bytes: int = 0
