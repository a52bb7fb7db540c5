"""llama.cpp's own programs, of our build and on our model: what we are measured against."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

from benchmarks import machine, processes, streams


class LlamaServer:
    """``llama-server`` on a free port of this machine."""

    def __init__(self, model: str, *, parallel: int, n_ctx: int, threads: int, extra: tuple = ()):
        spawned = time.perf_counter()
        self._spawn(
            model, "-c", str(n_ctx), "-np", str(parallel), "-t", str(threads), "-kvu",
            "--cache-ram", "0", "-ngl", "999", *extra,
        )  # fmt: skip
        self.wait_ready()
        self.start_s = time.perf_counter() - spawned

    def _spawn(self, model: str, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.flags = list(flags)
        command = [str(machine.peer("llama-server")), "-m", model, *flags]
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def wait_ready(self) -> None:
        """Return when it answers; raise RuntimeError with its last words when it ended."""
        while not self._healthy():
            if self.process.poll() is not None:
                self._log.seek(0)
                raise RuntimeError(self._log.read()[-2000:])
            time.sleep(0.02)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as r:
                return r.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def cpu_s(self) -> float:
        return processes.cpu_s(self.process.pid)

    def run(self, prompts: list[str], n: int, sampling: dict[str, Any]) -> streams.Run:
        """Stream ``n`` tokens for every prompt at once."""
        requests = [
            streams.http_post(
                "/completion",
                {
                    "prompt": prompt, "n_predict": n, "stream": True, "cache_prompt": False,
                    "ignore_eos": True, "seed": i, **sampling,
                },
            )
            for i, prompt in enumerate(prompts)
        ]  # fmt: skip
        return streams.run_streams(lambda: streams.tcp(self.port), requests, streams.HTTP, n)


def batched_bench(
    model: str, *, counts: list[int], prompt: int, n: int, n_ctx: int, threads: int
) -> dict[int, dict[str, float]]:
    """``llama-batched-bench``: what the library does by itself, greedily, by number of streams."""
    done = subprocess.run(
        [
            str(machine.peer("llama-batched-bench")), "-m", model, "-c", str(n_ctx),
            "-t", str(threads), "-npp", str(prompt), "-ntg", str(n), "-kvu", "-ngl", "999",
            "-npl", ",".join(map(str, counts)), "--output-format", "jsonl",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(rows) != len(counts):
        raise RuntimeError(done.stderr[-2000:] or done.stdout[-2000:])
    return {row["pl"]: row for row in rows}
