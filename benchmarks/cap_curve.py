"""Throughput against the latency cap: what the guard costs, as a curve.

    python -m benchmarks.cap_curve
    python -m benchmarks.cap_curve --caps 1.1,1.5,off

A daemon is started for each cap (``off`` is the largest that there is) and given one interactive
stream, 2 background decoders and 2 clients that send long prompts; llama-server gets the same once.
The interactive 95th percentile over that of the stream alone, all generated tokens per second, and
prompt tokens per second.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import trio

from benchmarks.load import Crowd, window
from benchmarks.setting import Recorder, Setting, parser, setting
from benchmarks.sides import ServerSetting, Side, ours, quiet_death, settle, theirs
from benchmarks.storm import watch
from benchmarks.sweep import start_all
from benchmarks.timeline import gaps_ms, percentile, token_rate
from benchmarks.turns import say

OFF = 100.0  # the largest latency cap that the daemon takes
# alone for as long as beside the load, from the same beginning: ticks grow with the context
LOAD_S, WARM_S = 6.0, 2.0
WORDS, DECODERS, CLIENTS = 16, 2, 2


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "cap_curve")
    out.add_argument("--caps", default="1.1,1.2,1.5,2,3,off")
    out.add_argument("--prompt-words", type=int, default=300)
    return out


async def one_cap(
    side: Side, found: Setting, cap: str, options: argparse.Namespace, keep: Recorder
) -> dict[str, Any]:
    """Figures of one daemon (or of llama-server)."""
    words = found.words(options.prompt_words)
    n = min(found.stream_tokens, found.n_ctx // 6)
    crowd = Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        await start_all(crowd, nursery, ["stream"], words=WORDS, n=n, interactive=True)
        await trio.sleep(found.seconds(WARM_S))
        alone = await window(crowd, f"{cap}-alone", found.seconds(LOAD_S))
        nursery.cancel_scope.cancel()
    await settle(side)
    crowd = Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        await start_all(crowd, nursery, ["stream"], words=WORDS, n=n, interactive=True)
        for i in range(DECODERS):
            nursery.start_soon(crowd.keep_asking, f"decoder{i}", WORDS, n, False)
        for i in range(CLIENTS):
            nursery.start_soon(crowd.keep_asking, f"storm{i}", words, 1, False)
        await trio.sleep(found.seconds(WARM_S))
        load, rate = await watch(side, crowd, f"{cap}-load", found.seconds(LOAD_S))
        nursery.cancel_scope.cancel()
    await settle(side)
    for phase in (alone, load):
        keep.keep(phase, side.name, 0)
    gaps, quiet = gaps_ms(load), gaps_ms(alone)
    return {
        "side": side.name,
        "cap": cap,
        "alone_p95_ms": percentile(quiet, 95),
        "p95_ms": percentile(gaps, 95),
        "p95_ratio": percentile(gaps, 95) / percentile(quiet, 95),
        "longest_ms": max(gaps, default=None),
        "interactive_tokens_per_s": token_rate(load, True),
        "tokens_per_s": token_rate(load),
        "prompt_rate": rate,
    }


def measure(found: Setting, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    sizes = ServerSetting(DECODERS + CLIENTS + 2, found.n_ctx, found.threads)
    rows = []
    for cap in options.caps.split(","):
        say(f"cap curve: {cap}")
        value = OFF if cap == "off" else float(cap)
        flags = (*found.options.flags.split(), "--latency-cap", f"{value:g}")
        with ours(found.model, sizes, *flags) as side:
            rows.append(trio.run(one_cap, side, found, cap, options, keep))
    say("cap curve: llama-server")
    with theirs(found.model, sizes) as servers:
        rows.append(trio.run(one_cap, servers[0], found, "none", options, keep))
    return {
        **found.describe(),
        "benchmark": "cap_curve",
        "decoders": DECODERS,
        "clients": CLIENTS,
        "prompt_words": found.words(options.prompt_words),
        "rows": rows,
    }


def show_rows(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        rate = "-" if row["prompt_rate"] is None else f"{row['prompt_rate']:.1f}"
        print(
            f"{row['side']:13} cap {row['cap']:5} p95 x {row['p95_ratio']:.2f}, "
            f"{row['tokens_per_s']:.1f} tokens/s, {rate} prompt tokens/s"
        )


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    keep = Recorder(found, 0)
    result = measure(found, options, keep)
    show_rows(result)
    print("written to", keep.save(result, not options.no_plot).name)


if __name__ == "__main__":
    sys.exit(main())
