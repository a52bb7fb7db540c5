"""A graph that is ready for the next short prompt, on an accelerator.

Most of what a short prompt's tick takes there is telling the accelerator what to do.  A graph is
built for the shape of the batch, and hundreds of kernels are launched one by one.  The graph of the
batch before is used again if its shape is the same (``llm_graph_params::allow_reuse``).  CUDA
replays one that came twice in a single launch (``ggml_backend_cuda_graph_compute``).  So a pause is
used to compute a batch of ``WIDTH`` tokens for nothing, until its graph is ready.  A short prompt
that comes next is filled up to that shape with tokens of a sequence that is nobody's.  They are
forgotten after the tick, and no other token sees them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from umaserve.engine.model.abilities import why_not_plain
from umaserve.engine.model.loaded import Loaded
from umaserve.engine.native.batch import Batch, fill_up
from umaserve.engine.native.status import DECODED

WIDTH = 32  # tokens of that batch; a prompt of fewer is filled up
OWN = 16  # tokens of a prompt that stands for those
WORTH_IT = 0.9  # of the time of such a prompt whose graph is new
TIMES = 3  # that both are measured
SLOW_MS = 40.0  # so long only the arithmetic takes, and somebody might have to wait for it
REPEATS = 2  # after which the next batch is a replay


class ReadyGraph:
    """State of the graph that the loop's context used last.

    ``batch`` is the loop's own and is written to while no tick runs.  ``usable`` is False until
    `measure` found that it pays.
    """

    def __init__(self, loaded: Loaded, batch: Batch) -> None:
        self.usable = False
        self.is_ready = False
        self.last_prompt = 0  # tokens of the prompt that came last
        self._loaded = loaded
        self._batch = batch

    @property
    def wanted(self) -> bool:
        """Whether a pause should be used: prompts are short, and the graph is another's."""
        return self.usable and not self.is_ready and self.last_prompt < WIDTH

    def measure(self) -> Iterator[None]:
        """Find out whether it pays with this model, on this accelerator; one batch a step."""
        loaded = self._loaded
        if why_not_plain(loaded):
            return
        if self._batch.arrays.token.size < WIDTH or loaded.n_ctx < 2 * WIDTH:
            return
        self._compute(OWN, OWN)  # loads kernels
        new_ms, ready_ms = [], []
        for _ in range(1 + TIMES):
            yield
            new_ms.append(self._compute(OWN, OWN))
            if not 0.0 < new_ms[-1] <= SLOW_MS:
                return
            for _ in range(REPEATS):
                yield
                self._compute(OWN, WIDTH)
            yield
            ready_ms.append(self._compute(OWN, WIDTH))
            if ready_ms[-1] <= 0.0:
                return
        # the first ones load kernels too
        self.usable = min(ready_ms[1:]) <= WORTH_IT * min(new_ms[1:])

    def prepare(self, somebody_comes: Callable[[], bool], seq: int) -> None:
        """Compute for nothing until the graph is ready; give up when ``somebody_comes``.

        ``seq``: a sequence without cells.
        """
        for _ in range(REPEATS):
            if somebody_comes() or self._compute(OWN, WIDTH, seq) <= 0.0:
                return
        self.is_ready = True

    def forget(self) -> None:
        """After a tick: the context has another graph now, and what filled the prompt up goes."""
        self._loaded.context.seq_rm(self._loaded.n_seq)
        self.is_ready = False

    def _compute(self, own: int, width: int, seq: int = 0) -> float:
        """A prompt of ``own`` tokens, filled up to ``width``, for nothing; returns its ms, 0 where
        libllama refused it.  ``seq`` has no cells, and has none afterwards."""
        loaded, arrays = self._loaded, self._batch.arrays
        began = time.perf_counter()
        self._batch.put_nobodys(own, loaded.n_vocab, seq)
        arrays.logits[own - 1] = 1
        arrays.n_tokens[0] = fill_up.py_func(  # a few tokens: not worth compiling
            own, width, loaded.n_seq, arrays.token, arrays.pos, arrays.seq, arrays.logits
        )
        status = loaded.library.lib.uma_decode(loaded.context.pointer, self._batch.struct)
        loaded.context.synchronize()
        for each in (seq, loaded.n_seq):
            loaded.context.seq_rm(each)
        return 1000.0 * (time.perf_counter() - began) if status == DECODED else 0.0
