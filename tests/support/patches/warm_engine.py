"""Engines forked from a process that has run one: imports and compiled code are there.

    python -m tests.support.patches.warm_engine --forks FD
"""

from __future__ import annotations

import os
import socket
import sys
import threading

from tests.support.forks import answer
from tests.support.leftovers import CORE_DUMPS
from tests.support.patches.engine import keep_cache_in_use
from umaserve.assets import demo_model_path
from umaserve.engine import __main__ as engine_main
from umaserve.wire import messages as m
from umaserve.wire import table as t


def preload() -> None:
    """Run an engine here, without a thread of libllama's, so that all code is loaded."""
    start = m.Start(
        str(demo_model_path()), n_slots=4, n_ctx=256, n_seq=2, n_threads=1, prefill_threads=0,
        sampling_threads=0, core_dumps=CORE_DUMPS,
    )  # fmt: skip
    ours, theirs = socket.socketpair()
    _, wake = os.pipe()
    _, table_fd = t.SessionTable.create(t.TableSpec(start.n_slots, start.positions + 1))
    ours.sendall(m.encode(start))

    def leave_when_ready() -> None:
        channel = m.Channel("front")
        while not any(isinstance(x, m.Ready) for x in channel.feed(ours.recv(1 << 20))):
            pass
        ours.sendall(m.encode(m.Shutdown()))

    front = threading.Thread(target=leave_when_ready)
    front.start()
    assert run(theirs.fileno(), wake, table_fd, t.shared_file(t.PIECE_BYTES)) == 0
    front.join()
    keep_cache_in_use()


def run(*fds: int) -> int:
    """An engine in this process."""
    names = ("control", "wake", "table", "pieces")
    sys.argv[1:] = [x for name, fd in zip(names, fds, strict=True) for x in (f"--{name}", str(fd))]
    return engine_main.main()


if __name__ == "__main__":
    asked = int(sys.argv[2])
    preload()  # with arguments of its own
    answer(asked, lambda _, *fds: sys.exit(run(*fds)))
