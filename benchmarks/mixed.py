"""Mixed load: three interactive streams and one that works through long documents.

    python -m benchmarks.mixed
    python -m benchmarks.mixed --model demo --document-words 600

The long job sends a unique long prompt in the background lane, takes an answer and sends the next.
Figures: the 95th percentile of the three with it over that of the same three without; the first
token of an interactive request that meets a long prompt, sent just before with nothing else
running, over its first token alone; and the same four clients against four llama-servers, one each
with the model for itself, as if each app brought its own: generated tokens per second of all four,
and memory.  RSS adds what every process has in memory, so pages that processes share (weights
mapped from the same file) count for each of them; PSS divides them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from typing import Any

import trio

from benchmarks.load import Crowd, ask, window
from benchmarks.machine import ratio, spread
from benchmarks.names import OURS
from benchmarks.setting import LARGE, Pair, Recorder, Series, Setting, pair, parser, setting, show
from benchmarks.sides import ServerSetting, Side, Theirs, memory, quiet_death, settle, theirs
from benchmarks.sweep import start_all
from benchmarks.timeline import Phase, gaps_ms, percentile, token_rate
from benchmarks.turns import say

SEPARATE = "separate"
# without the long job for as long as with it, from the same beginning: ticks grow with contexts
MIXED_S, WARM_S = 8.0, 1.0
WORDS, STREAMS = 16, 3


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "mixed")
    out.add_argument("--document-words", type=int, default=900)
    out.add_argument("--document-tokens", type=int, default=128, help="of the long job's answers")
    out.add_argument("--meetings", type=int, default=4, help="first tokens a round")
    out.add_argument("--lead-ms", type=float, default=10.0, help="from the prompt to the request")
    out.add_argument(
        "--one-at-a-time", action="store_true",
        help="start the four only when the other two have ended (always with large models)",
    )  # fmt: skip
    out.add_argument("--no-separate", action="store_true")
    return out


async def one_side(
    side: Side, found: Setting, options: argparse.Namespace, run: int, series: Series,
    keep: Recorder,
) -> None:  # fmt: skip
    names = [f"stream{i}" for i in range(STREAMS)]
    n = min(found.stream_tokens, (found.n_ctx // 2) // STREAMS)
    long_words = found.words(options.document_words)
    await settle(side)
    crowd = Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        await start_all(crowd, nursery, names, words=WORDS, n=n, interactive=True)
        await trio.sleep(found.seconds(WARM_S))
        three = await window(crowd, "three", found.seconds(MIXED_S))
        nursery.cancel_scope.cancel()
    await settle(side)
    crowd = Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        await start_all(crowd, nursery, names, words=WORDS, n=n, interactive=True)
        await trio.sleep(found.seconds(WARM_S))
        nursery.start_soon(
            crowd.keep_asking, "document", long_words, options.document_tokens, False
        )
        before = await side.prompt_tokens()
        mixed = await window(crowd, "mixed", found.seconds(MIXED_S))
        now = await side.prompt_tokens()
        used = memory([side.pid])
        nursery.cancel_scope.cancel()
    if run < 0:
        return
    for phase in (three, mixed):
        keep.keep(phase, side.name, run)
    quiet, busy = percentile(gaps_ms(three), 95), percentile(gaps_ms(mixed), 95)
    counted = None if now is None or before is None else (now - before) / found.seconds(MIXED_S)
    series.add(
        side.name, three_p95_ms=quiet, mixed_p95_ms=busy, p95_ratio=busy / quiet,
        longest_ms=max(gaps_ms(mixed), default=None), three_tokens_per_s=token_rate(three),
        mixed_tokens_per_s=token_rate(mixed), document_tokens_per_s=token_rate(mixed, False),
        prompt_tokens_per_s=counted, rss=used.rss, pss=used.pss,
    )  # fmt: skip
    firsts: dict[bool, list[float]] = {False: [], True: []}
    for meets in [False, True] * options.meetings:
        took = await first_token_ms(side, found, options, meets)
        firsts[meets].append(took)
    await settle(side)  # llama-server goes on with a long prompt although nobody waits for it
    alone, meeting = spread(firsts[False])["median"], spread(firsts[True])["median"]
    series.add(
        side.name, first_alone_ms=alone, first_meeting_ms=meeting, first_ratio=meeting / alone
    )


async def first_token_ms(
    side: Side, found: Setting, options: argparse.Namespace, meets: bool
) -> float:
    """Of an interactive request; where it ``meets`` a long prompt, that was sent just before."""
    await settle(side)
    crowd = Crowd(side, found.documents)
    session = crowd.new("short", True)
    async with trio.open_nursery() as nursery:
        if meets:
            document = found.documents.words(found.words(options.document_words))
            nursery.start_soon(ask, side, crowd.new("long", False), document, 1)
            await trio.sleep(options.lead_ms / 1e3)
        await ask(side, session, found.documents.words(WORDS), 1)
        nursery.cancel_scope.cancel()
    if session.first_token_ms is not None:
        return session.first_token_ms
    # a part of a character: its text never came, and the answer ended with it
    assert session.end_s is not None
    return 1e3 * (session.end_s - session.sent_s)


async def apart(
    servers: list[Theirs], found: Setting, options: argparse.Namespace, run: int, series: Series,
    keep: Recorder,
) -> None:  # fmt: skip
    """The four clients, a server each."""
    crowds = [Crowd(server, found.documents) for server in servers]
    long_words = found.words(options.document_words)
    for server in servers:
        await settle(server)
    async with trio.open_nursery() as nursery:
        for i, crowd in enumerate(crowds[:STREAMS]):
            await start_all(
                crowd, nursery, [f"stream{i}"], words=WORDS, n=found.stream_tokens, interactive=True
            )
        nursery.start_soon(
            crowds[-1].keep_asking, "document", long_words, options.document_tokens, False
        )
        began = time.perf_counter()
        await trio.sleep(found.seconds(MIXED_S))
        ended = time.perf_counter()
        used = memory([server.pid for server in servers])
        nursery.cancel_scope.cancel()
    for server in servers:
        await settle(server)
    if run < 0:
        return
    sessions = [s for crowd in crowds for s in crowd.phase("", began, ended).sessions]
    phase = Phase("mixed", began, ended, sessions)
    keep.keep(phase, SEPARATE, run)
    series.add(
        SEPARATE, mixed_tokens_per_s=token_rate(phase), mixed_p95_ms=percentile(gaps_ms(phase), 95),
        document_tokens_per_s=token_rate(phase, False), rss=used.rss, pss=used.pss,
        longest_ms=max(gaps_ms(phase), default=None),
    )  # fmt: skip


def one_at_a_time(found: Setting, options: argparse.Namespace) -> bool:
    return options.one_at_a_time or found.model_bytes > LARGE


@contextlib.contextmanager
def four(found: Setting):  # type: ignore[no-untyped-def]
    """One llama-server for each of the four clients."""
    sizes = ServerSetting(1, max(4096, found.n_ctx // 4), found.threads)
    with theirs(found.model, sizes, STREAMS + 1) as servers:
        yield servers


def measure(
    stack: contextlib.ExitStack, bench: Pair, options: argparse.Namespace, keep: Recorder
) -> dict[str, Any]:
    """``stack`` holds the two servers of ``bench``: it is closed before the four are started,
    where they do not all fit."""
    found, series = bench.setting, Series.empty()
    later = one_at_a_time(found, options)
    with contextlib.ExitStack() as more:
        servers: list[Theirs] = []
        if not (later or options.no_separate):
            servers = more.enter_context(four(found))
        for run in range(found.rounds):
            say(f"mixed: round {run + 1} of {found.rounds}")
            for side in bench.in_turns(run):
                trio.run(functools.partial(one_side, side, found, options, run, series, keep))
            if servers:
                trio.run(functools.partial(apart, servers, found, options, run, series, keep))
    if later and not options.no_separate:
        stack.close()
        say("mixed: four llama-servers, a client each")
        with four(found) as servers:
            for run in range(found.rounds):
                trio.run(functools.partial(apart, servers, found, options, run, series, keep))
    result: dict[str, Any] = {
        **found.describe(),
        "benchmark": "mixed",
        "document_words": found.words(options.document_words),
        "document_tokens": round(found.words(options.document_words) * found.tokens_per_word),
        "separate_in_turns": not later,
        "figures": series.spreads(),
    }
    for name in ("mixed_tokens_per_s", "rss", "pss"):
        sides = series.values.get(name, {})
        a, b = sides.get(OURS, []), sides.get(SEPARATE, [])
        if b and len(a) == len(b) and all(b):
            result[f"{name}_over_separate"] = ratio(a, b)
    return result


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    keep = Recorder(found, found.rounds - 1)
    with contextlib.ExitStack() as stack:
        result = measure(stack, stack.enter_context(pair(found, 5)), options, keep)
    show(result)
    print("written to", keep.save(result, not options.no_plot).name)


if __name__ == "__main__":
    sys.exit(main())
