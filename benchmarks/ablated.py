"""A daemon without a mechanism: ``python -m benchmarks.ablated NAMES serve ...``.

NAMES, with commas between, are of `ENGINE`.  Each function here takes a mechanism out of the
process that calls it, before the process starts to work; nothing is compiled anew.
Mechanisms that ``serve --without`` switches off are not here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable


def ready_graph() -> None:
    """No graph is made ready in pauses."""
    from umaserve.engine.prefill.ready_graph import ReadyGraph

    ReadyGraph.measure = lambda self: iter(())  # type: ignore[method-assign,assignment]


def meanwhile() -> None:
    """Python does nothing while a decode is under way: the ticks stop for it."""
    from umaserve.engine.loop.engine import Engine

    Engine._meanwhile = lambda self: False  # type: ignore[method-assign]


def team_rows() -> None:
    """One thread samples the rows of a tick on a processor."""
    from umaserve.engine.samplers.team_rows import no_team
    from umaserve.engine.ticks import run

    run.make_team = lambda *arguments: (no_team(), [])


def expectation() -> None:
    """The loop sleeps until a request is there: nothing is rehearsed, nobody looks out."""
    from umaserve.engine.loop.engine import Engine

    Engine._expect = lambda self: self.control.receive(None)  # type: ignore[method-assign]


def idle_work() -> None:
    """Nothing is measured in pauses."""
    from umaserve.engine.loop.idle_work import IdleWork

    IdleWork.is_left = property(lambda self: False)  # type: ignore[assignment]


def ready_pages() -> None:
    """Copies of an accelerator's cells go to pages that nobody has touched."""
    from umaserve.engine.prefixes import copies

    copies.room_for = lambda loaded: copies.own_pages


ENGINE: tuple[Callable[[], None], ...] = (
    ready_graph, meanwhile, team_rows, expectation, idle_work, ready_pages,
)  # fmt: skip


def run_front(names: str) -> int:
    """The command line of ``umaserve``, with an engine that leaves the same out."""
    from umaserve.__main__ import main
    from umaserve.server import main as server

    engine = [sys.executable, "-m", "benchmarks.ablated", names, "engine"]
    server.serve = functools.partial(server.serve, engine_command=engine)
    return main()


def run_engine(names: str) -> int:
    """An engine's process."""
    from umaserve.engine import __main__ as engine
    from umaserve.jit import cache as jit_cache

    use = jit_cache.use_jit_cache

    def use_jit_cache() -> str:  # what compiles may not be imported before
        problem = use()
        for part in ENGINE:
            if part.__name__ in names.split(","):
                part()
        return problem

    jit_cache.use_jit_cache = use_jit_cache
    return engine.main()


if __name__ == "__main__":
    left_out = sys.argv.pop(1)
    if sys.argv[1] == "engine":
        sys.argv.pop(1)
        sys.exit(run_engine(left_out))
    sys.exit(run_front(left_out))
