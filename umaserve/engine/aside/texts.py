"""Texts to embed, once they are tokens: what is too long, and what no vocabulary has."""

from __future__ import annotations

from umaserve.wire import messages as m

Checked = tuple[list[int], str, str]


def fitting(message: m.Embed, tokens: list[int], n_vocab: int, most: int) -> Checked:
    """(tokens, code, error): what is computed of ``tokens``, or why nothing is.

    A text that may be truncated keeps its last token, which may be the one that ends all texts.
    """
    if max(tokens, default=0) >= n_vocab:
        return [], "E_PROTO_003", f"it names token {max(tokens)}; the vocabulary has {n_vocab}"
    if not tokens:
        return [], "E_PROTO_003", "a text has no tokens; send at least one character"
    if len(tokens) > most and message.truncate:
        return [*tokens[: most - 1], tokens[-1]], "", ""
    if len(tokens) > most:
        return [], "E_LIMIT_003", f"a text is {len(tokens)} tokens; the model takes {most} of one"
    return tokens, "", ""
