"""Jobs that are computed beside the requests: one text each, token by token.

libllama can pool, but over what one ubatch holds.  A text that is computed in chunks is pooled
here, to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from umaserve.engine.model.pooling import LAST, MEAN
from umaserve.llama import Context
from umaserve.wire import messages as m

NOT_NUMBERS = "what the model computes for it is no number; the file may be damaged"


def fitting(tokens: list[int], n_vocab: int, most: int, end: int) -> tuple[list[int], str, str]:
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


def normalised(vector: np.ndarray) -> np.ndarray:
    """float32 of length 1; of zeros, zeros, and NaN where ``vector`` has numbers that are none."""
    wide = np.asarray(vector, np.float64)
    length = float(np.sqrt(np.dot(wide, wide)))
    return (wide / (length or 1.0)).astype(np.float32)


class EmbedJob:
    """A text to a vector; ``way`` says how the rows of its tokens become one of ``n_embd`` numbers.

    As of each job, ``tokens`` are fed, and ``embeds`` says whether rows are embeddings
    (float32[n_embd]) or logits (float32[n_vocab]).  ``slot`` is its row of the session table, -1 =
    none.
    """

    embeds, slot = True, -1

    def __init__(
        self, ref: int, tokens: list[int], way: str, n_embd: int, send: Callable[[m.ToFront], None]
    ) -> None:
        self.ref, self.tokens, self._way, self._send = ref, tokens, way, send
        self._sum = np.zeros(n_embd, np.float64)

    def wants(self, at: int, n: int) -> bool:
        """Whether any of ``n`` rows from token ``at`` on is needed."""
        if self._way == LAST:
            return at + n == len(self.tokens)
        return self._way == MEAN or at == 0

    def take(self, at: int, row: np.ndarray) -> str:
        """The row of token ``at``; says why the job cannot go on, or nothing."""
        if self._way == MEAN:
            self._sum += row
        elif self._way == LAST or at == 0:
            self._sum[:] = row
        return ""

    def flush(self) -> None:
        """The rows of a chunk have all been taken."""

    def restart(self) -> None:
        """All rows come once more, from the first one on."""
        self._sum[:] = 0.0

    def keep(self, context: Context) -> bool:
        """All tokens are in the context's sequence 0: keep a piece; False where none is left."""
        return False

    def end(self) -> None:
        vector = normalised(self._sum)
        if not np.isfinite(vector).all():
            self.fail("E_RUNTIME_001", NOT_NUMBERS)
        else:
            self._send(m.Embedded(self.ref, vector.tobytes(), len(self.tokens)))

    def fail(self, code: str, text: str) -> None:
        self._send(m.Embedded(self.ref, code=code, error=text))


class PromptJob:
    """A prompt to the log-probabilities of its tokens; then ``begin`` lets the request begin.

    The row of a token says how likely the next one is, so the last token is not computed.  What was
    computed is kept (``keep``), so that the request computes the last token alone.
    """

    embeds = False

    def __init__(
        self,
        submit: m.Submit,
        prompt: list[int],
        send: Callable[[m.ToFront], None],
        keep: Callable[[Context], bool],
        begin: Callable[[], None],
        refuse: Callable[[str, str], None],
    ) -> None:
        self.submit, self.slot, self.tokens = submit, submit.slot, prompt[:-1]
        self._prompt, self._send, self._begin, self.fail = prompt, send, begin, refuse
        self.keep = keep
        self.restart()

    def restart(self) -> None:
        """The front knows by their place which it has."""
        self._logprobs: list[float | None] = [None]  # nothing stands before the first token
        self._top: list[list[tuple[int, float]]] = [[]]
        self._told = 0

    def wants(self, at: int, n: int) -> bool:
        return True

    def take(self, at: int, row: np.ndarray) -> str:
        largest = float(row.max())
        total = float(np.log(np.exp(row - largest).sum(dtype=np.float64))) + largest
        logprob = float(row[self._prompt[at + 1]]) - total
        if not np.isfinite(logprob) and logprob != -np.inf:
            return NOT_NUMBERS
        likeliest = _likeliest(row, self.submit.prompt_logprobs)
        self._logprobs.append(logprob)
        self._top.append([(i, float(row[i]) - total) for i in likeliest])
        return ""

    def flush(self) -> None:
        self._tell(False)

    def end(self) -> None:
        self._tell(True)
        self._begin()

    def _tell(self, last: bool) -> None:
        at, self._told = self._told, self._told + len(self._logprobs)
        tokens = self._prompt[at : self._told]
        serial, logprobs, top = self.submit.serial, self._logprobs, self._top
        self._logprobs, self._top = [], []
        self._send(m.PromptLogprobs(serial, at, tokens, logprobs, top, last))


def _likeliest(row: np.ndarray, count: int) -> list[int]:
    """Ids of the largest logits; of equal ones the smaller id goes first."""
    if count == 0:
        return []
    if count == 1:
        return [int(row.argmax())]
    found = np.argpartition(row, -count)[-count:] if count < row.size else np.arange(row.size)
    return sorted(found.tolist(), key=lambda i: (-float(row[i]), i))


Job = EmbedJob | PromptJob
