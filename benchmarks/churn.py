"""What `residency_churn_mb_per_token` says when the system takes the weights out of memory (Linux).

    python -m benchmarks.churn
    python -m benchmarks.churn --model qwen2.5-0.5b --tokens 16

For each way to hold the weights a daemon answers once.  Then the system is asked for the pages of
the model's file (``process_madvise``, MADV_PAGEOUT, and ``posix_fadvise``), as another program that
needs memory would have it, and the daemon answers again.  Shown are the metric before and after it,
milliseconds to the first token of both answers, and what the engine read from the disk for the
second.  Needs root.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.daemon import Client, Daemon
from benchmarks.models import model_path
from benchmarks.sides import quiet_death
from benchmarks.turns import say

PROCESS_MADVISE, PAGEOUT = 440, 21  # linux/mman.h; the number is the same on all of its machines
WAYS = ("--mmap", "--pretouch", "--mlock", "--no-mmap")
PROMPT = "def count(words):\n    "
SETTLE_S = 0.3  # after an answer: the engine counts what it read when its loop goes round


class _Piece(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def take(pid: int, path: Path) -> int:
    """Have the system take what a process maps of a file out of its memory; returns the bytes.

    Locked pages stay: the system refuses them.
    """
    libc, taken = ctypes.CDLL(None, use_errno=True), 0
    process = os.pidfd_open(pid)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith(str(path)):
            start, stop = (int(part, 16) for part in line.split()[0].split("-"))
            piece = _Piece(start, stop - start)
            done = libc.syscall(PROCESS_MADVISE, process, ctypes.byref(piece), 1, PAGEOUT, 0)
            taken += max(done, 0)
    os.close(process)
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # what nobody maps any more
    os.close(file)
    return taken


def read_mb(pid: int) -> float:
    """What a process had the disk read so far, page faults among it."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes")) / 1e6


def answer(daemon: Daemon, client: Client, tokens: int) -> tuple[float, float]:
    """Milliseconds to the first token, and the metric after the last."""
    began = time.perf_counter()
    times, _ = client.generate(
        "churn", PROMPT, max_tokens=tokens, ignore_eos=True, cache_prompt=False
    )
    time.sleep(SETTLE_S)
    return 1e3 * (times[0] - began), daemon.metrics()["residency_churn_mb_per_token"] or 0.0


def main() -> None:
    quiet_death()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="demo, a shape of make_model.py, or a path")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    options = parser.parse_args()
    if sys.platform != "linux" or os.geteuid() != 0:
        parser.error("the system takes memory from another process for root, and on Linux alone")
    with tempfile.TemporaryDirectory(prefix="uma-bench-") as folder:
        # a file of its own: what others map too stays in memory
        compare(Path(shutil.copy(model_path(options.model), folder)), options.tokens)


def compare(path: Path, tokens: int) -> None:
    """Print a line for each way to hold the weights."""
    print(f"{'':12}{'MB a token':>12}{'':>10}{'first token, ms':>18}{'':>10}{'MB':>10}")
    names = f"{'before':>12}{'after':>10}{'before':>18}{'after':>10}{'taken':>10}{'read':>10}"
    print(f"{'':12}{names}")
    for flag in WAYS:
        say(f"churn: {flag}")
        with Daemon("--model", str(path), flag) as daemon, Client(daemon.path) as client:
            pid = client.call(type="info")["info"]["model"]["engine_pid"]
            answer(daemon, client, 4)
            before = answer(daemon, client, tokens)
            taken, had = take(pid, path) / 1e6, read_mb(pid)
            after = answer(daemon, client, tokens)
            read = read_mb(pid) - had
        churn = f"{before[1]:12.3f}{after[1]:10.3f}"
        times = f"{before[0]:18.1f}{after[0]:10.1f}"
        print(f"{flag:12}{churn}{times}{taken:10.1f}{read:10.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
