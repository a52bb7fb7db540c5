"""What a tick costs beside the library: the tick's period minus the time inside ``llama_decode``.

``python -m benchmarks.tick``: real requests through the socket; every tick's times come from the
daemon's own trace (``--trace``).  Only ticks that decode for all sessions, after another such tick,
count: the period is from the end of one to the end of the next, so whatever happens between ticks
is in it.  Sampling (top-k 40, top-p, min-p, temperature) is part of the overhead.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.daemon import Daemon
from benchmarks.machine import save, spread
from benchmarks.models import model_path
from benchmarks.prompts import prompts
from benchmarks.throughput import SAMPLING
from benchmarks.turns import say
from umaserve.engine.model.loaded import usable_cores


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="micro-151k", help="a shape of make_model.py, or a path")
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--sessions", default="1,4,8,32")
    out.add_argument("--tokens", type=int, default=128)
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--threads", type=int, default=usable_cores())
    out.add_argument("--name", default="", help="of the result file")
    return out


def quick() -> argparse.Namespace:
    """Options of a smoke test."""
    return parser().parse_args(
        ["--sessions", "1,2", "--tokens", "12", "--rounds", "1", "--threads", "1"]
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    counts = [int(n) for n in options.sessions.split(",")]
    most = max(counts)
    n_ctx = -(-most * (80 + options.tokens) // 256) * 256
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "ticks.jsonl"
        daemon = Daemon(
            "--model", str(model_path(options.model, options.quant)), "--parallel", str(most),
            "--max-sessions", str(max(most, 2)), "--n-ctx", str(n_ctx),
            "--threads", str(options.threads), "--trace", str(trace),
        )  # fmt: skip
        with daemon:
            for turn in range(options.rounds):
                say(f"tick: round {turn + 1} of {options.rounds}")
                for n in counts:
                    daemon.run(prompts(n), options.tokens, SAMPLING)
            metrics = daemon.metrics()  # reads the rest of the ring into the trace
            time.sleep(0.2)
        ticks = [json.loads(line) for line in trace.read_text().splitlines()]
    rows = [row for n in counts if (row := summary(ticks, n)) is not None]
    return {
        "model": f"{options.model} {options.quant}",
        "threads": options.threads,
        "sampling": SAMPLING,
        "rows": rows,
        "copied_bytes_per_token": metrics["copied_bytes_per_token"],
        "copy_free_ratio": metrics["copy_free_ratio"],
    }


def summary(ticks: list[dict[str, Any]], n: int) -> dict[str, Any] | None:
    """Ticks that decode one token for each of ``n`` sessions; None where there are too few."""
    overhead_us, between_us, share, sample_us, decode_ms, period_ms = [], [], [], [], [], []
    for before, tick in zip(ticks, ticks[1:], strict=False):
        steady = all(t["decode_rows"] == n and not t["prefill_tokens"] for t in (before, tick))
        period = (tick["end_s"] - before["end_s"]) * 1e3
        # a pause between two runs is no tick
        if not steady or period > 4 * tick["wall_ms"] + 20:
            continue
        outside = period - tick["decode_ms"]
        overhead_us.append(outside * 1e3)
        between_us.append((period - tick["wall_ms"]) * 1e3)
        share.append(outside / period)
        sample_us.append(tick["sample_ms"] * 1e3)
        decode_ms.append(tick["decode_ms"])
        period_ms.append(period)
    if len(share) < 2:
        return None
    return {
        "sessions": n,
        "ticks": len(share),
        "period_ms": spread(period_ms),
        "decode_ms": spread(decode_ms),
        "overhead_us": spread(overhead_us),
        "between_ticks_us": spread(between_us),
        "sampling_us": spread(sample_us),
        "share": spread(share),
        "share_of_total": sum(overhead_us) / 1e3 / sum(period_ms),
        "seconds": {
            "the whole tick": [ms / 1e3 for ms in period_ms],
            "inside llama_decode": [ms / 1e3 for ms in decode_ms],
            "outside": [us / 1e6 for us in overhead_us],
        },
    }


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """The result without the single ticks."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result["rows"]]
    return {**result, "rows": rows}


def main() -> None:
    options = parser().parse_args()
    result = measure(options)
    for row in result["rows"]:
        print(
            f"{row['sessions']:3d} sessions: decode {row['decode_ms']['median']:.2f} ms, "
            f"outside {row['overhead_us']['median']:.0f} us "
            f"(sampling {row['sampling_us']['median']:.0f}, "
            f"between ticks {row['between_ticks_us']['median']:.0f}), "
            f"share {row['share']['median']:.1%}"
        )
    print("written to", save(options.name or "tick", without_times(result)).name)


if __name__ == "__main__":
    main()
