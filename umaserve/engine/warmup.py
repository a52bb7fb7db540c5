"""The first token: proves the model decodes, and compiles what is not in the cache yet."""

from __future__ import annotations

import statistics
import time

import numpy as np

from umaserve.policy.beside import may_land
from umaserve.policy.cost import (
    BESIDE_SIZES,
    CostModel,
    doubt_larger,
    learn_flow_ms,
    learn_part,
    predict,
)
from umaserve.policy.latency_guard import poorest

from . import messages as m
from . import table as t
from .boot import CannotLoad
from .loop import Engine
from .probe import probe_costs
from .second_context import SLOW_CHUNK_MS, measure_slices
from .thread_places import PLACED, leave_places, place_threads

PREPARE_S = 10.0  # that the prefill worker may take to prepare before ticks are measured
MEASURE_S = 0.5  # time that choosing a number of threads may take
ROUNDS = 12
BATCH_PROMPT = 12  # tokens of a tick that stands for those of more than one

# one request per path through the sampler
_SETTINGS = (
    m.Sampling(temperature=0.0),
    m.Sampling(logprobs=3, typical_p=0.9, repeat_penalty=1.1, ignore_eos=True),
    m.Sampling(top_k=0),
    m.Sampling(top_k=0, typical_p=0.9),
)


def warm_up(engine: Engine) -> None:
    """Decode a few tokens in row 0 and leave the table as it was.

    Raises CannotLoad when the first ``llama_decode`` fails.  The weights' pages are touched by it
    too, so that the first request does not pay for them.
    """
    loaded, table = engine.loaded, engine.table
    for sampling in _SETTINGS:
        _decode(engine, sampling, n_prompt=2)
        if table.reason[0] == t.REASON_ERROR:
            raise CannotLoad(
                "the model loads, but its first token fails: "
                + (loaded.library_log_tail() or "llama_decode reported an error")
            )
        if sampling.temperature == 0.0 and not _finite(engine):
            raise CannotLoad("the model's first logits are not numbers; the file may be damaged")
    if not engine.start.n_threads and not loaded.overlap:
        choose_threads(engine)
        engine.arrange()
    _compile_the_rest(engine)
    forget(engine)


def _compile_the_rest(engine: Engine) -> None:
    """What only prompts beside the ticks use: no stream shall wait for it.

    Row 0 has ended, so its first token goes nowhere.
    """
    cost = CostModel.unknown()
    learn_part(cost, 1, 1.0, 1.0)
    doubt_larger(cost, 1)
    learn_flow_ms(cost, 1, 1.0)
    may_land(engine.state, 1, 0.0)
    poorest(engine.state)
    logits = np.zeros(engine.loaded.n_vocab, np.float32)
    at, sampler = int(engine.table.n_tokens[0]), engine.first_tokens()
    engine.settle_first(sampler.sample(0, 0, at, logits.ctypes.data))


def learn_costs(engine: Engine) -> None:
    """Know what ticks cost: from the last start on this machine, else by measuring some."""
    file, loaded, worker = engine.cost_file(), engine.loaded, engine.worker
    if worker is not None:
        worker.wait_ready(PREPARE_S)
    if not file.load(engine.cost) and engine.start.probe:

        def progress(fraction: float) -> None:
            engine.control.send(m.LoadProgress(fraction, "measuring ticks (once)"))

        probe_costs(loaded, engine.cost, 0 if engine.paced else engine.aside_threads, progress)
        file.save(engine.cost)
    quick = 0.0 < predict(engine.cost, 0, 0, int(BESIDE_SIZES[0]), 0) <= SLOW_CHUNK_MS
    unknown = engine.start.probe and not engine.cost.parts.any()
    if worker is not None and worker.sliced and unknown and quick:
        engine.control.send(m.LoadProgress(1.0, "measuring chunks (once)"))
        measure_slices(loaded, engine.start, worker.orders.gate, engine.cost)
        file.save(engine.cost)
    if worker is not None and engine.paced:
        engine.cost.beside[:], engine.cost.parts[:] = worker.part_ms, worker.parts_ms


def choose_threads(engine: Engine) -> None:
    """Set the numbers of CPU threads to those that are fastest now, for one token and for more.

    All physical cores, or one fewer: threads wait for each other at every layer, so on a machine
    where others need a core, one thread that is held up holds up all.  Turns are taken, and the
    mean counts, since what hurts is the rare long wait.  Fewer threads have to be a tenth faster,
    and no slower most of the time: a single long wait of the few turns says little.
    The numbers stay for the life of the engine: results differ in the last bits between them.
    """
    loaded = engine.loaded
    most = loaded.n_threads
    if most < 2:
        return
    loaded.n_threads = _faster(engine, most, n_prompt=1)
    loaded.n_threads_batch = _faster(engine, most, n_prompt=BATCH_PROMPT)
    loaded.context.set_threads(loaded.n_threads, loaded.n_threads_batch)
    leave_places(loaded.places)  # one thread alone needs none
    place_threads(loaded.places, max(loaded.n_threads, loaded.n_threads_batch))


def _faster(engine: Engine, most: int, n_prompt: int) -> int:
    """``most`` threads or one fewer, for ticks of ``n_prompt`` tokens."""
    spent: dict[int, list[float]] = {most: [], most - 1: []}
    began = time.monotonic()
    for turn in range(ROUNDS):
        for threads in spent:
            engine.loaded.context.set_threads(threads, threads)
            engine.loaded.places[PLACED] = 0
            _decode(engine, m.Sampling(temperature=0.0), n_prompt)  # wakes the threads
            before = time.monotonic()
            _decode(engine, m.Sampling(temperature=0.0), n_prompt)
            spent[threads].append(time.monotonic() - before)
        if turn >= 1 and time.monotonic() - began > MEASURE_S:
            break
    return most - 1 if fewer_pay(spent[most - 1], spent[most]) else most


def fewer_pay(fewer: list[float], all_cores: list[float]) -> bool:
    """Whether fewer threads are faster, by times of as many turns each."""
    usually = statistics.median(fewer) < statistics.median(all_cores)
    return usually and sum(fewer) < 0.9 * sum(all_cores)


def _decode(engine: Engine, sampling: m.Sampling, n_prompt: int) -> None:
    """Row 0 alone: ``n_prompt`` tokens in, one token out."""
    engine.cost.forget()  # nothing known, nothing cut up
    loaded, table = engine.loaded, engine.table
    token = loaded.model.token_bos if loaded.model.token_bos >= 0 else 0
    table.tokens[0, :n_prompt] = token
    table.n_prompt[0] = table.n_tokens[0] = n_prompt
    table.n_past[0] = 0
    table.max_tokens[0] = 1
    table.seq[0] = engine.sequences.take()
    engine.samplers.set(0, sampling)
    table.state[0] = t.RUNNING
    while table.state[0] == t.RUNNING:  # the policy may cut a prompt up
        engine.tick()


def _finite(engine: Engine) -> bool:
    ffi = engine.loaded.library.ffi
    row = ffi.cast("float *", int(engine.work.addresses[0]))
    logits = np.frombuffer(ffi.buffer(row, 4 * engine.loaded.n_vocab), np.float32)
    return not np.isnan(logits).any()


def forget(engine: Engine) -> None:
    """Clear row 0 and the counters that the warm-up moved."""
    table = engine.table
    cells_total = int(table.header[t.H_CELLS_TOTAL])
    table.header[: t.H_ABORT_ARMED] = 0
    table.header[t.H_CELLS_TOTAL] = cells_total
    table.ticks[:] = 0.0
    for column in (
        table.state, table.reason, table.n_prompt, table.n_tokens, table.n_past, table.max_tokens,
        table.t_first_ns, table.t_last_ns, engine.work.served,
    ):  # fmt: skip
        column[0] = 0
    table.seq[0] = -1
    table.tokens[0, :BATCH_PROMPT] = 0
    table.top_ids[0, :4] = 0
    engine.cost.forget()
    engine._tick = 0
