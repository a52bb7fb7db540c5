"""First token of a long prompt whose beginning an earlier daemon knew, over that of a new one.

    python -m benchmarks.restart
    python -m benchmarks.restart --model demo --tokens 2000 --rounds 1

Each round has a text and a folder (``--cache-dir``) of its own.  A daemon computes the text and
ends.  The system is told to forget the folder's files, so that they come from the disk.  The next
daemon gets the text again, with a few new words behind it.  Either has answered a short prompt
before.  Figures: milliseconds to the first token, tokens that were known, what the folder takes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.daemon import Client, Daemon
from benchmarks.machine import build, ratio, save, spread
from benchmarks.models import model_path
from benchmarks.restart_tables import whole
from benchmarks.sides import quiet_death
from benchmarks.turns import say
from umaserve.bench.prompts import Prompts

NEW_WORDS = 12  # behind the known text
WARM_UP = "Say in a few words what"
ROOM = 512  # KV cells beside the prompt's


class First(NamedTuple):
    """Of one prompt: milliseconds to its first token, its tokens, and those that were known."""

    ms: float
    prompt: int
    cached: int


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument(
        "--model", default="qwen2.5-0.5b", help="demo, a shape of make_model.py, or a path"
    )
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--tokens", type=int, default=8192, help="of the text")
    out.add_argument("--rounds", type=int, default=2)
    out.add_argument("--seed", type=int, default=1, help="of the texts")
    out.add_argument("--flags", default="", help="more flags for the daemons, one string")
    out.add_argument("--name", default="", help="of the result file; by model if not given")
    return out


def first(client: Client, tokens: list[int], **fields: Any) -> First:
    """Ask for one token.  Raises RuntimeError where there is none."""
    began = time.perf_counter()
    client.send(id="first", tokens=tokens, max_tokens=1, ignore_eos=True, **fields)
    while (event := client.receive())["event"] == "token":
        ms = 1e3 * (time.perf_counter() - began)
    if event["event"] != "eos" or not event["usage"]["completion_tokens"]:
        raise RuntimeError(event)
    return First(ms, event["usage"]["prompt_tokens"], event["usage"]["cached_tokens"])


def tokens_of(client: Client, text: str) -> list[int]:
    return client.call(type="tokenize", text=text, add_special=False)["tokens"]


def one_round(flags: list[str], documents: Prompts, n_tokens: int) -> tuple[First, First, int]:
    """The first token of a new text, that of the known one, and the bytes of the folder."""
    with tempfile.TemporaryDirectory(prefix="uma-bench-cache-") as folder:
        flags = [*flags, "--cache-dir", folder]
        say("  a daemon that knows nothing")
        with Daemon(*flags) as daemon, Client(daemon.path) as client:
            text: list[int] = []
            while len(text) < n_tokens:
                text += tokens_of(client, documents.words(500) + "\n")
            text, new = text[:n_tokens], tokens_of(client, documents.words(NEW_WORDS))
            first(client, tokens_of(client, WARM_UP), cache_prompt=False)
            cold = first(client, text)
        size = forget(Path(folder))
        say(f"  {cold.ms:.0f} ms; the next daemon")
        with Daemon(*flags) as daemon, Client(daemon.path) as client:
            first(client, tokens_of(client, WARM_UP), cache_prompt=False)
            known = first(client, text + new)
        say(f"  {known.ms:.0f} ms, {known.cached} of {known.prompt} tokens known")
    return cold, known, size


def forget(folder: Path) -> int:
    """Have the system drop what it holds of the files below; returns their bytes."""
    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            size += path.stat().st_size
            if hasattr(os, "posix_fadvise"):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return size


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model = str(model_path(options.model, options.quant))
    flags = ["--model", model, "--n-ctx", str(options.tokens + ROOM), *options.flags.split()]
    documents, rounds = Prompts(options.seed), []
    for run in range(options.rounds):
        say(f"restart: round {run + 1} of {options.rounds}")
        rounds.append(one_round(flags, documents, options.tokens))
    cold, known, sizes = zip(*rounds, strict=True)
    times = [[each.ms for each in side] for side in (known, cold)]
    return {
        "benchmark": "restart", "model": f"{options.model} {options.quant}",
        "tokens": options.tokens, "rounds": options.rounds, "flags": options.flags,
        "cold_ms": spread(times[1]), "restart_ms": spread(times[0]), "ratio": ratio(*times),
        "cached": spread([each.cached for each in known]),
        "disk_mb": spread([size / 1e6 for size in sizes]),
    }  # fmt: skip


def main() -> None:
    quiet_death()
    options = parser().parse_args()
    result = measure(options)
    shown = Path(options.model).name.removesuffix(".gguf")
    label = shown if build().backend == "cpu" else f"{build().backend}-{shown}"
    name = options.name or f"restart-{label}"
    head, (line,) = whole(result, lambda s: f"{s['median']:.4g}")
    for title, value in zip(head, line, strict=True):
        print(f"{title:38}{value}")
    print("written to", save(name, result).name)


if __name__ == "__main__":
    sys.exit(main())
