"""Does a greedy stream depend on who else is there, or on its engine being killed?

``python -m benchmarks.invariance``; the bundled model, greedy.  Every stream is run alone, then
with seven others, then alone with its engine killed (SIGKILL) five times.  Floating-point sums
differ in their last bits with the shape of a batch, so a near tie may tip: the figures are the
share of streams that are equal to the end, and where the others part.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from typing import Any

from benchmarks.daemon import Client, Daemon
from benchmarks.machine import save
from benchmarks.turns import say
from umaserve.engine.model.loaded import usable_cores

SNIPPETS = (
    "def fibonacci(n):", "class Stack:", "import os\nimport sys\n\n", "for i in range(10):",
    "def read_file(path):", "# sort a list of numbers\n", "def test_add():", "while True:",
    "async def main():", "@dataclass\nclass Point:", "x = [", "with open(", "def parse(text):",
    "try:\n    value =", "if __name__ ==", "return sorted(", "def max_of(values):",
    "from typing import", "print(", "lambda x:", "def binary_search(", "class Node:",
    "def merge(left, right):", "raise ValueError(",
)  # fmt: skip
KILLS = 5
Tokens = list[int]


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--streams", type=int, default=24)
    out.add_argument("--killed", type=int, default=4, help="streams whose engine is killed")
    out.add_argument("--tokens", type=int, default=160)
    out.add_argument("--threads", type=int, default=usable_cores())
    return out


def quick() -> argparse.Namespace:
    """Options of a smoke test."""
    return parser().parse_args(
        ["--streams", "8", "--killed", "1", "--tokens", "24", "--threads", "1"]
    )


def together(path: str, prompts: list[str], n: int) -> list[Tokens]:
    """The tokens of all prompts, asked for at once on one connection."""
    out: list[Tokens] = [[] for _ in prompts]
    with Client(path) as client:
        for i, prompt in enumerate(prompts):
            client.send(id=str(i), prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True)
        left = len(prompts)
        while left:
            event = client.receive()
            if event["event"] == "token":
                out[int(event["id"])].append(event["token_id"])
            elif event["event"] == "eos":
                left -= 1
            else:
                raise RuntimeError(event)
    return out


def killed(path: str, prompt: str, n: int) -> Tokens:
    """The tokens of one prompt whose engine is killed `KILLS` times on the way."""
    out: Tokens = []
    at = {(i + 1) * n // (KILLS + 1) for i in range(KILLS)}
    with Client(path) as client:
        client.send(id="k", prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True)
        while True:
            event = client.receive()
            if event["event"] == "eos":
                return out
            if event["event"] != "token":
                raise RuntimeError(event)
            out.append(event["token_id"])
            if len(out) in at:
                with Client(path) as other:
                    info = other.call(type="info")["info"]
                os.kill(info["model"]["engine_pid"], signal.SIGKILL)


def compare(undisturbed: list[Tokens], other: list[Tokens]) -> dict[str, Any]:
    """Share of streams equal to the end, and how many tokens the others have in common first."""
    parted = []
    for a, b in zip(undisturbed, other, strict=True):
        if a != b:
            same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            parted.append(min(len(a), len(b)) if same is None else same)
    return {
        "streams": len(other),
        "equal": len(other) - len(parted),
        "share": (len(other) - len(parted)) / len(other),
        "parted_after_tokens": sorted(parted),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    prompts, n = list(SNIPPETS[: options.streams]), options.tokens
    began = time.perf_counter()
    with Daemon("--threads", str(options.threads)) as daemon:
        say("invariance: alone")
        alone = [together(daemon.path, [prompt], n)[0] for prompt in prompts]
        again = [together(daemon.path, [prompt], n)[0] for prompt in prompts[:4]]
        say("invariance: with seven others")
        crowd: list[Tokens] = []
        for i in range(0, len(prompts), 8):
            crowd += together(daemon.path, prompts[i : i + 8], n)
        say(f"invariance: {KILLS} kills each")
        resumed = [killed(daemon.path, prompt, n) for prompt in prompts[: options.killed]]
    return {
        "model": "demo",
        "threads": options.threads,
        "tokens": n,
        "kills": KILLS,
        "wall_s": time.perf_counter() - began,
        "alone_twice": compare(alone[:4], again),
        "with_seven_others": compare(alone, crowd),
        "killed": compare(alone[: options.killed], resumed),
    }


def main() -> None:
    result = measure(parser().parse_args())
    print(json.dumps(result, indent=1))
    print("written to", save("invariance", result).name)


if __name__ == "__main__":
    main()
