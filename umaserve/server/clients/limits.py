"""What a client may send and ask for: what was set, else what the context of the model can hold."""

from __future__ import annotations

from typing import NamedTuple

from umaserve.config import Config

BYTES_A_TOKEN = 8  # of a prompt: text has 3 to 5, indented code more
LEAST_PROMPT_BYTES = 64 * 1024
AROUND_BYTES = 64 * 1024  # of a frame: its other fields, and what JSON escapes


class Limits(NamedTuple):
    """Bytes of a prompt and of a frame, and tokens that one request may ask for."""

    max_prompt_bytes: int
    max_frame_bytes: int
    max_tokens: int


def limits_of(config: Config, positions: int) -> Limits:
    """The limits where one session holds ``positions`` tokens; 0 = nobody knows yet."""
    prompt = config.max_prompt_bytes or max(LEAST_PROMPT_BYTES, BYTES_A_TOKEN * positions)
    return Limits(
        prompt,
        config.max_frame_bytes or prompt + AROUND_BYTES,
        config.max_tokens or max(positions, 1),
    )
