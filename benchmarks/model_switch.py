"""How long a switch to another model takes, and what a switch back finds.

    python -m benchmarks.model_switch --model A.gguf --other B.gguf --words 1500

One daemon has room for one of two models, whose files are in the page cache.  Figures, in seconds,
in turns: the first token of a short prompt for the model that is not loaded (``switch``), and
llama-server's start with that model and its first answer (``theirs``).  Then back to the first
model, which is loaded again: the first token of a new text (``cold``), and of a text as long that
it computed before (``known``).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.daemon import Daemon
from benchmarks.models import model_path
from benchmarks.peers import LlamaServer
from benchmarks.two_models import WORDS
from umaserve.client import Client
from umaserve.engine.model.loaded import usable_cores

SHORT = "Say hello."


def options_parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        "benchmarks.model_switch", description=__doc__.splitlines()[0]  # type: ignore[union-attr]
    )
    out.add_argument("--model", default="demo", help="the model that is switched from")
    out.add_argument("--other", required=True, help="the model that is switched to")
    out.add_argument("--memory", required=True, help="--models-memory: one of them fits")
    out.add_argument("--words", type=int, default=1500, help="of the known text")
    out.add_argument("--n-ctx", type=int, default=4096)
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--out", type=Path, help="where the figures go as JSON")
    return out


def text(words: int, seed: int) -> str:
    """Words without sense, of which no two seeds begin alike."""
    return f"{seed} " + " ".join(random.Random(seed).choices(WORDS, k=words))


def first_token_s(client: Client, model: str, prompt: str) -> float:
    """Seconds until the first token of an answer."""
    began_s = time.perf_counter()
    stream = client.generate(prompt, model=model, max_tokens=1, ignore_eos=True)
    next(stream)
    took_s = time.perf_counter() - began_s
    for _ in stream:
        pass
    return took_s


def theirs_s(path: str, n_ctx: int) -> float:
    """Seconds from the start of llama-server to its first answer."""
    began_s = time.perf_counter()
    with LlamaServer(path, parallel=4, n_ctx=n_ctx, threads=usable_cores()) as server:
        body = json.dumps({"prompt": SHORT, "n_predict": 1}).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/completion", body).read()
        return time.perf_counter() - began_s


def measure(options: argparse.Namespace) -> list[dict[str, float]]:
    """The figures of each round."""
    one, other = str(model_path(options.model)), str(model_path(options.other))
    names = [Path(path).name.removesuffix(".gguf") for path in (one, other)]
    rounds = []
    with tempfile.TemporaryDirectory() as cache:
        flags = ("--model", one, "--model", other, "--n-ctx", str(options.n_ctx))
        flags += ("--models-memory", options.memory, "--cache-dir", cache)
        with Daemon(*flags) as daemon, Client(daemon.path, timeout=600) as client:
            known = text(options.words, 0)
            first_token_s(client, names[1], SHORT)  # costs are measured, files are read
            first_token_s(client, names[0], known)
            for number in range(1, options.rounds + 1):
                found = {"switch": first_token_s(client, names[1], SHORT)}
                found["theirs"] = theirs_s(other, options.n_ctx)
                found["cold"] = first_token_s(client, names[0], text(options.words, number))
                first_token_s(client, names[1], SHORT)
                found["known"] = first_token_s(client, names[0], known)
                found["switch_over_theirs"] = found["switch"] / found["theirs"]
                found["known_over_cold"] = found["known"] / found["cold"]
                rounds.append(found)
                print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    return rounds


def main() -> None:
    options = options_parser().parse_args()
    rounds = measure(options)
    result: dict[str, Any] = {"options": vars(options), "rounds": rounds}
    for name in rounds[0]:
        values = [found[name] for found in rounds]
        print(f"{name:20} {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1, default=str))


if __name__ == "__main__":
    main()
