"""Texts to embed, once they are tokens: what is too long, and what no vocabulary has."""

from __future__ import annotations

Checked = tuple[list[int], str, str]


def fitting(tokens: list[int], n_vocab: int, most: int, end: int) -> Checked:
    """(tokens, code, error): what is computed of ``tokens``, or why nothing is.

    A text with more than ``most`` tokens is cut in front of its last ``end`` tokens, which may be
    those that end all texts.  With an ``end`` of 0 it is refused.
    """
    if max(tokens, default=0) >= n_vocab:
        return [], "E_PROTO_003", f"it names token {max(tokens)}; the vocabulary has {n_vocab}"
    if not tokens:
        return [], "E_PROTO_003", "a text has no tokens; send at least one character"
    if len(tokens) <= most:
        return tokens, "", ""
    if 0 < end < most:
        return [*tokens[: most - end], *tokens[-end:]], "", ""
    return [], "E_LIMIT_003", f"a text is {len(tokens)} tokens; the model takes {most} of one"
