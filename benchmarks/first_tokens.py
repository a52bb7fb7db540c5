"""First tokens: of a lone prompt by its length, and of a short one beside streams or a document.

    python -m benchmarks.first_tokens
    python -m benchmarks.first_tokens --name cuda-0.5b --write
    python -m benchmarks.first_tokens --parts lone --lengths 300 --pairs 3

Our daemon and llama-server get the same prompts, which nobody has seen before, in turns.  Lone
prompts have a number of tokens.  The short prompt has 16 words.  It comes alone, while two streams
decode, and a moment after a document; the figure is its time over its time alone, pair by pair.
Requests name no lane, unless ``--labels`` is given: the document is in the background lane then.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import trio

from benchmarks.load import Crowd, ask
from benchmarks.setting import Pair, Series, pair, parser, setting, show
from benchmarks.sides import Ours, Side, quiet_death, settle
from benchmarks.timeline import Session
from benchmarks.turns import say
from umaserve.bench.prompts import Prompts as Documents

SHORT_WORDS, STREAMS = 16, 2
LENGTHS, LENGTHS_CPU = "16,100,300,1000,4000", "16,100,300,1000"
DOCUMENT_WORDS, DOCUMENT_WORDS_CPU = 6000, 900
IDLE_S = 8.0  # after the start: what a daemon measures while nobody asks
PAUSE_S = 0.05  # before each request
PARTS = ("lone", "streams", "document")


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "first_tokens")
    out.add_argument("--pairs", type=int, default=9, help="each side once a pair, in turns")
    out.add_argument("--lengths", default="", help=f"tokens; {LENGTHS}, or {LENGTHS_CPU} on a CPU")
    out.add_argument("--parts", default=",".join(PARTS), help="which parts to measure")
    out.add_argument(
        "--document-words", type=int, default=0,
        help=f"{DOCUMENT_WORDS}, or {DOCUMENT_WORDS_CPU} on a CPU, if not given",
    )  # fmt: skip
    out.add_argument("--lead-ms", type=float, default=100.0, help="from the document to the prompt")
    out.add_argument("--labels", action="store_true", help="name the lanes of all requests")
    out.add_argument("--name", dest="label", help="the same as --label")
    out.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    return out


class Prompts:
    """Prompts of a number of tokens, as our daemon counts them; all of one length are alike."""

    def __init__(self, side: Ours, documents: Documents) -> None:
        self._side, self._documents = side, documents
        self._words: dict[int, int] = {}

    async def of(self, tokens: int) -> str:
        """A new one of about ``tokens`` tokens, never more."""
        words = self._words.get(tokens, tokens)
        while True:
            text = self._documents.words(words)
            found = await self._side.count_tokens(text)
            if found <= tokens or words == 1:
                self._words[tokens] = words
                return text
            words = min(words - 1, words * tokens // found + 1)


def first_ms(session: Session) -> float:
    """Its time to the first token; to the end, where the token was a part of a character."""
    if session.first_token_ms is not None:
        return session.first_token_ms
    assert session.end_s is not None
    return 1e3 * (session.end_s - session.sent_s)


async def alone(side: Side, bench: Pair, prompt: str) -> float:
    """ms to the first token of a prompt with nobody else about."""
    await settle(side)
    await trio.sleep(PAUSE_S)
    session = Crowd(side, bench.setting.documents).new("short", True)
    await ask(side, session, prompt, 1)
    return first_ms(session)


async def beside_streams(side: Side, bench: Pair, prompt: str) -> float:
    """The same while two streams decode."""
    await settle(side)
    crowd = Crowd(side, bench.setting.documents)
    async with trio.open_nursery() as nursery:
        for i in range(STREAMS):
            client = f"stream{i}"
            await nursery.start(
                crowd.keep_asking, client, SHORT_WORDS, bench.setting.stream_tokens, True
            )
        await trio.sleep(1.0)  # both streams know their pace
        session = crowd.new("short", True)
        await ask(side, session, prompt, 1)
        nursery.cancel_scope.cancel()
    return first_ms(session)


async def beside_document(
    side: Side, bench: Pair, prompt: str, document: str, lead_s: float
) -> float:
    """The same a moment after a document."""
    await settle(side)
    await trio.sleep(PAUSE_S)
    crowd = Crowd(side, bench.setting.documents)
    session = crowd.new("short", True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, side, crowd.new("document", False), document, 1)
        await trio.sleep(lead_s)
        await ask(side, session, prompt, 1)
        nursery.cancel_scope.cancel()
    return first_ms(session)


def measure_lone(bench: Pair, options: argparse.Namespace, series: Series) -> list[int]:
    """Prompts of each length that fits, alone; returns the lengths."""
    found = bench.setting
    default = LENGTHS if found.accelerator else LENGTHS_CPU
    asked = [int(n) for n in (options.lengths or default).split(",")]
    lengths = [n for n in asked if n < found.n_ctx]
    prompts = Prompts(bench.ours, found.documents)
    for tokens in lengths:
        for run in range(-1, found.rounds):
            say(f"{tokens} tokens alone: {'first' if run < 0 else f'pair {run + 1}'}")
            prompt = trio.run(prompts.of, tokens)
            for side in bench.in_turns(run):
                ms = trio.run(alone, side, bench, prompt)
                # the first of its length is a figure of its own: it may meet what is new
                series.add(side.name, **{f"{'met' if run < 0 else 'lone'}_ms@{tokens}": ms})
    return lengths


def measure_short(bench: Pair, options: argparse.Namespace, series: Series, words: int) -> None:
    """The short prompt alone, beside streams and beside a document."""
    found, parts = bench.setting, options.parts.split(",")
    for run in range(-1, found.rounds):
        say(f"a short prompt: {'warm-up' if run < 0 else f'pair {run + 1} of {found.rounds}'}")
        prompts = [found.documents.words(SHORT_WORDS) for _ in PARTS]
        document = found.documents.words(words)
        for side in bench.in_turns(run):
            by_itself = trio.run(alone, side, bench, prompts[0])
            ms = {"alone": by_itself}
            if "streams" in parts:
                ms["streams"] = trio.run(beside_streams, side, bench, prompts[1])
            if "document" in parts:
                ms["document"] = trio.run(
                    beside_document, side, bench, prompts[2], document, options.lead_ms / 1e3
                )
            if run >= 0:
                series.add(side.name, **{f"short_ms_{kind}": value for kind, value in ms.items()})
                series.add(
                    side.name,
                    **{f"times_{k}": v / by_itself for k, v in ms.items() if k != "alone"},
                )


async def wait_idle(bench: Pair) -> None:
    """Give both sides what a daemon that nobody asks has."""
    for side in (bench.ours, bench.theirs):
        await ask(side, Session("first", True), bench.setting.documents.words(SHORT_WORDS), 8)
    await trio.sleep(IDLE_S)


def measure(bench: Pair, options: argparse.Namespace) -> dict[str, Any]:
    found, series, parts = bench.setting, Series.empty(), options.parts.split(",")
    bench.ours.labels = options.labels
    trio.run(wait_idle, bench)
    lengths = measure_lone(bench, options, series) if "lone" in parts else []
    default = DOCUMENT_WORDS if found.accelerator else DOCUMENT_WORDS_CPU
    words = min(options.document_words or default, int(0.7 * found.n_ctx / found.tokens_per_word))
    if "streams" in parts or "document" in parts:
        measure_short(bench, options, series, words)
    return {
        **found.describe(),
        "labels": options.labels,
        "lengths": lengths,
        "document_words": words,
        "figures": series.spreads(),
        "ours_over_theirs": {
            str(n): series.ours_over_theirs(f"lone_ms@{n}") for n in lengths
        },
    }  # fmt: skip


def main() -> None:
    quiet_death()
    options = options_parser().parse_args()
    options.rounds = options.pairs
    found = setting(options)
    with pair(found, 4) as bench:
        result = measure(bench, options)
    show(result)
    for tokens, times in result["ours_over_theirs"].items():
        print(f"{tokens:>5} tokens: {times['median']:.3f} of {bench.theirs.name}'s time")
    if options.write:
        from benchmarks.machine import save

        print("written to", save(f"first_tokens-{found.label}", result).name)


if __name__ == "__main__":
    sys.exit(main())
