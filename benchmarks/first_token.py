"""First token of a 16-word prompt on the bundled model: the daemon against the bare library.

``python -m benchmarks.first_token``; the two take turns, both with the number of threads that the
daemon chooses at its start.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.daemon import Client, Daemon
from benchmarks.machine import ratio, save, spread
from benchmarks.turns import say
from umaserve.assets import demo_model_path

WORDS = "open the file and read every line into a list then return {} of the lines sorted"
WARM_UP = 5


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--rounds", type=int, default=60)
    out.add_argument("--threads", type=int, default=0, help="0 = what the daemon chooses")
    return out


def quick() -> argparse.Namespace:
    """Options of a smoke test."""
    return parser().parse_args(["--rounds", "3", "--threads", "1"])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds to the first token on both sides, and their ratio."""
    times: dict[str, list[float]] = {"daemon": [], "library": []}
    say("first token")
    flags = ("--threads", str(options.threads)) if options.threads else ()
    with Daemon(*flags) as daemon, Client(daemon.path) as client:
        threads = client.call(type="info")["info"]["model"]["n_threads"]
        bare = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_library", str(demo_model_path()), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert bare.stdin and bare.stdout
        bare.stdout.readline()
        for turn in range(-WARM_UP, options.rounds):
            prompt = WORDS.format(turn + 100)
            bare.stdin.write(json.dumps({"prompt": prompt, "n": 1}) + "\n")
            bare.stdin.flush()
            library_s = json.loads(bare.stdout.readline())["seconds"][0]
            time.sleep(0.02)
            began = time.perf_counter()
            arrived, _ = client.generate(str(turn), prompt, max_tokens=1, temperature=0)
            time.sleep(0.02)
            if turn >= 0:
                times["library"].append(library_s)
                times["daemon"].append(arrived[0] - began)
    bare.stdin.close()
    bare.wait()
    result: dict[str, Any] = {
        f"{side}_ms": spread([1e3 * s for s in values]) for side, values in times.items()
    }
    result["ratio"] = ratio(times["daemon"], times["library"])
    medians = [result[f"{side}_ms"]["median"] for side in ("daemon", "library")]
    result["ratio_of_medians"] = medians[0] / medians[1]
    result["threads"] = threads
    result["seconds"] = times
    return result


def main() -> None:
    result = measure(parser().parse_args())
    result.pop("seconds")
    print(json.dumps(result, indent=2))
    print("written to", save("first_token", result).name)


if __name__ == "__main__":
    main()
