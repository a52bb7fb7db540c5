"""A chat beside a big paste: time to its 5th token, and its longest pause in the first 3 seconds.

    python -m benchmarks.paste
    python -m benchmarks.paste --paste-words 2000

Somebody pastes a long text; a moment later a chat asks something short.  Alone, beside a paste in
the background lane, and beside an interactive one (llama-server knows no lanes and gets both).  The
wait for the first token is a pause too.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

import trio

from benchmarks.load import Crowd, ask
from benchmarks.setting import Pair, Recorder, Series, pair, parser, setting, show
from benchmarks.sides import Side, quiet_death, settle
from benchmarks.turns import say

KINDS = ("alone", "background", "interactive")
FIRST_S = 3.0
CHAT_WORDS, FIFTH = 16, 5


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "paste")
    out.add_argument("--paste-words", type=int, default=900)
    out.add_argument("--lead-ms", type=float, default=10.0, help="from the paste to the chat")
    return out


def longest_pause_ms(sent_s: float, times_s: list[float], end_s: float) -> float:
    """The longest time without a token from the request to ``end_s``, in ms."""
    marks = [sent_s, *(t for t in times_s if t < end_s), end_s]
    return 1e3 * max(b - a for a, b in zip(marks, marks[1:], strict=False))


async def one_chat(
    side: Side, bench: Pair, options: argparse.Namespace, kind: str, run: int, series: Series,
    keep: Recorder,
) -> None:  # fmt: skip
    found = bench.setting
    await settle(side)
    crowd = Crowd(side, found.documents)
    async with trio.open_nursery() as nursery:
        began = time.perf_counter()
        if kind != "alone":
            paste = crowd.new("paste", kind == "interactive")
            words = found.words(options.paste_words)
            nursery.start_soon(ask, side, paste, found.documents.words(words), 64)
            await trio.sleep(options.lead_ms / 1e3)
        chat = crowd.new("chat", True)
        nursery.start_soon(ask, side, chat, found.documents.words(CHAT_WORDS), found.stream_tokens)
        await trio.sleep(FIRST_S)
        with trio.move_on_after(30.0):
            while len(chat.times_s) < FIFTH:
                await trio.sleep(0.01)
        phase = crowd.phase(f"paste-{kind}", began)
        nursery.cancel_scope.cancel()
    await settle(side)  # llama-server goes on with a long prompt although nobody waits for it
    if run < 0:
        return
    keep.keep(phase, side.name, run)
    end = chat.sent_s + FIRST_S
    if chat.end_s is not None and chat.end_s < end:
        end = chat.end_s
    fifth = 1e3 * (chat.times_s[FIFTH - 1] - chat.sent_s) if len(chat.times_s) >= FIFTH else None
    series.add(
        side.name,
        **{
            f"fifth_token_ms_{kind}": fifth,
            f"pause_ms_{kind}": longest_pause_ms(chat.sent_s, chat.times_s, end),
        },
    )


def measure(bench: Pair, options: argparse.Namespace, keep: Recorder) -> dict[str, Any]:
    found, series = bench.setting, Series.empty()
    for run in range(-1, found.rounds):
        say(f"paste: {'warm-up' if run < 0 else f'round {run + 1} of {found.rounds}'}")
        for kind in KINDS if run >= 0 else KINDS[1:2]:
            for side in bench.in_turns(run):
                call = functools.partial(one_chat, side, bench, options, kind, run, series, keep)
                trio.run(call)
    return {
        **found.describe(),
        "benchmark": "paste",
        "paste_words": found.words(options.paste_words),
        "paste_tokens": round(found.words(options.paste_words) * found.tokens_per_word),
        "figures": series.spreads(),
    }


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    found = setting(options)
    keep = Recorder(found, found.rounds - 1)
    with pair(found, 4) as bench:
        result = measure(bench, options, keep)
    show(result)
    print("written to", keep.save(result, not options.no_plot).name)


if __name__ == "__main__":
    sys.exit(main())
