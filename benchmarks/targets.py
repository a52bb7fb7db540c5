"""What the project promises of these figures, against what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.must_hold import shown

Result = dict[str, Any]


class Target(NamedTuple):
    """``limit`` is the most where ``at_most``, else the least; ``read`` takes the result's JSON."""

    text: str
    result: str
    limit: float
    at_most: bool
    read: Callable[[Result], float]


def _over(streams: int, side: str) -> Callable[[Result], float]:
    def read(result: Result) -> float:
        row = next(r for r in result["rows"] if r["streams"] == streams)
        return row["ours_over"][side]["median"]

    return read


def _sampler(key: str) -> Callable[[Result], float]:
    def read(result: Result) -> float:
        name = "top-k 40, top-p, temperature"
        row = next(r for r in result["rows"] if r["n_vocab"] == 151936 and r["setting"] == name)
        return row[key]["median"]

    return read


def _tick_share(result: Result) -> float:
    return next(r for r in result["rows"] if r["sessions"] == 8)["share"]["median"]


_SERVER, _BACKEND = "llama-server", "llama-server, backend sampling"
_LIBRARY = "llama-batched-bench"
_SMALL, _LARGE = "throughput-cuda-qwen2.5-0.5b", "throughput-cuda-qwen3-30b-a3b"
_CROWD = "busy_front-cores-to-spare"
TARGETS = (
    Target("top-k 40 + top-p + temperature at 151,936 tokens over `numpy.max`", "sampler", 3.0,
           True, _sampler("ours_over_numpy")),
    Target("llama.cpp's chain over ours, the same setting", "sampler", 5.0, False,
           _sampler("llama.cpp over ours")),
    Target("share of the tick outside `llama_decode`, 8 sessions, micro-151k", "tick", 0.10, True,
           _tick_share),
    Target("8 streams, micro-151k, CPU: tokens/s over llama-server", "throughput-micro-151k", 1.35,
           False, _over(8, _SERVER)),
    Target("8 streams, micro-151k, CPU: over llama-batched-bench", "throughput-micro-151k", 0.85,
           False, _over(8, _LIBRARY)),
    Target("32 streams, 0.5B, CUDA: over llama-server", _SMALL, 4.0, False, _over(32, _SERVER)),
    Target("32 streams, 0.5B, CUDA: over llama-server with backend sampling", _SMALL, 2.0, False,
           _over(32, _BACKEND)),
    Target("32 streams, 0.5B, CUDA: over llama-batched-bench", _SMALL, 0.8, False,
           _over(32, _LIBRARY)),
    Target("8 streams, 30B-A3B, CUDA: over llama-server", _LARGE, 1.8, False, _over(8, _SERVER)),
    Target("32 streams, 30B-A3B, CUDA: over llama-server", _LARGE, 1.8, False,
           _over(32, _SERVER)),
    Target("8 streams, 30B-A3B, CUDA: over llama-batched-bench", _LARGE, 0.9, False,
           _over(8, _LIBRARY)),
    Target("32 streams, 30B-A3B, CUDA: over llama-batched-bench", _LARGE, 0.9, False,
           _over(32, _LIBRARY)),
    Target("one stream: time to first token over llama-server's", "one_stream", 0.9, True,
           lambda r: r["first_token_ratio"]["median"]),
    Target("one stream: CPU time a token over llama-server's", "one_stream", 0.85, True,
           lambda r: r["cpu_ratio"]["median"]),
    Target("bytes of logits copied by our code for a token", "one_stream", 0.0, True,
           lambda r: r["copied_bytes_per_token"]),
    Target("tick p95, 200 connections that poll and send garbage, over a quiet one", _CROWD, 1.05,
           True, lambda r: r["p95_ratio"]["median"]),
    Target("first token of a 16-word prompt over the bare library", "first_token", 1.3, True,
           lambda r: r["ratio"]["median"]),
)  # fmt: skip


def holds(target: Target, value: float) -> bool:
    """Whether a figure holds, compared as it is shown."""
    seen = float(shown(value))
    return seen <= target.limit if target.at_most else seen >= target.limit


def targets_table(results: dict[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of promises."""
    rows = []
    for target in TARGETS:
        goal = f"{'at most' if target.at_most else 'at least'} {target.limit:g}"
        if target.result not in results:
            rows.append([target.text, goal, "not measured yet", "-"])
            continue
        value = target.read(results[target.result])
        verdict = "yes" if holds(target, value) else "**no**"
        rows.append([target.text, goal, shown(value), verdict])
    return ["figure", "promised", "measured", "holds"], rows
