"""How libllama's CPU threads should wait for each other: libgomp's, and ggml's own pool.

``python -m benchmarks.thread_waits``.  Decodes one token at a time, with a gap as long as a tick's
own work, quietly and beside a process that needs a core for a moment: every 3 ms (``timer``), or
whenever a token was decoded, as the daemon's front does (``front``).  Each run is a process of its
own, and the settings take turns.  libgomp reads its own from ``GOMP_SPINCOUNT``; ggml's pool, in a
build with ``--cmake-arg=-DGGML_OPENMP=OFF`` below ``--pool-cache``, has a polling level from 0 to
100.

``others`` is the share of the machine that went to processes that are no part of the run.  A run
during which it was above ``--most-others`` is made again, up to ``--tries`` times, and the one with
the least of it counts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GAP_S = 0.0001  # between two decodes: sampling, publishing
WARM_UP = 10
OTHERS = ("quiet", "timer", "front")
SPINS = ("default", "100000", "20000", "5000", "1000", "0")
POLLS = (0, 1, 50)

_TIMER = """
import time
while True:
    time.sleep(0.003)
    end = time.perf_counter() + 0.0003
    while time.perf_counter() < end: pass
"""
_FRONT = """
import os, struct, time
late = []
while True:
    data = os.read(0, 8)
    if len(data) < 8: break
    end = time.perf_counter() + 0.0002
    while time.perf_counter() < end: pass
    late.append(time.monotonic_ns() - struct.unpack("q", data)[0])
late.sort()
print(late[len(late) // 2] / 1e6, late[len(late) * 95 // 100] / 1e6)
"""


class PoolParams(ctypes.Structure):
    """``struct ggml_threadpool_params`` of ggml.h."""

    _fields_ = [
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--models", nargs="+", default=["demo", "micro-151k", "qwen2.5-0.5b"])
    out.add_argument("--threads", type=int, nargs="+", default=[2])
    out.add_argument("--spins", nargs="+", default=list(SPINS), help="values of GOMP_SPINCOUNT")
    out.add_argument("--polls", type=int, nargs="*", default=list(POLLS))
    out.add_argument("--others", nargs="+", default=list(OTHERS), choices=OTHERS)
    out.add_argument("--pool-cache", default="", help="UMA_CACHE_DIR of the build without OpenMP")
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--seconds", type=float, default=1.0, help="of decoding, each run")
    out.add_argument("--most-others", type=float, default=0.05)
    out.add_argument("--tries", type=int, default=5)
    out.add_argument("--out", default="", help="JSON file for every run")
    out.add_argument("--child", default="", help=argparse.SUPPRESS)
    return out


def decode(job: dict[str, Any]) -> dict[str, float]:
    """Decode single tokens as ``job`` says; milliseconds a token.

    Long: one run in a process of its own, from the model to the figures.
    """
    from umaserve import llama

    library = llama.load("cpu")
    model = llama.Model.open(library, job["model"])
    n_ctx = 1024
    context = llama.Context.open(
        model, n_ctx=n_ctx, n_threads=job["threads"], n_threads_batch=job["threads"]
    )
    if job["poll"] is not None:
        attach_pool(library, context, job["threads"], job["poll"])
    lib, ffi = library.lib, library.ffi
    token = ffi.new("llama_token[1]", [5])
    batch = lib.llama_batch_get_one(token, 1)
    read_end, write_end = os.pipe()
    other = None
    if job["other"] != "quiet":
        code = _TIMER if job["other"] == "timer" else _FRONT
        other = subprocess.Popen(
            [sys.executable, "-c", code], stdin=read_end, stdout=subprocess.PIPE, text=True
        )
        time.sleep(0.2)
    os.close(read_end)
    times: list[float] = []
    began_all = own = 0.0
    cpu = machine = 0.0
    stop_at = 0.0
    at = -WARM_UP
    while at < 8 or time.perf_counter() < stop_at:
        if at == 0:
            cpu, machine = time.process_time() + cpu_of(other), busy_seconds()
            stop_at = time.perf_counter() + job["seconds"]
            began_all = time.perf_counter()
            own = time.process_time()
        if at % 200 == 0:  # so that the context stays short
            lib.llama_memory_clear(context.memory, False)
        began = time.perf_counter()
        if lib.llama_decode(context.pointer, batch):
            raise RuntimeError("llama_decode failed")
        lib.llama_synchronize(context.pointer)
        done = time.perf_counter()
        if at >= 0:
            times.append(done - began)
        if job["other"] == "front":
            os.write(write_end, time.monotonic_ns().to_bytes(8, "little"))
        while time.perf_counter() < done + GAP_S:
            pass
        at += 1
    wall = time.perf_counter() - began_all
    own = time.process_time() - own
    cpu = time.process_time() + cpu_of(other) - cpu
    others = (busy_seconds() - machine - cpu) / (wall * (os.cpu_count() or 1))
    os.close(write_end)
    found = {
        "mean_ms": statistics.fmean(times) * 1e3,
        "p05_ms": sorted(times)[len(times) * 5 // 100] * 1e3,  # nothing held these up
        "p50_ms": statistics.median(times) * 1e3,
        "p95_ms": sorted(times)[len(times) * 95 // 100] * 1e3,
        "cpu_ms": own / len(times) * 1e3,
        "others": max(others, 0.0),
    }
    if other is not None:
        if job["other"] == "timer":
            other.kill()
        said = other.communicate()[0].split()
        if job["other"] == "front":
            found["front_p50_ms"], found["front_p95_ms"] = map(float, said)
    return found


def busy_seconds() -> float:
    """Time that the machine's processors have not been idle (Linux; else 0)."""
    if not os.path.exists("/proc/stat"):
        return 0.0
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def cpu_of(process: subprocess.Popen[str] | None) -> float:
    """Processor time of a child so far (Linux; else 0)."""
    if process is None or not os.path.exists("/proc/stat"):
        return 0.0
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def attach_pool(library: Any, context: Any, n_threads: int, poll: int) -> None:
    """Give ``context`` a pool of ggml's own threads that polls at level ``poll``."""
    base = next(Path(library.build.path).glob("lib/libggml-base.*"))
    cpu = next(Path(library.build.path).glob("lib/libggml-cpu.*"))
    params = PoolParams()
    ctypes.CDLL(str(base)).ggml_threadpool_params_init(ctypes.byref(params), n_threads)
    params.poll = poll
    new = ctypes.CDLL(str(cpu)).ggml_threadpool_new
    new.restype = ctypes.c_void_p
    pool = library.ffi.cast("ggml_threadpool_t", new(ctypes.byref(params)))
    library.lib.llama_attach_threadpool(context.pointer, pool, pool)


def run(job: dict[str, Any], spin: str, cache: str) -> dict[str, float]:
    """``decode`` in a process with these settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    if spin != "default" and job["poll"] is None:
        environment["GOMP_SPINCOUNT"] = spin
    if cache:
        environment["UMA_CACHE_DIR"] = cache
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.thread_waits", "--child", json.dumps(job)],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def main() -> int:
    options = parser().parse_args()
    if options.child:
        print(json.dumps(decode(json.loads(options.child))))
        return 0
    from benchmarks.models import model_path

    polls = options.polls if options.pool_cache else []
    kinds = [(f"libgomp {s}", s, None, "") for s in options.spins]
    kinds += [(f"pool {p}", "default", p, options.pool_cache) for p in polls]
    cases = [(name, threads, other) for name in options.models for threads in options.threads
             for other in options.others]  # fmt: skip
    runs: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        for name, threads, other in cases:
            order = kinds if turn % 2 == 0 else kinds[::-1]
            for kind, spin, poll, cache in order:
                job = {"model": str(model_path(name)), "threads": threads, "other": other,
                       "poll": poll, "seconds": options.seconds}  # fmt: skip
                found = run(job, spin, cache)
                for _ in range(options.tries - 1):
                    if found["others"] <= options.most_others:
                        break
                    found = min(found, run(job, spin, cache), key=lambda r: r["others"])
                runs.append({"model": name, "threads": threads, "other": other, "kind": kind,
                             **found})  # fmt: skip
            if options.out:
                Path(options.out).write_text(json.dumps(runs, indent=1) + "\n")
    for case in cases:
        show(runs, *case, [k[0] for k in kinds])
    return 0


def show(runs: list[dict[str, Any]], name: str, threads: int, other: str, kinds: list[str]) -> None:
    """Medians over the rounds, and the least and the largest mean."""
    print(f"\n{name}, {threads} threads, {other}: milliseconds a token")
    print(f"{'':16}{'mean':>8}{'(range)':>18}{'p05':>8}{'p50':>8}{'p95':>8}{'cpu':>8}{'others':>8}"
          f"{'front p50':>11}{'p95':>8}")  # fmt: skip
    for kind in kinds:
        mine = [r for r in runs if (r["model"], r["threads"], r["other"], r["kind"])
                == (name, threads, other, kind)]  # fmt: skip

        def middle(figure: str, rows: list[dict[str, Any]] = mine) -> str:
            if figure not in rows[0]:
                return ""
            return f"{statistics.median(r[figure] for r in rows):.2f}"

        means = [r["mean_ms"] for r in mine]
        spread = f"({min(means):.2f} to {max(means):.2f})"
        print(f"{kind:16}{middle('mean_ms'):>8}{spread:>18}{middle('p05_ms'):>8}"
              f"{middle('p50_ms'):>8}"
              f"{middle('p95_ms'):>8}{middle('cpu_ms'):>8}{middle('others'):>8}{middle('front_p50_ms'):>11}"
              f"{middle('front_p95_ms'):>8}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
