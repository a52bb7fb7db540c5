"""How long a stream pauses when its engine is killed, against what starting an engine takes.

``python -m benchmarks.recovery``; SIGKILL in the middle of a stream, several times, one daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import time
from pathlib import Path

from benchmarks.daemon import Client, Daemon
from benchmarks.machine import save, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("flags", nargs="*", help="for the daemon, after --")
    arguments = parser.parse_args()
    pauses = []
    with Daemon("--log-level", "debug", *arguments.flags) as daemon, Client(daemon.path) as client:
        for turn in range(arguments.rounds):
            client.send(id=str(turn), prompt="def f(", max_tokens=200, ignore_eos=True)
            last, worst, count = time.perf_counter(), 0.0, 0
            while True:
                event = client.receive()
                now = time.perf_counter()
                if event["event"] == "eos":
                    break
                if count:
                    worst = max(worst, now - last)
                last, count = now, count + 1
                if count == 50:
                    with Client(daemon.path) as other:
                        info = other.call(type="info")["info"]
                    os.kill(info["model"]["engine_pid"], signal.SIGKILL)
            if count != 200:
                raise RuntimeError(f"{count} tokens instead of 200")
            pauses.append(worst * 1e3)
        log = Path(daemon.log_path).read_text()
    starts = [float(ms) for ms in re.findall(r"is ready after (\d+) ms", log)]
    result = {
        "pause_ms": spread(pauses),
        "engine_start_ms": spread(starts),
        "ratio_of_medians": spread(pauses)["median"] / spread(starts)["median"],
    }
    print(json.dumps(result, indent=2))
    print("written to", save("recovery", result).name)


if __name__ == "__main__":
    main()
