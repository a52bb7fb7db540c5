"""The price of a reader: what each costs the other, a part of it at a time.

    python -m benchmarks.price
    python -m benchmarks.price --models qwen3-30b-a3b --parts prompt,storm --words 4000
    python -m benchmarks.price --words-scale 0.33 --streams 1,8

Our daemon and llama-server, of one build, are asked over HTTP, in turns.  Parts:

- ``prompt``: one chat streams, and another program sends one long prompt at a time.
- ``tail``: a prompt of 16 words beside two streams.
- ``storm``: one stream beside three programs that send prompts labelled as background.
- ``storm-other``, ``storm-own``: the same without labels, from other programs and from its own.
- ``editor``: an editor alone.
- ``streams``: so many streams at once, with the first token, and llama-batched-bench's rate.

``over_alone`` is the first token's time over its time on an idle server.  ``ten`` is the largest
mean of any ten consecutive gaps.  Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import trio

from benchmarks import machine, streams
from benchmarks.desk import add, add_common, measure_all, ratios, shown
from benchmarks.names import OURS, THEIRS
from benchmarks.peers import batched_bench
from benchmarks.price_parts import CHAT, Values, editor_part, prompt_part, storm_part, tail_part
from benchmarks.prompts import N_TOKENS, prompts
from benchmarks.setting import Series
from benchmarks.sides import SAMPLING, quiet_death
from benchmarks.turns import say
from benchmarks.web import Caller, Model, Server, servers, settle, warm_up
from umaserve.system.processor import logical_cores

LIBRARY = "llama-batched-bench"
PARALLEL, ANSWER_TOKENS = 8, 160
SHORT_PAUSE_S = 0.2


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(out)
    out.add_argument("--parts", default="prompt,tail,storm,editor,streams")
    out.add_argument("--words", default="4000,8000", help="of the long prompts")
    out.add_argument("--repeats", type=int, default=2, help="long prompts of each length a round")
    out.add_argument("--pause", type=float, default=3.0, help="seconds between long prompts")
    out.add_argument("--tail-repeats", type=int, default=10)
    out.add_argument("--storm-words", type=int, default=900)
    out.add_argument("--storm-clients", type=int, default=3)
    out.add_argument("--streams", default="1,8,32")
    out.add_argument("--seconds", type=float, default=5.0, help="of each stretch that is watched")
    return out


class Part(NamedTuple):
    """``name`` begins the names of its figures; ``same`` is the User-Agent that all say."""

    name: str
    run: Callable[[Caller], Awaitable[Values]]
    same: str = ""


def parts_of(options: argparse.Namespace) -> list[Part]:
    """The chosen parts, but for the streams."""
    lengths = [int(words) for words in options.words.split(",")]
    known = {
        "prompt": [
            Part(f"prompt{words}", lambda c, words=words: prompt_part(c, options, words))  # type: ignore[misc]
            for words in lengths
        ],
        "tail": [Part("tail", lambda c: tail_part(c, options))],
        "storm": [Part("storm", lambda c: storm_part(c, options, True))],
        "storm-other": [Part("storm-other", lambda c: storm_part(c, options, False))],
        "storm-own": [Part("storm-own", lambda c: storm_part(c, options, False), CHAT)],
        "editor": [Part("editor", lambda c: editor_part(c, options))],
        "streams": [],
    }
    chosen = options.parts.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"--parts: {unknown[0]} is not one of {', '.join(known)}")
    return [part for name in chosen for part in known[name]]


def measure(model: Model, options: argparse.Namespace) -> dict[str, Any]:
    series, parts = Series.empty(), parts_of(options)
    if parts:
        with servers(model, PARALLEL, options) as found:
            for server in found:
                warm_up(server, options.seed)
            for turn in range(options.rounds):
                for number, part in enumerate(parts):
                    say(f"{model.name}: {part.name}, round {turn + 1} of {options.rounds}")
                    for server in found if turn % 2 == 0 else found[::-1]:
                        seed = options.seed * 10_000 + turn * 100 + number
                        caller = Caller(server, seed, options.words_scale, part.same)
                        add(series, server.name, part.name, trio.run(part.run, caller))
                        trio.run(settle, server)
    if "streams" in options.parts.split(","):
        measure_streams(model, options, series)
    return {
        "model": f"{model.name} {options.quant}",
        "n_ctx": model.n_ctx,
        "figures": series.spreads(),
        "ratios": ratios(series),
        "over_library": {
            name: statistics.median(sides[OURS]) / statistics.median(sides[LIBRARY])
            for name, sides in series.values.items()
            if LIBRARY in sides
        },
        "rounds": series.values,
    }


def measure_streams(model: Model, options: argparse.Namespace, series: Series) -> None:
    """Tokens per second of so many streams at once, from the request to the last token."""
    counts = [int(count) for count in options.streams.split(",")]
    with servers(model, max(counts), options) as found:
        for turn in range(-1, options.rounds):
            say(f"{model.name}: streams, round {turn + 1} of {options.rounds}")
            for server in found if turn % 2 == 0 else found[::-1]:
                for count in counts:
                    rate = stream_rate(server, count)
                    if turn >= 0:
                        series.add(server.name, **{f"streams{count}.tokens_per_s": rate})
    if not (machine.build().bin_dir / LIBRARY).exists():
        return
    n_ctx = -(-max(counts) * (N_TOKENS + ANSWER_TOKENS) // 256) * 256
    rows = batched_bench(
        model.path, counts=[counts[0], *counts],  # the first row pays for what is new
        prompt=N_TOKENS, n=ANSWER_TOKENS, n_ctx=n_ctx,
        threads=logical_cores(),
    )  # fmt: skip
    for count, row in rows.items():
        rate = count * ANSWER_TOKENS / row["t"]
        series.add(LIBRARY, **{f"streams{count}.tokens_per_s": rate})


def stream_rate(server: Server, count: int) -> float:
    body = {
        "n_predict": ANSWER_TOKENS, "stream": True, "ignore_eos": True, "cache_prompt": False,
        **SAMPLING,
    }  # fmt: skip
    requests = [
        streams.http_post("/completion", {"prompt": prompt, "seed": i, **body})
        for i, prompt in enumerate(prompts(count))
    ]
    done = streams.run_streams(
        lambda: streams.tcp(server.port), requests, streams.HTTP, ANSWER_TOKENS
    )
    time.sleep(SHORT_PAUSE_S)
    return done.tokens_per_s


def show(result: dict[str, Any]) -> None:
    """Print a line for each figure of both servers, and ours over llama-server's."""
    print(f"\n{result['model']}, {result['n_ctx']} cells")
    print(f"{'':28}{'ours':>10}{'theirs':>10}{'ratio':>8}{'over library':>14}")
    for name in result["figures"]:
        cells = [shown(result["figures"], name, side) for side in (OURS, THEIRS)]
        last = [result[key].get(name) for key in ("ratios", "over_library")]
        told = ["" if value is None else f"{value:.2f}" for value in last]
        print(f"{name:28}{cells[0]:>10}{cells[1]:>10}{told[0]:>8}{told[1]:>14}")


def main() -> None:
    quiet_death()
    options = parser().parse_args()
    parts_of(options)
    measure_all(options, measure, show)


if __name__ == "__main__":
    main()
