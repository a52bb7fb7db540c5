"""The hostile program of ``benchmarks.fuzz``: sends the inputs of one seed after another.

``python -m benchmarks.fuzz_app SOCKET PORT FIRST THREADS`` until it is told to end (SIGTERM); then
it prints what it has seen.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter

from benchmarks import streams
from benchmarks.fuzz_inputs import HALF, LEAVE, RESET, SILENT, SOCKET, Input, made

QUIET_S = 0.3  # without a byte: the answer is over
SEND_S = 10.0
MOST_READ = 1 << 20
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
CODE = re.compile(rb'"code":"(E_[A-Z]+_\d+)"')
FAILED = (b"this failed inside", b"HTTP/1.1 500 ")
MOST_NAMED = 50  # seeds whose answer is a failure of ours


class Seen:
    """What came of the inputs, by all threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[tuple[int, str]] = []
        self._lock = threading.Lock()

    def note(self, seed: int, what: Input, answer: bytes) -> None:
        """Count one input by its door and by what it was answered."""
        found = STATUS.findall(answer) if what.door != SOCKET else CODE.findall(answer)
        with self._lock:
            self.counts.update(f"{what.door} {each.decode()}" for each in found)
            self.counts[f"{what.door} inputs"] += 1
            if any(text in answer for text in FAILED) and len(self.failed) < MOST_NAMED:
                at = min(answer.find(text) for text in FAILED if text in answer)
                self.failed.append((seed, answer[max(at - 80, 0) : at + 300].decode("latin-1")))


def send(what: Input, path: str, port: int) -> bytes:
    """Do to the daemon what ``what`` says; returns what it answered."""
    with streams.unix(path) if what.door == SOCKET else streams.tcp(port) as sock:
        sock.settimeout(SEND_S)
        with contextlib.suppress(OSError):  # closed before all was sent
            for part in what.parts:
                sock.sendall(part)
                time.sleep(what.pause_s)
        if what.end == RESET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if what.end in (LEAVE, RESET):
            return b""
        if what.end == SILENT:
            time.sleep(QUIET_S)
            return b""
        answer = b""
        with contextlib.suppress(OSError):
            if what.end == HALF:
                sock.shutdown(socket.SHUT_WR)
            sock.settimeout(QUIET_S)
            while len(answer) < MOST_READ and (part := sock.recv(1 << 16)):
                answer += part
        return answer


def keep(seeds: itertools.count[int], seen: Seen, path: str, port: int) -> None:
    """Send inputs until the process ends."""
    while True:
        seed = next(seeds)
        what = made(seed)
        try:
            seen.note(seed, what, send(what, path, port))
        except OSError:  # no room for one more connection
            seen.counts[f"{what.door} not connected"] += 1
            time.sleep(0.05)


def main() -> None:
    path, port, first, threads = sys.argv[1], *map(int, sys.argv[2:5])
    os.nice(19)  # what it does to the daemon counts, not what it does to the processor
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    seeds, seen = itertools.count(first), Seen()
    for _ in range(threads):
        threading.Thread(target=keep, args=(seeds, seen, path, port), daemon=True).start()
    print("in", flush=True)
    signal.sigwait({signal.SIGTERM})
    print(json.dumps({"counts": dict(seen.counts), "failed": seen.failed}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
