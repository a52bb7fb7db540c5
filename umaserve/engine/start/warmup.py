"""The first token: proves the model decodes, and compiles what is not in the cache yet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from umaserve.engine.cells.sequences import Sequences
from umaserve.engine.model.loaded import CannotLoad, Setup
from umaserve.engine.model.ways import Ways
from umaserve.engine.samplers.first_token import FirstToken, FirstTokens
from umaserve.engine.ticks.records import Work
from umaserve.policy.base import Memory
from umaserve.policy.cost.model import CostModel, doubt_larger, learn_part
from umaserve.policy.without_streams import note_given_up
from umaserve.sampling.params import SamplerTable
from umaserve.wire import messages as m
from umaserve.wire import table as t

N_PROMPT = 2  # tokens
TRIES = 3  # more ticks, where the first was no processor's

# one request per path through the sampler
_SETTINGS = (
    m.Sampling(temperature=0.0),
    m.Sampling(logprobs=3, typical_p=0.9, repeat_penalty=1.1, ignore_eos=True),
    m.Sampling(top_k=0),
    m.Sampling(logprobs=3, post_sampling_probs=True),
    m.Sampling(top_k=0, typical_p=0.9),
)


class FirstRow:
    """Row 0 before the first request; the table is left as it was by `forget`.

    ``tick`` runs a tick.
    """

    def __init__(
        self, setup: Setup, cost: CostModel, sequences: Sequences, samplers: SamplerTable,
        work: Work, tick: Callable[[], object],
    ) -> None:  # fmt: skip
        self._loaded, self._table = setup.loaded, setup.table
        self._cost, self._sequences, self._samplers = cost, sequences, samplers
        self._work, self._tick = work, tick

    def prove(self, everything: bool) -> Ways:
        """Decode a token, and return how this device behaves.

        ``everything``: something may have to be compiled, so every path through the sampler is
        taken.  Raises CannotLoad when the first ``llama_decode`` fails.  The weights' pages are
        touched by it too, so that the first request does not pay for them.
        """
        table = self._table
        for sampling in _SETTINGS if everything else _SETTINGS[:1]:
            asked = table.abort.asked
            self._decode(sampling)
            if table.reason[0] == t.REASON_ERROR:
                raise CannotLoad(
                    "the model loads, but its first token fails: "
                    + (self._loaded.library_log_tail() or "llama_decode reported an error")
                )
            if self._has_no_numbers or sampling.temperature == 0.0 and not self._is_finite():
                text = "the model's first logits are not numbers; the file may be damaged"
                raise CannotLoad(text)
        return self._ways(asked)

    def _ways(self, before: int) -> Ways:
        """How the last tick behaved, ``before`` which libllama had asked so often.

        Where that was no processor's, a later one counts: the first pays for kernels and buffers.
        """
        lib, model = self._loaded.library.lib, self._loaded.model.pointer
        n_layer, abort = int(lib.llama_model_n_layer(model)), self._table.abort
        for more in range(TRIES, -1, -1):
            facts = self._work.facts[self._work.flight.parity]
            took_ns = max(facts.decoded_ns - facts.submitted_ns, 1)
            waited = (facts.decoded_ns - facts.returned_ns) / took_ns
            ways = Ways.of(waited, abort.asked - before, n_layer)
            if ways.abortable or not more:
                break
            before = abort.asked
            self._decode(_SETTINGS[0])
        return ways

    def _decode(self, sampling: m.Sampling) -> None:
        """The row alone: N_PROMPT tokens in, one token out."""
        self._cost.forget()  # nothing known, nothing cut up
        model, table = self._loaded.model, self._table
        table.tokens[0, :N_PROMPT] = model.token_bos if model.token_bos >= 0 else 0
        table.n_prompt[0] = table.n_tokens[0] = N_PROMPT
        table.n_past[0] = 0
        table.max_tokens[0] = 1
        table.seq[0] = self._sequences.take()
        self._samplers.set(0, sampling)
        table.state[0] = t.RUNNING
        self._work.out.without_numbers = 0
        # the policy may cut a prompt up
        while table.state[0] == t.RUNNING and not self._has_no_numbers:
            self._tick()

    @property
    def _has_no_numbers(self) -> bool:
        return bool(self._work.out.without_numbers)

    def _is_finite(self) -> bool:
        ffi = self._loaded.library.ffi
        row = ffi.cast("float *", int(self._work.addresses[0]))
        logits = np.frombuffer(ffi.buffer(row, 4 * self._loaded.n_vocab), np.float32)
        return not np.isnan(logits).any()

    def first_token(self, sampler: FirstTokens) -> FirstToken:
        """Sample a token as beside the ticks; the row has ended, so that it reaches no client."""
        logits = np.zeros(self._loaded.n_vocab, np.float32)
        logits[0] = 1.0  # all the same would be no numbers
        return sampler.sample(0, 0, int(self._table.n_tokens[0]), logits.ctypes.data)

    def forget(self, served: np.ndarray) -> None:
        """Clear the row and the counters that it moved; ``served`` is a column of the policy."""
        table = self._table
        cells_total = table.header.cells_total
        table.header.clear()
        table.header.cells_total = cells_total
        table.ticks[:] = 0
        for column in (
            table.state, table.reason, table.n_prompt, table.n_tokens, table.n_past,
            table.max_tokens, table.t_first_ns, table.t_last_ns, served,
        ):  # fmt: skip
            column[0] = 0
        table.seq[0] = -1
        table.tokens[0, :N_PROMPT] = 0
        table.top_ids[0, :4] = 0
        self._cost.forget()


def compile_the_rest() -> None:
    """Compile functions that the first ticks do not use, so that no stream waits for it."""
    cost = CostModel.unknown()
    learn_part(cost, 1, 1.0, 1.0)
    doubt_larger(cost, 1)
    note_given_up(Memory.fresh(1), 1)
