"""Jobs that are computed beside the requests: one text each, token by token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from umaserve.llama import Context
from umaserve.wire import messages as m

from .pooling import Pool

NOT_NUMBERS = "what the model computes for it is no number; the file may be damaged"


class EmbedJob:
    """A text to a vector.

    As of each job, ``tokens`` are fed, and ``embeds`` says whether rows are embeddings
    (float32[n_embd]) or logits (float32[n_vocab]).  ``slot`` is its row of the session table, -1 =
    none.
    """

    embeds, slot = True, -1

    def __init__(
        self, ref: int, tokens: list[int], pool: Pool, send: Callable[[m.ToFront], None]
    ) -> None:
        self.ref, self.tokens = ref, tokens
        self._pool, self._send = pool, send

    def wants(self, at: int, n: int) -> bool:
        """Whether any row of so many tokens is needed."""
        return self._pool.wants(at, n, len(self.tokens))

    def take(self, at: int, row: np.ndarray) -> str:
        """The row of token ``at``; says why the job cannot go on, or nothing."""
        self._pool.take(row[None, :])
        return ""

    def flush(self) -> None:
        """The rows of a chunk have all been taken."""

    def restart(self) -> None:
        """All rows come once more, from the first one on."""
        self._pool.clear()

    def keep(self, context: Context) -> bool:
        """All tokens are in the context's sequence 0: keep a piece; False where none is left."""
        return False

    def end(self) -> None:
        vector = self._pool.vector()
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
