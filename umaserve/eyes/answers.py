"""Answers of uma-eyes: JSON with embeddings behind it."""

from __future__ import annotations

import msgspec


class RunOf(msgspec.Struct, frozen=True):
    """A part of a picture in a prompt: text tokens, or ``rows`` of embeddings.

    ``non_causal``: the rows see each other, whatever their order.  ``columns``: of the grid in
    which the rows lie, for models whose positions have several dimensions; else 0.
    """

    tokens: tuple[int, ...] = ()
    rows: int = 0
    non_causal: bool = False
    columns: int = 0

    @property
    def positions(self) -> int:
        """Positions that the rows take (``mtmd_image_tokens_get_n_pos``)."""
        return max(self.columns, self.rows // self.columns) if self.columns else self.rows


class Answer(msgspec.Struct, frozen=True):
    """``width``: numbers of an embedding.  ``refused``: why there is none."""

    refused: str = ""
    width: int = 0
    runs: tuple[RunOf, ...] = ()

    @property
    def rows(self) -> int:
        """Embeddings of the whole picture."""
        return sum(run.rows for run in self.runs)

    @property
    def positions(self) -> int:
        """Positions of its embeddings."""
        return sum(run.positions for run in self.runs)


_decode = msgspec.json.Decoder(Answer).decode


def answer_of(frame: bytes) -> tuple[Answer, memoryview]:
    """Return what a frame says, and the bytes of its embeddings.  Raises ``ValueError``."""
    size = int.from_bytes(frame[:4], "little")
    answer, embeddings = _decode(frame[4 : 4 + size]), memoryview(frame)[4 + size :]
    if len(embeddings) != 4 * answer.rows * answer.width:
        raise ValueError(f"it has {len(embeddings)} bytes of {answer.rows} embeddings")
    return answer, embeddings
