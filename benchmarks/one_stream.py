"""One stream alone: first token, CPU time and system calls a token, against llama-server.

``python -m benchmarks.one_stream``; our Unix socket against llama-server's HTTP, the same model,
prompts, settings, threads and client loop, in turns.  CPU time is that of all the processes of a
side.  System calls are counted by ``strace -c``, where it is there, in a run of their own with one
library thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from typing import Any

from benchmarks import processes
from benchmarks.daemon import Daemon
from benchmarks.machine import ratio, save, spread
from benchmarks.models import model_path
from benchmarks.peers import LlamaServer
from benchmarks.prompts import N_TOKENS, prompts
from benchmarks.throughput import OURS, SAMPLING, THEIRS
from benchmarks.turns import say
from umaserve.engine.model.loaded import usable_cores

N_CTX = 2048


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--model", default="micro-151k", help="a shape of make_model.py, or a path")
    out.add_argument("--quant", default="q8_0")
    out.add_argument("--tokens", type=int, default=384)
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--firsts", type=int, default=40, help="first tokens a round")
    out.add_argument("--threads", type=int, default=usable_cores())
    out.add_argument("--name", default="one_stream", help="of the result file")
    return out


def quick() -> argparse.Namespace:
    """Options of a smoke test."""
    return parser().parse_args(
        ["--tokens", "16", "--rounds", "2", "--firsts", "2", "--threads", "1"]
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model, threads = str(model_path(options.model, options.quant)), options.threads
    first: dict[str, list[float]] = {OURS: [], THEIRS: []}
    rate: dict[str, list[float]] = {OURS: [], THEIRS: []}
    cpu: dict[str, list[float]] = {OURS: [], THEIRS: []}
    reads: dict[str, list[float]] = {OURS: [], THEIRS: []}
    texts = prompts(32)
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(
            Daemon("--model", model, "--n-ctx", str(N_CTX), "--threads", str(threads))
        )
        peer = stack.enter_context(LlamaServer(model, parallel=8, n_ctx=N_CTX, threads=threads))
        sides: dict[str, Daemon | LlamaServer] = {OURS: daemon, THEIRS: peer}
        for side in sides.values():
            for text in texts[:3]:
                side.run([text], 8, SAMPLING)
        for turn in range(options.rounds):
            say(f"one stream: round {turn + 1} of {options.rounds}")
            for i in range(options.firsts):
                for name, side in sides.items():
                    time.sleep(0.03)
                    done = side.run([texts[(turn * options.firsts + i) % 32]], 1, SAMPLING)
                    first[name].append(done.first_token_s[0])
            for name, side in sides.items():
                time.sleep(0.2)
                before = side.cpu_s()
                done = side.run([texts[turn % 32]], options.tokens, SAMPLING)
                cpu[name].append((side.cpu_s() - before) / done.tokens * 1000)
                rate[name].append(done.tokens_per_s)
                reads[name].append(done.streams[0].n_bytes / done.tokens)
        metrics = daemon.metrics()
    # one library thread: ggml's threads wait for each other in system calls of their own
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(
            Daemon("--model", model, "--n-ctx", str(N_CTX), "--threads", "1")
        )
        peer = stack.enter_context(LlamaServer(model, parallel=8, n_ctx=N_CTX, threads=1))
        calls = {
            name: system_calls(side, texts[0], options.tokens)
            for name, side in ((OURS, daemon), (THEIRS, peer))
        }
    return {
        "model": f"{options.model} {options.quant}",
        "threads": threads,
        "prompt_tokens": N_TOKENS,
        "sampling": SAMPLING,
        "first_token_ms": {k: spread([1e3 * s for s in v]) for k, v in first.items()},
        "first_token_ratio": ratio(first[OURS], first[THEIRS]),
        "tokens_per_s": {k: spread(v) for k, v in rate.items()},
        "tokens_per_s_ratio": ratio(rate[OURS], rate[THEIRS]),
        "cpu_s_per_1k_tokens": {k: spread(v) for k, v in cpu.items()},
        "cpu_ratio": ratio(cpu[OURS], cpu[THEIRS]),
        "wire_bytes_per_token": {k: spread(v) for k, v in reads.items()},
        "system_calls_per_token": calls,
        "copied_bytes_per_token": metrics["copied_bytes_per_token"],
        "copy_free_ratio": metrics["copy_free_ratio"],
        "seconds": {"first_token": first},
    }


def system_calls(side: Daemon | LlamaServer, prompt: str, n: int) -> float | None:
    """System calls of all processes of a side for a token; None where strace cannot count them."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile("r") as report:
        targets = [f"-p{p.pid}" for p in processes.family(side.process.pid)]
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-o", report.name, *targets], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr
        for _ in targets:
            if "attached" not in tracer.stderr.readline():
                tracer.kill()
                return None
        side.run([prompt], n, SAMPLING)
        tracer.terminate()
        tracer.wait(20)
        for line in report.read().splitlines():
            words = line.split()
            if words and words[-1] == "total":
                return int(words[3 if len(words) > 4 else 2]) / n
    return None


def main() -> None:
    options = parser().parse_args()
    result = measure(options)
    result.pop("seconds")
    print(json.dumps(result, indent=1))
    print("written to", save(options.name, result).name)


if __name__ == "__main__":
    main()
