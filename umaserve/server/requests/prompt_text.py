"""The tokens of a prompt as text, token by token, with what is known of their probabilities."""

from __future__ import annotations

import codecs
import math
from typing import Any

from umaserve.wire import messages as m
from umaserve.wire import table as t


class PromptText:
    """What was told of a prompt.  ``text`` is the prompt, where it was text.

    The texts of the tokens make the prompt.  Bytes of an unfinished character come with the token
    that finishes it, and a start token that was added has no text.
    """

    def __init__(self, text: str | None) -> None:
        self.is_whole = False
        self._text = text
        self._told = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def take(self, message: m.PromptLogprobs, pieces: t.PieceTable) -> list[dict[str, Any]]:
        """What is new: ``token_id``, ``text``, ``logprob`` (of the first one ``None``) and
        ``top_logprobs`` of each token.  An engine that took the place of a dead one begins anew."""
        new = []
        for at in range(max(self._told - message.at, 0), len(message.tokens)):
            token, logprob = message.tokens[at], message.logprobs[at]
            last = message.last and at == len(message.tokens) - 1
            entry: dict[str, Any] = {
                "token_id": token,
                "text": self._spell(token, pieces, last),
                "logprob": _number(logprob),
                "top_logprobs": [
                    {
                        "token_id": other,
                        "text": pieces.spelled(other).decode("utf-8", "replace"),
                        "logprob": _number(value),
                    }
                    for other, value in message.top[at]
                ],
            }
            new.append(entry)
            self._told += 1
        self.is_whole = self.is_whole or message.last
        return new

    def _spell(self, token: int, pieces: t.PieceTable, last: bool) -> str:
        spelled = pieces.spelled(token)
        is_hidden = self._text is not None and not pieces.piece(token)
        if self._told == 0 and is_hidden and not (self._text or "").encode().startswith(spelled):
            return ""
        return self._decode(spelled, last)


def _number(value: float | None) -> float | None:
    return round(value, 6) if value is not None and math.isfinite(value) else None
