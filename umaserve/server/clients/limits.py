"""Limits for clients: the configured values, else values from the model's context size."""

from __future__ import annotations

from umaserve.config import Config
from umaserve.protocol import Limits

BYTES_A_TOKEN = 8  # of a prompt: text has 3 to 5, indented code more
LEAST_PROMPT_BYTES = 64 * 1024
AROUND_BYTES = 64 * 1024  # of a frame: its other fields, and what JSON escapes
PICTURE_BYTES = 24 * 1024 * 1024  # of all pictures of a conversation
LEAST_BODY_BYTES = 32 * 1024 * 1024  # of HTTP: pictures that are not read, conversations too long


def limits_of(config: Config, positions: int, sees: bool = False) -> Limits:
    """The limits where one session holds ``positions`` tokens; 0 = nobody knows yet.

    ``sees``: a model reads pictures.
    """
    prompt = config.max_prompt_bytes or max(LEAST_PROMPT_BYTES, BYTES_A_TOKEN * positions)
    pictures = PICTURE_BYTES if sees else 0
    frame = config.max_frame_bytes or prompt + AROUND_BYTES + pictures
    body = frame + AROUND_BYTES  # another family's words may take more than ours
    if not config.max_frame_bytes:
        body = max(body, LEAST_BODY_BYTES)
    return Limits(prompt, frame, config.max_tokens or max(positions, 1), body, positions, pictures)
