"""What clients may send where nobody set it: as much as the context of the model holds."""

from __future__ import annotations

import pytest

from umaserve.config import Config
from umaserve.models.needs import LEAST_CELLS, ModelFile
from umaserve.server.daemon import limits_of
from umaserve.server.engines.start.model_start import start_message

KIB = 1024
MIB = 1024 * KIB


@pytest.mark.parametrize(
    ("positions", "prompt", "tokens"),
    [(0, 64 * KIB, 1), (2048, 64 * KIB, 2048), (131072, 1024 * KIB, 131072)],
)
def test_limits_follow_the_context(positions: int, prompt: int, tokens: int) -> None:
    limits = limits_of(Config(), positions)
    assert limits == (prompt, prompt + 64 * KIB, tokens, 32 * MIB, positions, 0)


def test_pictures_come_in_frames_of_their_own_size() -> None:
    plain, sees = limits_of(Config(), 2048), limits_of(Config(), 2048, sees=True)
    assert sees.max_picture_bytes == sees.max_frame_bytes - plain.max_frame_bytes == 24 * MIB
    assert sees.max_prompt_bytes == plain.max_prompt_bytes


def test_what_was_set_holds_whatever_the_context() -> None:
    config = Config(max_prompt_bytes=100, max_frame_bytes=3000, max_tokens=7)
    for positions in (0, 1 << 20):
        assert limits_of(config, positions) == (100, 3000, 7, 3000 + 64 * KIB, positions, 0)
    assert limits_of(Config(max_prompt_bytes=100), 1 << 20).max_frame_bytes == 100 + 64 * KIB


@pytest.mark.parametrize(
    ("n_ctx", "trained", "positions"),
    [(0, 32768, 32768), (0, 0, LEAST_CELLS), (4096, 32768, 4096), (65536, 32768, 32768),
     (65536, 0, 65536), (0, 1 << 40, 1 << 20), (1 << 21, 1 << 40, 1 << 21)],
)  # fmt: skip
def test_rows_of_the_table_hold_what_one_session_can(
    n_ctx: int, trained: int, positions: int
) -> None:
    start = start_message(Config(n_ctx=n_ctx), ModelFile("m", 1, n_ctx_train=trained))
    assert (start.n_ctx, start.positions) == (n_ctx, positions)
