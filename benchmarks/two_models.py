"""What a stream of one model gets beside another model that computes prompts.

    python -m benchmarks.two_models --model A.gguf --other B.gguf
    python -m benchmarks.two_models --model A.gguf --other EMBEDDER.gguf --texts 64

One daemon has both.  Stretches where the other model is idle and stretches where it is asked for
prompts without a pause take turns, and so do stretches of the other model alone.  With ``--texts``
it is asked for embeddings of that many short texts at a time.  The figures are the stream's times
between tokens beside over alone, and the other model's requests a second beside over alone: the
median of the rounds, and the least and the most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.daemon import Daemon
from umaserve.client import Client

WARM_S = 1.0
WORDS = (
    "the", "of", "model", "daemon", "stream", "prompt", "cache", "engine", "tokens", "memory",
    "desk", "reader", "agent", "file",
)  # fmt: skip


def options_parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        "benchmarks.two_models", description=__doc__.splitlines()[0]  # type: ignore[union-attr]
    )
    out.add_argument("--model", required=True, help="the file of the model that streams")
    out.add_argument("--other", required=True, help="the file of the model that gets prompts")
    out.add_argument("--words", type=int, default=1200, help="of such a prompt")
    out.add_argument("--texts", type=int, default=0, help="of a request for embeddings; 0: prompts")
    out.add_argument("--background", action="store_true", help="label these prompts so")
    out.add_argument("--seconds", type=float, default=6.0, help="of a stretch")
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--out", type=Path, help="where the figures go as JSON")
    return out


class Work:
    """Requests to a model in a thread of their own; ``times`` are those of what comes."""

    def __init__(self, path: str, model: str) -> None:
        self.times: list[float] = []
        self.model = model
        self._path, self._ends = path, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Work:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def is_over(self) -> bool:
        return self._ends.is_set()

    def _run(self) -> None:
        with Client(self._path) as client:
            while not self.is_over:
                self.ask(client)

    def ask(self, client: Client) -> None:
        raise NotImplementedError


class Stream(Work):
    """A long answer after another; ``times`` are those of its tokens."""

    def ask(self, client: Client) -> None:
        stream = client.generate(
            "Tell a long story.", model=self.model, max_tokens=2048, ignore_eos=True
        )
        for _ in stream:
            self.times.append(time.perf_counter())
            if self.is_over:
                stream.close()
                return


class Prompts(Work):
    """Prompts without a pause, of new words each; ``times`` are those of their answers."""

    def __init__(self, path: str, model: str, words: int, lane: str | None) -> None:
        super().__init__(path, model)
        self._words, self._lane = words, lane

    def ask(self, client: Client) -> None:
        prompt = " ".join(random.choices(WORDS, k=self._words))
        labels = {"priority": self._lane} if self._lane else {}
        client.complete(prompt, model=self.model, max_tokens=4, ignore_eos=True, **labels)
        self.times.append(time.perf_counter())


class Texts(Work):
    """Requests for embeddings without a pause; ``times`` are those of their answers."""

    def __init__(self, path: str, model: str, texts: int) -> None:
        super().__init__(path, model)
        self._texts = texts

    def ask(self, client: Client) -> None:
        sizes = [random.randint(5, 20) for _ in range(self._texts)]
        texts = [" ".join(random.choices(WORDS, k=size)) for size in sizes]
        client.embed(texts, model=self.model)
        self.times.append(time.perf_counter())


def gaps_ms(times: list[float]) -> list[float]:
    return [1e3 * (b - a) for a, b in zip(times, times[1:], strict=False)] or [0.0]


def figures_of(gaps: list[float]) -> dict[str, float]:
    gaps = sorted(gaps)
    return {
        "mean_ms": statistics.fmean(gaps),
        "p95_ms": gaps[int(0.95 * (len(gaps) - 1))],
        "longest_ms": gaps[-1],
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of each round."""
    rounds = []
    with Daemon("--model", options.model, "--model", options.other) as daemon:
        name = Path(options.other).name.removesuffix(".gguf")
        main = Path(options.model).name

        def stretch(*works: Work) -> None:
            time.sleep(WARM_S)
            for work in works:
                work.times.clear()
            time.sleep(options.seconds)

        def other() -> Work:
            if options.texts:
                return Texts(daemon.path, name, options.texts)
            lane = "background" if options.background else None
            return Prompts(daemon.path, name, options.words, lane)

        with Client(daemon.path, timeout=600) as client:  # both are loaded, and warm
            other().ask(client)
        for number in range(options.rounds):
            with Stream(daemon.path, main) as stream:
                stretch(stream)
                alone = figures_of(gaps_ms(stream.times))
                with other() as prompts:
                    stretch(stream, prompts)
                    beside = figures_of(gaps_ms(stream.times))
                    beside["prompts"] = len(prompts.times)
            with other() as prompts:
                stretch(prompts)
                alone["prompts"] = len(prompts.times)
            rounds.append({"alone": alone, "beside": beside})
            print(f"round {number + 1}: {json.dumps(rounds[-1])}", flush=True)
    return rounds


def main(arguments: list[str] | None = None) -> None:
    options = options_parser().parse_args(arguments)
    rounds = measure(options)
    ratio: Callable[[str], list[float]] = lambda key: sorted(  # noqa: E731
        each["beside"][key] / max(each["alone"][key], 1e-9) for each in rounds
    )
    shown = {
        "mean between tokens, beside over alone": ratio("mean_ms"),
        "p95 between tokens, beside over alone": ratio("p95_ms"),
        "longest ms beside": sorted(each["beside"]["longest_ms"] for each in rounds),
        "requests of the other model, beside over alone": ratio("prompts"),
    }
    for words, values in shown.items():
        print(f"{words}: {statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})")
    if options.out is not None:
        options.out.write_text(json.dumps({"rounds": rounds, "shown": shown}, indent=1))


if __name__ == "__main__":
    main()
