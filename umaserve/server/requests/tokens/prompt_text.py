"""The tokens of a prompt as text, token by token, with what is known of their probabilities."""

from __future__ import annotations

import codecs
import math
from typing import Any

from umaserve.protocol import Rated, TopLogprob, rated_fields
from umaserve.wire import messages as m
from umaserve.wire import table as t


class PromptText:
    """Part of a prompt that the client was told.  ``text`` is the prompt, where it was text.

    The texts of the tokens make the prompt.  Bytes of an unfinished character come with the token
    that finishes it, and a start token that was added has no text.
    """

    def __init__(self, text: str | None) -> None:
        self.is_whole = False
        self._text = text
        self._told = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def take(self, message: m.PromptLogprobs, pieces: t.PieceTable) -> list[dict[str, Any]]:
        """Return the new tokens: ``token_id``, ``text`` and `rated_fields` of each.

        The ``logprob`` of the first token is ``None``.  An engine that replaces a dead engine sends
        the prompt from its first token; tokens that the client was told before are left out.
        """
        new = []
        for at in range(max(self._told - message.at, 0), len(message.tokens)):
            token, logprob = message.tokens[at], message.logprobs[at]
            last = message.last and at == len(message.tokens) - 1
            top = [
                TopLogprob(other, own.decode("utf-8", "replace"), own, value)
                for other, value in message.top[at]
                for own in (pieces.spelled(other),)
            ]
            own = b"" if self._is_added(token, pieces) else pieces.spelled(token)
            text = self._decode(own, last)
            value = -math.inf if logprob is None else logprob
            name = pieces.spelled(token).decode("utf-8", "replace")
            rated = rated_fields(Rated(name, own, value, top))
            new.append({"token_id": token, "text": text, **rated})
            self._told += 1
        self.is_whole = self.is_whole or message.last
        return new

    def _is_added(self, token: int, pieces: t.PieceTable) -> bool:
        """Whether it is a start token that the prompt's text does not have."""
        is_hidden = self._text is not None and not pieces.piece(token)
        if self._told or not is_hidden:
            return False
        return not (self._text or "").encode().startswith(pieces.spelled(token))
