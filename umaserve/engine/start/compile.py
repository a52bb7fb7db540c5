"""Compile samplers, policy and the tick loop ahead of the first start.

``python -m umaserve.engine.start.compile`` starts an engine on the bundled model, which compiles
what is not in the cache yet, and stops it again.  ``make`` runs it, so that no first request and no
first start waits for a compiler.  It returns at once where there is nothing to do.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from umaserve.jit.cache import PACKAGE, is_complete, sweep, use_jit_cache
from umaserve.jit.sources import compiled_sources
from umaserve.system.own_python import run_module
from umaserve.system.private_folder import NotPrivate

LOOK_S, LINE_S = 0.2, 5.0  # between two looks at how far it is
TIMEOUT_S = 600.0


def main() -> int:
    try:
        problem = use_jit_cache()  # and so will the engine
    except NotPrivate as error:
        print(f"the samplers cannot be compiled: {error}", file=sys.stderr)
        return 1
    if problem:
        print(problem, file=sys.stderr)
    if is_complete():
        return 0
    began = time.monotonic()
    stop = threading.Event()
    bar = threading.Thread(target=_show_progress, args=(stop,), daemon=True)
    bar.start()
    try:
        failure = _start_and_stop()
    finally:
        stop.set()
        bar.join()
    if failure:
        print(f"compiling the samplers failed: {failure}", file=sys.stderr)
        return 1
    print(f"samplers compiled in {time.monotonic() - began:.0f} s", flush=True)
    if not problem:
        sweep()
    return 0


def _start_and_stop() -> str:
    """Run one engine until it is ready.  Returns why that failed, or an empty string."""
    from umaserve.assets import demo_model_path
    from umaserve.wire import messages as m
    from umaserve.wire import table as t

    start = m.Start(str(demo_model_path()), n_slots=4, n_ctx=256, n_seq=2, n_threads=1)
    _, table_fd = t.SessionTable.create(t.TableSpec(start.n_slots, start.n_ctx + 1))
    pieces_fd = t.shared_file(t.PIECE_BYTES)
    wake_read, wake_write = os.pipe()
    ours, theirs = socket.socketpair()
    fds = {"control": theirs.fileno(), "wake": wake_write, "table": table_fd, "pieces": pieces_fd}
    command = run_module("umaserve.engine")
    for name, fd in fds.items():
        command += [f"--{name}", str(fd)]
    engine = subprocess.Popen(command, pass_fds=list(fds.values()))
    theirs.close()
    for fd in (wake_write, table_fd, pieces_fd):
        os.close(fd)
    ours.settimeout(TIMEOUT_S)
    channel = m.Channel("front")
    failure = ""
    try:
        ours.sendall(m.encode(start))
        while True:
            data = ours.recv(1 << 16)
            if not data:
                failure = f"the engine ended with status {engine.wait()}"
                break
            messages = channel.feed(data)
            failed = [x.message for x in messages if isinstance(x, m.LoadFailed)]
            if failed:
                failure = failed[0]
                break
            if any(isinstance(x, m.Ready) for x in messages):
                break
    except TimeoutError:
        failure = f"nothing happened for {TIMEOUT_S:.0f} s"
        engine.kill()
    finally:
        ours.close()
        engine.wait()
        os.close(wake_read)
    return failure


def _show_progress(stop: threading.Event) -> None:
    """How many functions are compiled: a bar on a terminal, else a line now and then."""
    text = "Compiling samplers and scheduler (once, one to two minutes)"
    total = functions_to_compile()
    if not sys.stderr.isatty():
        print(f"{text} ...", file=sys.stderr, flush=True)
        while not stop.wait(LINE_S):
            done = functions_compiled() / total
            print(f"  {min(done, 0.99):.0%} of the functions", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn(text), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        while not stop.wait(LOOK_S):
            progress.update(task, completed=min(functions_compiled(), total - 1))


def functions_to_compile() -> int:
    """How many there are, roughly: an engine may leave some alone."""
    texts = (path.read_text("utf-8") for path in compiled_sources(PACKAGE))
    return max(sum(len(re.findall(r"^@(?:njit|cfunc)\b", text, re.M)) for text in texts), 1)


def functions_compiled() -> int:
    """Number of functions in the cache, where each has an index file."""
    return sum(1 for _ in Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbi"))


if __name__ == "__main__":
    sys.exit(main())
