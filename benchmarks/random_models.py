"""Random requests over four models, with cancels and kills: is one lost, or answered by another?

    python -m benchmarks.random_models --requests 10000
    python -m benchmarks.random_models --requests 1000000 --parts 3 --seconds 130 \\
        --threads 24 --in-a-row 40

Two chat models, an embedder and a reranker have room for two and a half of them.  Each thread asks
for one thing after another: an answer whose tokens are known beforehand, vectors, or a ranking.
A model's start takes seconds, so ``--in-a-row`` requests at most of a thread are of one model.
Engines are killed at random.  After each part of the requests the front itself is killed, and a
new daemon takes its place.  Counted: answers, cancelled ones, and what was wrong: another answer
than was asked for, none in two minutes, or more memory than --models-memory allows.  Printed
besides: MiB of the front every 20 s and of all processes at the end of each part, the most bytes
that the loaded models were counted as, and the KV cells that an idle daemon holds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks.daemon import Client, Daemon
from benchmarks.http_memory import MIB, memory
from benchmarks.machine import save
from benchmarks.models import model_path
from benchmarks.processes import family
from umaserve.models.needs import ENGINE_BYTES

SHAPES = ("demo", "micro-151k", "bert-micro", "bert-rank-micro")
FILES = [str(model_path(shape)) for shape in SHAPES]
NAMES = [Path(path).name.removesuffix(".gguf") for path in FILES]
CHATS, (EMBEDDER, RERANKER) = NAMES[:2], NAMES[2:]
TITLES = dict(zip(CHATS, ("UMA Serve demo", "micro-151k (random weights)"), strict=True))
DIMENSIONS = 128
N_TOKENS = 24
KILL_S = 20.0  # mean time between kills of engines
GONE_S = 20.0  # engines end when their front does
LOST_S = 120.0  # a request without an event for so long is lost
LOOK_S = 0.5  # between two looks at the memory that is counted
FRONT_S = 20.0  # between two looks at the front's memory


def options_parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    out.add_argument("--requests", type=int, default=10_000)
    out.add_argument("--parts", type=int, default=5, help="daemons that are killed")
    out.add_argument("--memory", type=int, default=800, help="MiB for --models-memory")
    out.add_argument("--seconds", type=float, default=0.0, help="of a part, at most; 0: no limit")
    out.add_argument("--threads", type=int, default=8)
    out.add_argument("--in-a-row", type=int, default=1, help="requests for one model, at most")
    out.add_argument("--seed", type=int, default=1)
    return out


class Seen:
    """What came of the requests, by all threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[Any] = []
        self._lock = threading.Lock()

    def note(self, name: str) -> None:
        """Count an answer."""
        with self._lock:
            self.counts[name] += 1

    def blame(self, *about: Any) -> None:
        """Keep an answer that is wrong."""
        with self._lock:
            self.counts["wrong"] += 1
            self.wrong.append(about)


def known(number: int) -> list[int]:
    """The tokens that `steered` has a model write."""
    return [300 + 37 * (number % 60) + 5 * k for k in range(N_TOKENS)]


def steered(number: int) -> dict[str, Any]:
    """Settings of an answer whose tokens are `known`."""
    bias = [[token, 1000 - 35 * k] for k, token in enumerate(known(number))]
    return {
        "max_tokens": N_TOKENS, "temperature": 0.0, "ignore_eos": True, "repeat_penalty": 10.0,
        "penalty_last_n": -1, "logit_bias": bias, "begin": True,
    }  # fmt: skip


class Asker:
    """Asks a daemon for one thing after another, over a connection of its own."""

    def __init__(self, path: str, seen: Seen, seed: float, in_a_row: int) -> None:
        self._client, self._seen, self._chosen = Client(path), seen, random.Random(seed)
        self._in_a_row, self._kind, self._left = in_a_row, "", 0
        self._client.socket.settimeout(LOST_S)

    def ask(self, number: int) -> None:
        """Ask for something at random, and check the answer."""
        if not self._left:
            self._kind = self._chosen.choice([*CHATS, *CHATS, EMBEDDER, RERANKER])
            self._left = self._chosen.randint(1, self._in_a_row)
        self._left -= 1
        kind = self._kind
        if kind in CHATS:
            self._chat(number, kind)
        elif kind == EMBEDDER:
            texts = [f"text {number} {i}" for i in range(self._chosen.randint(1, 6))]
            answer = self._client.call(type="embed", input=texts, model=kind)
            vectors = answer.get("embeddings", ())
            right = len(vectors) == len(texts) and {len(v) for v in vectors} == {DIMENSIONS}
            self._judge(kind, right, answer)
        else:
            texts = [f"text {number} {i}" for i in range(self._chosen.randint(1, 6))]
            answer = self._client.call(type="rerank", query="Which?", documents=texts, model=kind)
            right = len(answer.get("results", ())) == len(texts) and answer["model"] == kind
            self._judge(kind, right, answer)

    def _judge(self, kind: str, right: bool, answer: dict[str, Any]) -> None:
        if right:
            self._seen.note(kind)
        else:
            self._seen.blame(kind, str(answer)[:500])

    def _chat(self, number: int, kind: str) -> None:
        """Ask for an answer, and cancel some of them at their first token."""
        cancels = self._chosen.random() < 0.1
        id = str(number)
        # of digits alone, since a token of the prompt would be penalised
        self._client.send(id=id, prompt=id, model=kind, **steered(number))
        tokens: list[int] = []
        awaits = {"eos"}
        while awaits:
            event = self._client.receive()
            awaits.discard(event["event"])
            if event["event"] == "begin" and event["model"] != TITLES[kind]:
                self._seen.blame(kind, event)
            elif event["event"] == "token":
                tokens.append(event["token_id"])
                if cancels and len(tokens) == 1:
                    self._client.send(type="cancel", id=id)
                    awaits.add("cancelled")
            elif event["event"] == "eos":
                whole = known(number)
                right = tokens == (whole[: len(tokens)] if cancels else whole)
                self._judge("cancelled" if cancels else kind, right, {"tokens": tokens})
            elif event["event"] == "error":
                self._seen.blame(kind, event)
                return


def work(
    asker: Asker, seen: Seen, numbers: itertools.count[int], last: int, until_s: float
) -> None:
    """Ask until the numbers reach ``last`` or time is up, or until the daemon is gone."""
    while time.monotonic() < until_s and (number := next(numbers)) < last:
        seen.note("asked")
        try:
            asker.ask(number)
        except TimeoutError:
            seen.blame("lost", number)
            return
        except (EOFError, OSError):
            seen.blame("connection", number)
            return


def engines(daemon: Daemon) -> list[psutil.Process]:
    """The engines of a daemon."""
    with contextlib.suppress(psutil.Error):
        return [
            each
            for each in family(daemon.process.pid)[1:]
            if each.status() != "zombie" and "umaserve.engine" in " ".join(each.cmdline())
        ]
    return []


def counted_bytes(daemon: Daemon) -> int:
    """Bytes that the daemon counts of its loaded models."""
    loaded = [each for each in daemon.metrics()["models"].values() if each["loaded"]]
    return sum(each["memory_bytes"] + ENGINE_BYTES for each in loaded)


def disturb(
    daemon: Daemon, threads: list[threading.Thread], seen: Seen, chosen: random.Random
) -> tuple[int, list[float]]:
    """Kill an engine now and then while threads ask.

    Return the most bytes counted meanwhile, and MiB of the front.
    """
    due_s, highest = time.monotonic() + chosen.expovariate(1 / KILL_S), 0
    look_s, front = 0.0, []
    while any(thread.is_alive() for thread in threads):
        time.sleep(LOOK_S)
        highest = max(highest, counted_bytes(daemon))
        if time.monotonic() >= look_s:
            look_s = time.monotonic() + FRONT_S
            front.append(round(psutil.Process(daemon.process.pid).memory_info().rss / MIB, 1))
        if time.monotonic() < due_s:
            continue
        due_s = time.monotonic() + chosen.expovariate(1 / KILL_S)
        if found := engines(daemon):
            with contextlib.suppress(psutil.Error):
                chosen.choice(found).kill()
                seen.note("killed engines")
    return highest, front


def part(options: argparse.Namespace, seen: Seen, numbers: itertools.count[int], last: int) -> Any:
    """Serve a part of the requests by one daemon, and then kill its front.

    Returns MiB of its processes, MiB that were counted, and its KV cells in use.
    """
    chosen = random.Random(options.seed + last)
    flags = [flag for path in FILES for flag in ("--model", path)]
    daemon = Daemon(*flags, "--models-memory", f"{options.memory}MiB", "--n-ctx", "1024")
    until_s = time.monotonic() + options.seconds if options.seconds else math.inf
    askers = [
        Asker(daemon.path, seen, chosen.random(), options.in_a_row) for _ in range(options.threads)
    ]
    threads = [
        threading.Thread(target=work, args=(asker, seen, numbers, last, until_s))
        for asker in askers
    ]
    for thread in threads:
        thread.start()
    highest, front = disturb(daemon, threads, seen, chosen)
    if highest > options.memory << 20:
        seen.blame("more memory than there is", highest)
    time.sleep(2.0)
    used = [each["kv_cells_used"] or 0 for each in daemon.metrics()["models"].values()]
    told = {"front": front, "after": memory(daemon.process.pid), "cells": sum(used),
            "counted": highest >> 20}  # fmt: skip
    left = engines(daemon)
    with Client(daemon.path) as client:
        client.send(id="last", prompt="x", max_tokens=500, ignore_eos=True, model=CHATS[0])
        client.receive()
        os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()
    _, alive = psutil.wait_procs(left, GONE_S)
    if alive:
        seen.blame("engines outlive their front", [each.pid for each in alive])
    return told


def main() -> None:
    options = options_parser().parse_args()
    seen, numbers, parts = Seen(), itertools.count(), []
    began_s = time.monotonic()
    for number in range(1, options.parts + 1):
        last = options.requests * number // options.parts
        parts.append(part(options, seen, numbers, last))
        print(f"{last} requests, {time.monotonic() - began_s:.0f} s", parts[-1], dict(seen.counts))
        for wrong in seen.wrong[:10]:
            print("  wrong:", *wrong)
        numbers = itertools.count(last)
    result = {"requests": options.requests, "parts": parts, "counts": seen.counts}
    print(json.dumps(result, indent=1))
    save("random_models", {**result, "wrong": seen.wrong[:20]})


if __name__ == "__main__":
    main()
