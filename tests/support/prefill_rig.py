"""A prefill worker with the engine's context and a session table, and the loop played by a test."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from umaserve import llama
from umaserve.engine.model.loaded import Setup
from umaserve.engine.native.batch import Batch
from umaserve.engine.prefill.worker import PrefillWorker
from umaserve.llama.adapters import Adapters
from umaserve.policy.cost.model import CostModel
from umaserve.wire import messages as m
from umaserve.wire import table as t

N_SLOTS, N_SEQ, N_CTX = 8, 4, 2048
CHUNK = 16
# The processor's kernels are not batch-invariant: other batch shapes move a logit by about one, out
# of a range of fifty.  Another prompt's KV moves it by many.
TOLERANCE = 3.0


def varied_text(functions: int = 200) -> str:
    """Some thirty tokens of Python for each function, hardly two of them alike; always the same."""
    chance = random.Random(1)

    def word() -> str:
        return "".join(chance.choices(("ba", "co", "de", "lo", "mi", "nu", "ra", "st"), k=3))

    found = []
    for _ in range(functions):
        name, one, two = word(), word(), word()
        n, m = chance.randrange(2, 999), chance.randrange(2, 99)
        found.append(
            chance.choice(
                (
                    f"def {name}({one}, {two}={n}):\n    return {one} % {m} + {two}\n",
                    f"class {name.title()}:\n    {one}: int = {n}\n    {two} = '{word()}'\n",
                    f"for {one} in range({n}):\n    if {one} > {m}:\n        {two}({one})\n",
                    f"{name} = [{one}.{two} for {one} in {word()} if {one} != {n}]  # {word()}\n",
                )
            )
        )
    return "\n".join(found)


class Rig:
    """The engine's context, a session table and a worker, with the loop played by the test."""

    def __init__(
        self, model: llama.Model, n_ctx: int = N_CTX, threads: int = 1, **start: object
    ) -> None:
        self.model, self.library = model, model.library
        theirs = start.pop("worker", {})
        self.start = m.Start(
            str(model.path), n_slots=N_SLOTS, n_ctx=n_ctx, n_seq=N_SEQ, n_threads=1, **start
        )
        self.context = llama.Context.open(
            model, n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=512, n_seq_max=N_SEQ + 1, n_threads=1,
            type_k=self.start.type_k, type_v=self.start.type_v, op_offload=False,
            flash_attn={"auto": None, "on": True, "off": False}[self.start.flash_attn],
        )  # fmt: skip
        self.loaded = SimpleNamespace(
            library=model.library, model=model, context=self.context, n_ctx=n_ctx, n_seq=N_SEQ,
            n_positions=n_ctx, kv_bytes=n_ctx * 4096, unused_bytes=0, on_processor=True,
            adapters=Adapters(),
            n_threads_batch=1,
        )  # fmt: skip
        self.table, fd = t.SessionTable.create(t.TableSpec(N_SLOTS, n_ctx + 1))
        os.close(fd)
        self.batch = Batch(self.library.ffi, n_ctx, N_SLOTS)
        self.told = threading.Event()
        for name, value in theirs.items():
            self.start = m.msgspec.structs.replace(self.start, **{name: value})
        control: Any = SimpleNamespace(notify=self.told.set)
        setup: Any = Setup(self.start, self.loaded, self.table, control)
        self.worker = PrefillWorker(setup, CostModel.unknown())
        self.worker.start(threads)
        self.serial = 0

    def close(self) -> None:
        self.worker.close()
        self.context.close()

    def put(self, slot: int, tokens: list[int], seq: int | None = None) -> None:
        """A request in a row, admitted."""
        self.serial += 1
        table, n = self.table, len(tokens)
        table.tokens[slot, :n] = tokens
        table.n_prompt[slot] = table.n_tokens[slot] = n
        table.n_past[slot] = 0
        table.serial[slot] = self.serial
        table.seq[slot] = slot % N_SEQ if seq is None else seq
        table.state[slot] = t.RUNNING

    def end(self, slot: int) -> None:
        if self.table.state[slot] == t.RUNNING:
            self.context.seq_rm(int(self.table.seq[slot]))
            self.table.state[slot] = t.DONE
        self.worker.forget(slot)

    def decode(self, slot: int, n: int) -> np.ndarray:
        """The engine computes the next ``n`` known tokens of a row; the last one's logits."""
        table, arrays = self.table, self.batch.arrays
        p0 = int(table.n_past[slot])
        arrays.token[:n] = table.tokens[slot, p0 : p0 + n]
        arrays.pos[:n] = np.arange(p0, p0 + n)
        arrays.seq[:n] = table.seq[slot]
        arrays.logits[:n] = 0
        arrays.logits[n - 1] = 1
        arrays.n_tokens[0] = n
        lib = self.library.lib
        assert lib.uma_decode(self.context.pointer, self.batch.struct) == 0
        table.n_past[slot] = p0 + n
        row = lib.llama_get_logits_ith(self.context.pointer, n - 1)
        return np.frombuffer(
            self.library.ffi.buffer(row, 4 * self.model.n_vocab), np.float32
        ).copy()

    def until(self, done: Callable[[], bool], land: int = 0) -> None:
        end = time.monotonic() + 50
        while not done():
            assert time.monotonic() < end, (self.worker.take_log(), self.table.n_past)
            self.told.wait(0.01)
            self.told.clear()
            if land:
                self.worker.land(land)

    def finish(self, slot: int) -> np.ndarray:
        """Land the whole prompt; the logits of its last token, from the engine's context."""
        self.until(lambda: self.table.n_past[slot] == self.table.n_tokens[slot] - 1, land=1)
        assert self.context.seq_pos_max(int(self.table.seq[slot])) == self.table.n_past[slot] - 1
        return self.decode(slot, 1)


def alone(rig: Rig, tokens: list[int], chunk: int) -> np.ndarray:
    """The last token's logits when the engine computes everything, ``chunk`` tokens at a time."""
    rig.context.seq_rm(-1)
    rig.put(0, tokens, seq=0)
    rig.table.state[:] = t.FREE
    while rig.table.n_past[0] < len(tokens) - 1:
        rig.decode(0, min(chunk, len(tokens) - 1 - int(rig.table.n_past[0])))
    return rig.decode(0, 1)
