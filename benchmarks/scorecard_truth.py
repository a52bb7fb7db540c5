"""The scorecard against a client's own clock, over the same minute of a mixed load.

    python -m benchmarks.scorecard_truth --seconds 60

Interactive streams ask for short answers, one after the other; background ones send long prompts
that no cache can know.  This process stamps every frame as it comes off the socket and keeps all
times; then it reads the metrics once and compares exact quantiles with the daemon's.  The column
``woken`` is what no daemon can know: the client's times without its own waits for a core, from when
a frame woke it until it could read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.daemon import Daemon
from benchmarks.models import model_path
from umaserve.metrics.window import quantile

WINDOW_S = 60
SCHEDSTAT = "/proc/thread-self/schedstat"  # Linux: what this thread has waited for a core
REL, ABS_MS = 0.03, 0.3
NAMES = {
    "p50_ms": ("gaps", 0.5),
    "p95_ms": ("gaps", 0.95),
    "p99_ms": ("gaps", 0.99),
    "ttft_ms_p50": ("first", 0.5),
    "ttft_ms_p95": ("first", 0.95),
}


@dataclass
class Times:
    """What one lane's client saw: (when, milliseconds), ``when`` on the monotonic clock."""

    gaps: list[tuple[float, float]] = field(default_factory=list)
    first: list[tuple[float, float]] = field(default_factory=list)
    # without the client's waits for a core; empty where the system keeps no account of them
    woken_gaps: list[tuple[float, float]] = field(default_factory=list)
    woken_first: list[tuple[float, float]] = field(default_factory=list)
    # of each request that ended: its first token by the client's clock and by the daemon's own word
    both_first: list[tuple[float, float]] = field(default_factory=list)

    def within(self, kind: str, now_s: float) -> list[float]:
        """Those of the daemon's window at ``now_s``."""
        oldest = int(now_s) - WINDOW_S
        return [ms for when, ms in getattr(self, kind) if int(when) > oldest]


class _Stream:
    """One connection with one request at a time."""

    def __init__(self, path: str, lane: str, prompt_words: int, seed: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lane = lane
        self._words, self._random = prompt_words, random.Random(seed)
        self._buffer = b""
        self._number = 0
        self._sent_s = self._last_s = self._last_woken_s = self._first_ms = 0.0
        self.busy = False

    def ask(self, max_tokens: int) -> None:
        self._number += 1
        words = " ".join(str(self._random.randrange(10**5)) for _ in range(self._words))
        body = json.dumps(
            {"id": f"{self._number}", "prompt": f"Say {words}", "max_tokens": max_tokens,
             "ignore_eos": True, "priority": self.lane, "seed": self._number}
        ).encode()  # fmt: skip
        self._last_s, self.busy = 0.0, True
        self._sent_s = time.monotonic()
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def read(self, times: Times, waited_s: float | None) -> None:
        data = self.socket.recv(1 << 16)
        now_s = time.monotonic()
        woken_s = now_s - (waited_s or 0.0)
        if not data:
            raise RuntimeError("the daemon closed the connection")
        buffer = self._buffer + data
        while len(buffer) >= 4:
            end = 4 + struct.unpack_from("<I", buffer)[0]
            if len(buffer) < end:
                break
            frame, buffer = buffer[4:end], buffer[end:]
            if b'"event":"token"' in frame:
                if self._last_s:
                    times.gaps.append((now_s, 1000 * (now_s - self._last_s)))
                else:
                    self._first_ms = 1000 * (now_s - self._sent_s)
                    times.first.append((now_s, self._first_ms))
                if waited_s is not None:
                    since_s = self._last_woken_s if self._last_s else self._sent_s
                    kept = times.woken_gaps if self._last_s else times.woken_first
                    kept.append((now_s, 1000 * (woken_s - since_s)))
                self._last_s, self._last_woken_s = now_s, woken_s
            elif b'"event":"eos"' in frame:
                told_ms = json.loads(frame)["timings"]["ttft_ms"]
                times.both_first.append((self._first_ms, told_ms))
                self.busy = False
            else:
                raise RuntimeError(frame.decode())
        self._buffer = buffer


class _CoreWaits:
    """Seconds that this thread has waited for a core; ``None``: the system keeps no account."""

    def __init__(self) -> None:
        self._fd = os.open(SCHEDSTAT, os.O_RDONLY) if os.path.exists(SCHEDSTAT) else -1

    def __call__(self) -> float | None:
        return int(os.pread(self._fd, 64, 0).split()[1]) / 1e9 if self._fd >= 0 else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def mixed_load(
    path: str, seconds: float, *, interactive: int = 2, background: int = 1,
    answer: int = 64, words: int = 120,
) -> dict[str, Times]:  # fmt: skip
    """Drive the daemon at ``path`` for about ``seconds``; every request is read to its end."""
    selector = selectors.DefaultSelector()
    streams = [_Stream(path, "interactive", 3, i) for i in range(interactive)]
    streams += [_Stream(path, "background", words, 100 + i) for i in range(background)]
    times = {"interactive": Times(), "background": Times()}
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
        stream.ask(answer)
    end_s = time.monotonic() + seconds
    waits = _CoreWaits()
    while any(stream.busy for stream in streams):
        before = waits()
        ready = selector.select(60.0)
        after = waits()
        waited_s = None if before is None or after is None else after - before
        for key, _ in ready:
            stream = key.data
            stream.read(times[stream.lane], waited_s)
            if not stream.busy and time.monotonic() < end_s:
                stream.ask(answer)
    selector.close()
    waits.close()
    for stream in streams:
        stream.socket.close()
    return times


def compare(times: Times, metrics: dict[str, Any], now_s: float) -> list[tuple[str, float, float]]:
    """(name, the client's, the daemon's) in ms."""
    rows = []
    for name, (kind, q) in NAMES.items():
        ours = quantile(times.within(kind, now_s), q)
        if ours is None:
            raise RuntimeError(f"the client has no time for {name}")
        rows.append((name, ours, metrics[name]))
    return rows


def agrees(ours: float, theirs: float) -> bool:
    return abs(theirs - ours) <= max(REL * ours, ABS_MS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--model", default="demo", help="demo, a shape, or a GGUF file")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--interactive", type=int, default=2)
    parser.add_argument("--background", type=int, default=1)
    options = parser.parse_args()
    flags = ["--model", str(model_path(options.model)), "--backend", options.backend]
    with Daemon(*flags, "--threads", options.threads) as daemon:
        times = mixed_load(
            daemon.path, options.seconds,
            interactive=options.interactive, background=options.background,
        )  # fmt: skip
        now_s, metrics = time.monotonic(), daemon.metrics()
    good = True
    seen = times["interactive"]
    print(f"{len(seen.within('gaps', now_s))} interactive times between tokens, "
          f"{len(seen.within('first', now_s))} first tokens")  # fmt: skip
    print(f"{'':14}{'client':>10}{'woken':>10}{'daemon':>10}{'difference':>14}")
    for name, ours, theirs in compare(seen, metrics, now_s):
        fine = agrees(ours, theirs)
        good &= fine
        kind, q = NAMES[name]
        woken = quantile(seen.within(f"woken_{kind}", now_s), q)
        print(f"{name:14}{ours:10.3f}{'-' if woken is None else f'{woken:.3f}':>10}"
              f"{theirs:10.3f}{theirs - ours:8.3f} ms "
              f"{100 * (theirs / ours - 1):+6.2f} %{'' if fine else '  too far'}")  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
