"""The engine process: ``python -m umaserve.engine --control FD --wake FD --table FD --pieces FD``.

Started by the front, never by hand.  Exit status 0: told to leave, or the front is gone.  3: the
model could not be loaded (a LoadFailed message said why).  Anything else is a fault, and the front
starts another engine.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from umaserve.heap import trim_heap
from umaserve.system.own_process import die_with_parent, forbid_core_dumps, name_process
from umaserve.system.private_folder import NotPrivate
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control

if TYPE_CHECKING:
    from .loop.engine import Engine
    from .model.loaded import Loaded

LOAD_FAILED = 3
SWITCH_S = 0.00005  # that a thread may keep the GIL from another


def _sweep() -> None:
    """Remove what other versions left in the cache, where nobody uses it any more."""
    from umaserve.jit import cache
    from umaserve.llama import leftovers

    cache.sweep()
    leftovers.sweep()


def _import_loop() -> None:
    """Import the loop, and a compiler with it, while libllama reads the weights."""
    from .loop import engine as loop  # noqa: F401


def main() -> int:
    born = time.monotonic()
    parser = argparse.ArgumentParser(prog="umaserve.engine", description=__doc__)
    for name in ("control", "wake", "table", "pieces"):
        parser.add_argument(f"--{name}", type=int, required=True, metavar="FD")
    parser.add_argument("--parent", type=int, default=os.getppid(), metavar="PID")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    name_process("uma-engine")
    # other threads do little in Python, and a tick waits for them
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable()  # where a fault in libllama came from, on stderr
    control = Control(arguments.control, arguments.wake)
    start = _start_message(control)
    if start is None:
        return 0

    # numba reads this when it is imported
    from umaserve.jit.cache import use_jit_cache

    try:
        problem = use_jit_cache()
    except NotPrivate as error:
        control.send(m.LoadFailed(str(error)))
        return LOAD_FAILED
    if problem:
        control.send(m.Log("warn", problem))
    from .model.loaded import CannotLoad

    table = t.SessionTable(t.TableSpec(start.n_slots, start.positions + 1), arguments.table)
    try:
        return _serve(start, arguments.pieces, table, control, born)
    except CannotLoad as error:
        control.send(m.LoadFailed(str(error)))
        return LOAD_FAILED


def _start_message(control: Control) -> m.Start | None:
    """Wait for the front's first message; None where the front is gone."""
    first: list[m.ToEngine] = []
    while not first:
        first = control.receive(None)
        if control.closed:
            return None
    start = first.pop(0)
    if not isinstance(start, m.Start):
        raise TypeError(f"the first message must be Start, not {type(start).__name__}")
    return start


def _serve(
    start: m.Start, pieces: int, table: t.SessionTable, control: Control, born: float
) -> int:
    """Load the model and run the loop to its end.  Raises `CannotLoad`."""
    from .model.boot import describe, load

    importing = threading.Thread(target=_import_loop, daemon=True)
    importing.start()
    loaded = load(start, pieces, control, importing.join)
    if not loaded.generates:
        return _encode(start, loaded, table, control, born)
    from .loop.engine import Engine
    from .model.loaded import Setup

    engine = Engine(Setup(start, loaded, table, control))
    if not _warm(engine, start, control):
        return 0
    _let_go_of_start(start)
    engine.recall_costs()
    if start.probe_first:
        engine.idle_work.finish()
    control.send(describe(start, loaded, (time.monotonic() - born) * 1000.0))
    threading.Thread(target=_sweep, daemon=True).start()
    engine.run()
    engine.close()
    if engine.admission.is_tokenizing:
        os._exit(0)  # a thread reads the vocabulary; the system frees it after the thread
    loaded.close()
    return 0


def _warm(engine: Engine, start: m.Start, control: Control) -> bool:
    """Touch memory and compile what is missing; False where the front is gone."""
    from umaserve.jit.cache import is_complete, mark_complete

    from .start.pretouch import pretouch

    if start.pretouch:
        pretouch(start, engine.table, engine.ticks.loop, engine.ticks.team_scratches, control)
        if control.closed:
            return False
    compiled = is_complete()
    compiles = "compiling the samplers (once, one to two minutes)"
    control.send(m.LoadProgress(1.0, "warmup" if compiled else compiles))
    engine.warm_up(everything=not compiled)
    mark_complete()
    return True


def _let_go_of_start(start: m.Start) -> None:
    """Leave living objects out of collections, and give back memory that only a start needs."""
    from .model import unused_memory

    gc.collect()
    gc.freeze()  # what is alive now lives as long as the process; no collection looks at it again
    if not start.pretouch:
        unused_memory.give_back_code(unused_memory.COMPILER)
        trim_heap()
    if not start.core_dumps:  # now: no prompt has come, and /proc/self/pagemap has been read
        forbid_core_dumps()


def _encode(
    start: m.Start, loaded: Loaded, table: t.SessionTable, control: Control, born: float
) -> int:
    """Serve a model that makes vectors of texts, and nothing else.  Raises `CannotLoad`."""
    from .loop.encoder import Encoder
    from .model.boot import describe
    from .model.loaded import Setup

    control.send(m.LoadProgress(1.0, "warmup"))
    encoder = Encoder(Setup(start, loaded, table, control))
    encoder.warm_up()
    if not start.core_dumps:
        forbid_core_dumps()
    control.send(describe(start, loaded, (time.monotonic() - born) * 1000.0))
    threading.Thread(target=_sweep, daemon=True).start()
    encoder.run()
    if encoder.is_tokenizing:
        os._exit(0)  # a thread reads the vocabulary; the system frees it after the thread
    loaded.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
