"""What each mechanism of the scheduler is good for: daemons without it, in turns with a whole one.

    python -m benchmarks.ablation
    python -m benchmarks.ablation --leave-out slices,team_rows --rounds 5
    python -m benchmarks.ablation --backend-lib cuda --leave-out ready_graph+meanwhile

All daemons run from the start to the end, and one of them is asked at a time.  A round asks each of
them for everything: first tokens of short and long prompts, alone and beside streams, a stream
beside prompts that say ``background`` and beside prompts that say nothing, background decoders, and
many requests at once.  Printed is each figure without the mechanism over the same with it, round by
round: median, least, most.  Names of ``--leave-out`` are of ``serve --without`` and of
``benchmarks/ablated.py``; a ``+`` leaves out several together.
"""

# Long: one benchmark, from its options to its table.

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks import ablated, machine
from benchmarks.daemon import Client, Daemon
from benchmarks.machine import ratio, save, spread
from benchmarks.models import model_path
from benchmarks.timeline import percentile
from benchmarks.turns import say
from umaserve.bench.prompts import Prompts
from umaserve.policy.base import FEATURES
from umaserve.system.processor import logical_cores

PROCESSOR = "slices,bandwidth,team_rows"
ACCELERATOR = "ready_graph,meanwhile,ready_pages"
WHOLE = "whole"
WARM_UP_S = 2.0  # of each stretch


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="qwen2.5-0.5b")
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--backend-lib", default="", help="whose libllama")
    out.add_argument("--leave-out", default="", help="names, with commas between")
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--seconds", type=float, default=7.0, help="of each stretch beside a stream")
    out.add_argument("--words", type=int, default=220, help="of a storm's prompts")
    out.add_argument("--clients", type=int, default=3, help="of a storm")
    out.add_argument("--decoders", type=int, default=6, help="requests at once")
    out.add_argument("--flags", default="", help="more flags for all daemons, one string")
    out.add_argument("--label", default="")
    return out


def start(name: str, options: argparse.Namespace) -> Daemon:
    parts = [] if name == WHOLE else name.split("+")
    switches = ",".join(part for part in parts if part in FEATURES)
    patches = ",".join(part for part in parts if part not in FEATURES)
    known = {part.__name__ for part in ablated.ENGINE}
    if not set(filter(None, patches.split(","))) <= known:
        raise SystemExit(f"of {name}, one is no part: {', '.join(sorted(known | set(FEATURES)))}")
    flags = ["--model", str(model_path(options.model, options.quant)), *options.flags.split()]
    if options.backend_lib:
        flags += ["--backend", options.backend_lib]
    if machine.build().backend == "cpu" and "--threads" not in flags:
        # each chooses for itself else, by what else runs at its start
        flags += ["--threads", str(logical_cores())]
    if switches:
        flags += ["--without", switches]
    return Daemon(*flags, module=["benchmarks.ablated", patches] if patches else None)


def rest(daemon: Daemon) -> None:
    """What a start measures in pauses is measured."""
    before = -1.0
    while (used := daemon.cpu_s()) - before > 0.05 or before < 0.0:
        before = used
        time.sleep(1.0)


class Asked:
    """A request that goes on in a thread, again and again until `stop`."""

    def __init__(self, path: str, prompt: Callable[[], str], **fields: Any) -> None:
        self.times: list[list[float]] = []  # of the tokens, a list a request
        self._stop = False
        self._client = Client(path)
        self._prompt, self._fields = prompt, fields
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                times: list[float] = []
                self.times.append(times)
                self._client.send(id="a", prompt=self._prompt(), cache_prompt=False, **self._fields)
                while (event := self._client.receive())["event"] == "token":
                    times.append(time.perf_counter())
                if event["event"] != "eos":
                    raise RuntimeError(event)
        except (OSError, EOFError):
            if not self._stop:
                raise

    def stop(self) -> None:
        """Leave, whatever is under way."""
        self._stop = True
        self._client.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._client.socket.close()

    def gaps_ms(self, since: float) -> list[float]:
        """Times between two tokens after a moment."""
        return [
            1e3 * (b - a) for times in self.times for a, b in zip(times, times[1:], strict=False)
            if a >= since
        ]  # fmt: skip

    def count(self, since: float) -> int:
        return sum(at >= since for times in self.times for at in times)


class Round:
    """Everything that one daemon is asked for once; `figures` has what came of it."""

    def __init__(
        self, daemon: Daemon, options: argparse.Namespace, words: Prompts, seconds: float
    ) -> None:
        self._daemon, self._options, self._words = daemon, options, words
        self._seconds = seconds
        self._lock = threading.Lock()
        self.figures: dict[str, float] = {}
        time.sleep(0.5)
        self._alone()
        self._beside_a_storm("background", options.words, options.clients, "background")
        self._beside_a_storm("unlabelled", options.words // 2, max(options.clients - 1, 1))
        self._first_tokens_beside()
        self._background_decoders()
        self._at_once()

    def _prompt(self, n: int) -> Callable[[], str]:
        def prompt() -> str:
            with self._lock:
                return self._words.words(n)

        return prompt

    def _first_ms(self, words: int, times: int) -> float:
        took = []
        with Client(self._daemon.path) as client:
            for i in range(times):
                time.sleep(0.08)
                prompt, began = self._prompt(words)(), time.perf_counter()
                at, _ = client.generate(f"f{i}", prompt, max_tokens=1, cache_prompt=False)
                took.append(1e3 * (at[0] - began))
        return statistics.median(took)

    def _stream(self) -> Asked:
        return Asked(self._daemon.path, self._prompt(16), max_tokens=2000, ignore_eos=True)

    def _alone(self) -> None:
        self._first_ms(16, 1)
        self.figures["first token, 16 words, ms"] = self._first_ms(16, 5)
        self.figures["first token, 170 words, ms"] = self._first_ms(170, 2)
        stream = self._stream()
        time.sleep(0.5)
        began = time.perf_counter()
        time.sleep(0.7 * self._seconds)
        gaps = stream.gaps_ms(began)
        stream.stop()
        self.figures["stream alone, p50, ms"] = percentile(gaps, 50)
        self.figures["stream alone, p95, ms"] = percentile(gaps, 95)
        self._settle()

    def _beside_a_storm(self, name: str, words: int, clients: int, priority: str = "") -> None:
        stream = self._stream()
        time.sleep(0.5)
        fields = {"priority": priority} if priority else {}
        storm = [
            Asked(self._daemon.path, self._prompt(words), max_tokens=1, **fields)
            for _ in range(clients)
        ]
        time.sleep(0.5)
        began, before = time.perf_counter(), self._prompt_tokens()
        time.sleep(self._seconds)
        computed, took = self._prompt_tokens() - before, time.perf_counter() - began
        gaps = stream.gaps_ms(began)
        for each in [stream, *storm]:
            each.stop()
        self.figures[f"{name} storm, stream p95, ms"] = percentile(gaps, 95)
        self.figures[f"{name} storm, longest, ms"] = max(gaps, default=float("nan"))
        self.figures[f"{name} storm, stream tokens/s"] = len(gaps) / took
        self.figures[f"{name} storm, prompt tokens/s"] = computed / took
        self._settle()

    def _first_tokens_beside(self) -> None:
        streams = [self._stream() for _ in range(2)]
        time.sleep(1.0)
        self.figures["first token beside 2 streams, 16 words, ms"] = self._first_ms(16, 4)
        self.figures["first token beside 2 streams, 90 words, ms"] = self._first_ms(90, 2)
        for each in streams:
            each.stop()
        self._settle()

    def _background_decoders(self) -> None:
        stream = self._stream()
        others = [
            Asked(self._daemon.path, self._prompt(12), max_tokens=400, ignore_eos=True,
                  priority="background")
            for _ in range(3)
        ]  # fmt: skip
        time.sleep(1.0)
        began = time.perf_counter()
        time.sleep(self._seconds)
        took = time.perf_counter() - began
        gaps, count = stream.gaps_ms(began), sum(each.count(began) for each in others)
        for each in [stream, *others]:
            each.stop()
        self.figures["background decoders, stream p95, ms"] = percentile(gaps, 95)
        self.figures["background decoders, their tokens/s"] = count / took
        self._settle()

    def _at_once(self) -> None:
        prompts = [self._words.words(20) for _ in range(self._options.decoders)]
        run = self._daemon.run(prompts, 48, {})
        self.figures["requests at once, tokens/s"] = run.tokens_per_s
        first = 1e3 * statistics.median(run.first_token_s)
        self.figures["requests at once, first token, ms"] = first

    def _prompt_tokens(self) -> int:
        return int(self._daemon.metrics()["prompt_tokens_computed_total"])

    def _settle(self) -> None:
        until = time.perf_counter() + 30.0
        while time.perf_counter() < until:
            metrics = self._daemon.metrics()
            if not metrics["active_sessions"] + metrics["queued_interactive"]:
                break
            time.sleep(0.05)
        time.sleep(0.3)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of all daemons by name, and those without a part over those of the whole one."""
    if options.backend_lib:
        machine.BACKEND = options.backend_lib
    processor = machine.build().backend == "cpu"
    parts = (options.leave_out or (PROCESSOR if processor else ACCELERATOR)).split(",")
    words, found = Prompts(20261126), {name: [] for name in (WHOLE, *parts)}  # type: ignore[var-annotated]
    with ExitStack() as stack:
        daemons = {}
        for name in found:
            say(f"starting: {name}")
            daemons[name] = stack.enter_context(start(name, options))
            rest(daemons[name])
        for turn in range(-1, options.rounds):
            order = list(found) if turn % 2 else list(found)[::-1]
            for name in order:
                say(f"{'warm-up' if turn < 0 else f'round {turn + 1}'}: {name}")
                seconds = options.seconds if turn >= 0 else WARM_UP_S
                figures = Round(daemons[name], options, words, seconds).figures
                if turn >= 0:
                    found[name].append(figures)
    whole = found[WHOLE]
    base = {key: [each[key] or 1e-9 for each in whole] for key in whole[0]}
    result: dict[str, Any] = {
        "benchmark": "ablation", "model": f"{options.model} {options.quant}",
        "rounds": options.rounds, "clients": options.clients, "words": options.words,
        "seconds": options.seconds, "decoders": options.decoders,
        "whole": {key: spread([each[key] for each in whole]) for key in whole[0]},
        "without": {
            name: {
                key: ratio([each[key] for each in found[name]], base[key]) for key in base
            }
            for name in parts
        },
    }  # fmt: skip
    return result


def show(result: dict[str, Any]) -> None:
    """A table a part, in Markdown: what differs by 5 % and more in the median is marked."""
    for name, figures in result["without"].items():
        print(f"\n{name}")
        for key, value in figures.items():
            told = result["whole"][key]["median"]
            mark = "  *" if abs(value["median"] - 1.0) >= 0.05 else ""
            least, most = value["p10"], value["p90"]
            print(f"  {key:46} {told:9.2f}  x {value['median']:.2f} ({least:.2f} {most:.2f}){mark}")


def main() -> int:
    options = parser().parse_args()
    result = measure(options)
    show(result)
    print(json.dumps({"saved": str(save(f"ablation-{options.label or 'here'}", result))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
