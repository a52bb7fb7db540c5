"""Embeddings a second of many short texts, ours and llama-server's, over HTTP.

Each side gets the same texts in requests of one text, one after the other, and in one request.  The
sides are asked in turns, after a round that is not counted.  A number is the median of the rounds.

    python -m benchmarks.embeddings MODEL.gguf --texts 64 512
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import machine
from benchmarks.peers import LlamaServer
from umaserve.system.processor import logical_cores

WORDS = (Path(__file__).parents[1] / "docs" / "HTTP.md").read_text("utf-8").split()
LEAST, MOST = 5, 20  # words of a text
ONE_BY_ONE = 64  # texts of a round of requests with one text each


def texts_of(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.sample(WORDS, chosen.randint(LEAST, MOST))) for _ in range(count)]


class Side:
    """Asks a server on a port, with a connection for each request: llama-server closes them."""

    def __init__(self, port: int) -> None:
        self._port = port

    def embed(self, texts: list[str]) -> int:
        body = json.dumps({"input": texts, "encoding_format": "base64"})
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        data = json.loads(answer.read())
        connection.close()
        if answer.status != 200:
            raise RuntimeError(str(data)[:400])
        return len(data["data"])

    def rate(self, texts: list[str], at_once: bool) -> float:
        """Texts a second."""
        began_s = time.perf_counter()
        if at_once:
            found = self.embed(texts)
        else:
            found = sum(self.embed([text]) for text in texts)
        assert found == len(texts)
        return found / (time.perf_counter() - began_s)


def measure(sides: dict[str, Side], counts: list[int], rounds: int) -> None:
    for count, at_once in [(ONE_BY_ONE, False), *((count, True) for count in counts)]:
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            texts = texts_of(count, number)
            for name, side in sides.items():
                rate = side.rate(texts, at_once)
                if number:
                    rates[name].append(rate)
        how = f"{count} in one request" if at_once else f"{count}, one a request"
        told = ", ".join(
            f"{name} {statistics.median(each):.0f} ({min(each):.0f} to {max(each):.0f})"
            for name, each in rates.items()
        )
        print(f"{how}: {told} texts/s", flush=True)


def main() -> None:
    out = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    out.add_argument("model")
    out.add_argument("--texts", type=int, nargs="+", default=[64, 512])
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--threads", type=int, default=0, help="0: one a core")
    out.add_argument("--parallel", type=int, default=4, help="of llama-server")
    out.add_argument("--without-peer", action="store_true", help="without llama-server")
    arguments = out.parse_args()
    from tests.support.http_client import port_of
    from tests.support.real_daemon import real

    print(json.dumps(machine.describe()))
    threads = arguments.threads or logical_cores()
    close: Callable[[], None] = lambda: None  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        settings = {"model": arguments.model, "n_ctx": 0, "threads": threads}
        with real(Path(folder), http="127.0.0.1:0", **settings) as daemon:
            sides = {"ours": Side(port_of(daemon))}
            if not arguments.without_peer:
                extra = ("--embeddings", "-ub", "2048", "-b", "2048")
                peer = LlamaServer(
                    arguments.model, n_ctx=512 * arguments.parallel,
                    parallel=arguments.parallel, threads=threads, extra=extra,
                )  # fmt: skip
                sides["llama-server"] = Side(peer.port)
                close = lambda: peer.__exit__()  # noqa: E731
            try:
                measure(sides, arguments.texts, arguments.rounds)
            finally:
                close()


if __name__ == "__main__":
    main()
