"""The first token: proves the model decodes, and compiles what is not in the cache yet."""

from __future__ import annotations

import numpy as np

from umaserve.engine.model.loaded import CannotLoad
from umaserve.engine.model.ways import Ways
from umaserve.engine.start.whole import Whole
from umaserve.policy.base import Memory
from umaserve.policy.cost.model import CostModel, doubt_larger, learn_part
from umaserve.policy.urgency import gives_way
from umaserve.policy.without_streams import note_given_up
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


def warm_up(engine: Whole, everything: bool) -> None:
    """Decode a token in row 0 and leave the table as it was.

    ``everything``: something may have to be compiled, so every path through the sampler is taken.
    Raises CannotLoad when the first ``llama_decode`` fails.  The weights' pages are touched by it
    too, so that the first request does not pay for them.
    """
    loaded, table = engine.loaded, engine.table
    for sampling in _SETTINGS if everything else _SETTINGS[:1]:
        asked = table.abort.asked
        _decode(engine, sampling)
        if table.reason[0] == t.REASON_ERROR:
            raise CannotLoad(
                "the model loads, but its first token fails: "
                + (loaded.library_log_tail() or "llama_decode reported an error")
            )
        if engine.trials.wanted or sampling.temperature == 0.0 and not _finite(engine):
            raise CannotLoad("the model's first logits are not numbers; the file may be damaged")
    engine.equip(_ways(engine, asked))
    _compile_the_rest(engine)
    forget(engine)


def _ways(engine: Whole, before: int) -> Ways:
    """How the last tick behaved, ``before`` which libllama had asked so often.

    Where that was no processor's, a later one counts: the first pays for kernels and buffers.
    """
    lib, model = engine.loaded.library.lib, engine.loaded.model.pointer
    n_layer, abort = int(lib.llama_model_n_layer(model)), engine.table.abort
    for more in range(TRIES, -1, -1):
        facts = engine.work.facts[engine.work.flight.parity]
        took_ns = max(facts.decoded_ns - facts.submitted_ns, 1)
        waited = (facts.decoded_ns - facts.returned_ns) / took_ns
        ways = Ways.of(waited, abort.asked - before, n_layer)
        if ways.abortable or not more:
            break
        before = abort.asked
        _decode(engine, _SETTINGS[0])
    return ways


def _compile_the_rest(engine: Whole) -> None:
    """Compile the functions that only prompts beside the ticks use, so that no stream waits.

    Row 0 has ended, so the first token that is settled here reaches no client.
    """
    cost = CostModel.unknown()
    learn_part(cost, 1, 1.0, 1.0)
    doubt_larger(cost, 1)
    note_given_up(Memory.fresh(1), 1)
    gives_way(engine.state, engine.knobs, engine.memory, 0, 1)
    engine.aside.compile()
    engine.pictures.chunk(0, 16)
    logits = np.zeros(engine.loaded.n_vocab, np.float32)
    logits[0] = 1.0  # all the same would be no numbers
    at, sampler = int(engine.table.n_tokens[0]), engine.first_tokens()
    engine.landing.settle_first(sampler.sample(0, 0, at, logits.ctypes.data))


def _decode(engine: Whole, sampling: m.Sampling) -> None:
    """Row 0 alone: N_PROMPT tokens in, one token out."""
    engine.cost.forget()  # nothing known, nothing cut up
    loaded, table = engine.loaded, engine.table
    token = loaded.model.token_bos if loaded.model.token_bos >= 0 else 0
    table.tokens[0, :N_PROMPT] = token
    table.n_prompt[0] = table.n_tokens[0] = N_PROMPT
    table.n_past[0] = 0
    table.max_tokens[0] = 1
    table.seq[0] = engine.sequences.take()
    engine.samplers.set(0, sampling)
    table.state[0] = t.RUNNING
    # the policy may cut a prompt up
    while table.state[0] == t.RUNNING and not engine.trials.wanted:
        engine.tick()


def _finite(engine: Whole) -> bool:
    ffi = engine.loaded.library.ffi
    row = ffi.cast("float *", int(engine.work.addresses[0]))
    logits = np.frombuffer(ffi.buffer(row, 4 * engine.loaded.n_vocab), np.float32)
    return not np.isnan(logits).any()


def forget(engine: Whole) -> None:
    """Clear row 0 and the counters that the warm-up moved."""
    table = engine.table
    cells_total = table.header.cells_total
    table.header.clear()
    table.header.cells_total = cells_total
    table.ticks[:] = 0
    for column in (
        table.state, table.reason, table.n_prompt, table.n_tokens, table.n_past, table.max_tokens,
        table.t_first_ns, table.t_last_ns, engine.state.served,
    ):  # fmt: skip
        column[0] = 0
    table.seq[0] = -1
    table.tokens[0, :N_PROMPT] = 0
    table.top_ids[0, :4] = 0
    engine.cost.forget()
    engine.ticks_done = 0
