"""What drafts gain: texts that repeat themselves and others, with and without drafts.

    python -m benchmarks.drafts --model qwen2.5-0.5b
    python -m benchmarks.drafts --model qwen3-30b-a3b --specs ngram-simple
    python -m benchmarks.drafts --model qwen3-30b-a3b --forced chain
    python -m benchmarks.drafts --forced chain --draft-model micro-151k --specs draft-simple
    python -m benchmarks.drafts --forced chain --model chain-with-heads.gguf --specs draft-mtp
    python -m benchmarks.drafts --without-peer --streams 1 --words 60 --answer 200 --rounds 3

Each stream has a text of its own (`benchmarks.repeated_texts`): ``copies`` are edited files and
quoted documents, ``pieces`` calls that repeat tool results and documents wrapped again.  Its answer
is forced to be that text, or a chain of tokens that repeats as the text does (`benchmarks.forced`).
A round plays the same texts to all ways in turns, as many at a time as there are streams, and at
least one of each kind in all.  The last way is first in every other turn.  Ways: our daemon with
and without drafts (``speculate``), llama-server, and llama-server with each of its own kinds of
drafts in ``--specs``.

A literal text binds llama-server by a grammar, which passes over the whole vocabulary for each
token: that takes longer than many a tick.  So it plays no plain texts then, and the others for
``--peer-streams``, and ``--forced chain`` is where both sides do the same work.

Figures: tokens per second while answers are written (prompts before the first token are left out),
tokens of a stream per tick, the share of drafted tokens that were right, and the time between two
ticks that a stream waits for (its 95th percentile and the longest).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import trio

from benchmarks import draft_tables
from benchmarks.draft_tables import PLAIN, USUAL, plain_way, spec_way
from benchmarks.draft_turns import KINDS, MOST_DRAFTED, Turn, cells, texts_of, turns_of
from benchmarks.forced import CHAIN, LITERAL, Forced, Forcing, Heard, Way, ask
from benchmarks.forced import ours as our_way
from benchmarks.forced import theirs as their_way
from benchmarks.machine import ratio, spread
from benchmarks.models import model_path
from benchmarks.names import OURS, THEIRS
from benchmarks.repeated_texts import Text
from benchmarks.report import around, table
from benchmarks.setting import LARGE, Recorder, Setting, parser, setting
from benchmarks.sides import ServerSetting, Side, Theirs, ours, quiet_death, settle
from benchmarks.timeline import Phase, Session, percentile
from benchmarks.turns import say

USUAL_BATCH = 2048  # tokens of llama-server's batch, by default


def options_parser() -> argparse.ArgumentParser:
    out = parser(__doc__, "drafts")
    out.add_argument("--streams", default="1,8,32", help="at once, with commas between them")
    out.add_argument("--words", type=int, default=240, help="of a prompt")
    out.add_argument("--answer", type=int, default=1000, help="most characters of an answer")
    out.add_argument("--texts", default=USUAL, help="which, with commas between them")
    out.add_argument("--forced", choices=(LITERAL, CHAIN), default=LITERAL, help="how")
    out.add_argument("--lane", default="interactive", help="of our requests")
    out.add_argument("--without-peer", action="store_true", help="ours alone")
    out.add_argument("--specs", default="ngram-simple,ngram-mod",
                     help="llama-server's --spec-type, each a server of its own")  # fmt: skip
    out.add_argument(
        "--peer-streams",
        default="",
        help="of --streams: what llama-server plays; 1,8 of literal texts if not given",
    )
    out.add_argument("--draft-model", default="", help="a shape that drafts, with --forced chain")
    out.add_argument("--draft-wrong", type=int, default=10,
                     help="two of so many of its tokens are wrong")  # fmt: skip
    out.add_argument("--name", default="", help="of the result file; by label if not given")
    return out


def checked(flags: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line; ends the program where they make no sense."""
    options = flags.parse_args()
    if unknown := set(options.texts.split(",")) - set(KINDS):
        flags.error(f"--texts {','.join(unknown)}: {USUAL}")
    if not all(n.isdigit() and int(n) for n in options.streams.split(",")):
        flags.error(f"--streams {options.streams}: whole numbers from 1 on, with commas")
    options.chain = options.forced == CHAIN
    if options.chain and (options.model == "demo" or options.model.endswith(".gguf")):
        flags.error(f"--forced {CHAIN}: name a shape of tools/make_model.py, not {options.model}")
    if options.draft_model and not options.chain:
        flags.error(f"--draft-model goes with --forced {CHAIN}: its words are no text's")
    options.drafter = ""
    if options.draft_model:
        name, wrong = options.draft_model, options.draft_wrong
        options.drafter = str(model_path(name, options.quant, True, wrong))
    return options


class Played(NamedTuple):
    """A side that runs, its ways, and the turns that they take part in."""

    side: Side
    ways: list[Way]
    turns: list[Turn]


async def play(way: Way, texts: Sequence[Forced]) -> list[Heard]:
    """Ask for all texts at once."""
    heard: list[Heard] = []

    async def stream(text: Forced) -> None:
        heard.append(await ask(way, text))

    async with trio.open_nursery() as nursery:
        for text in texts:
            nursery.start_soon(stream, text)
    return heard


def writing_s(heard: Sequence[Heard]) -> float:
    """Seconds in which at least one answer has begun and not ended."""
    total, until = 0.0, 0.0
    for begin, end in sorted((h.times_s[0], h.end_s) for h in heard):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def figures(heard: Sequence[Heard]) -> dict[str, float]:
    """Of one turn of one way.

    Tokens of one tick come together, so the times between ticks are the longest ones between
    tokens: as many as there are tokens that no draft has brought along.
    """
    tokens, accepted = (sum(h.tokens for h in heard), sum(h.accepted for h in heard))
    ticks = tokens - accepted
    gaps = [1e3 * (b - a) for h in heard for a, b in zip(h.times_s, h.times_s[1:], strict=False)]
    gaps = sorted(gaps)[-max(1, ticks - len(heard)) :]
    out = {
        "tokens_per_s": (tokens - len(heard)) / writing_s(heard),
        "tokens_per_tick": tokens / ticks,
        "pause_p95_ms": percentile(gaps, 95),
        "longest_ms": max(gaps),
    }
    if drafted := sum(h.drafted for h in heard):
        out["accepted"] = accepted / drafted
    for kind in dict.fromkeys(h.kind for h in heard):
        own = [h for h in heard if h.kind == kind]
        # a stream's own rate, in the mean of those of the kind
        rates = [(h.tokens - 1) / (h.end_s - h.times_s[0]) for h in own]
        out[f"stream_tokens_per_s@{kind}"] = sum(rates) / len(rates)
    return out


class Bench:
    """What has been heard so far: a value a round, by turn's kind, figure and way."""

    def __init__(self, found: Setting, texts: dict[Turn, list[Forced]]) -> None:
        self._found, self._texts = found, texts
        self.values: dict[tuple[str, int], dict[str, dict[str, list[float]]]] = {}
        self.recorder = Recorder(found, found.rounds - 1)

    def take(self, turn: Turn, sides: Sequence[Played]) -> None:
        """One turn: so many texts as there are streams to all ways, and then the next texts."""
        which = "warm-up" if turn.run < 0 else f"round {turn.run + 1} of {self._found.rounds}"
        ways = [(p.side, way) for p in sides if turn in p.turns for way in p.ways]
        if ways:
            say(f"{turn.texts} texts, {turn.streams} at once, {len(ways)} ways: {which}")
        heard: dict[str, list[Heard]] = {}
        texts, n = self._texts[turn], turn.streams
        for group, at in enumerate(range(0, len(texts), n)):
            for side, way in ways if (turn.run + group) % 2 == 0 else ways[::-1]:
                trio.run(settle, side)
                heard.setdefault(way.name, []).extend(trio.run(play, way, texts[at : at + n]))
        for name, answers in heard.items():
            if turn.run >= 0:
                self._note(turn, name, answers)

    def _note(self, turn: Turn, name: str, heard: list[Heard]) -> None:
        rows = self.values.setdefault((turn.texts, turn.streams), {})
        for figure, value in figures(heard).items():
            rows.setdefault(figure, {}).setdefault(name, []).append(value)
        begin, end = min(h.sent_s for h in heard), max(h.end_s for h in heard)
        sessions = [
            Session(f"{h.kind}.{i}", True, h.sent_s, h.times_s, h.end_s)
            for i, h in enumerate(heard)
        ]
        phase = Phase(f"{turn.texts}@{turn.streams}", begin, end, sessions)
        self.recorder.keep(phase, name, turn.run)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "texts": texts,
                "streams": streams,
                "figures": {
                    key: {way: spread(v) for way, v in ways.items()} for key, ways in found.items()
                },
                "with_over_without": ratios(found),
                "ours_over": {
                    way: ratio(found["tokens_per_s"][OURS], values)
                    for way, values in found["tokens_per_s"].items()
                    if way not in (OURS, plain_way(OURS))
                },
            }
            for (texts, streams), found in self.values.items()
        ]


def ratios(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """With drafts over without, round by round, by figure and way."""
    return {
        key: {
            way: ratio(values, ways[without])
            for way, values in ways.items()
            if (without := plain_way(way)) != way and all(ways.get(without, [0]))
        }
        for key, ways in found.items()
    }


@contextlib.contextmanager
def their_side(
    model: str, sizes: ServerSetting, name: str, turns: list[Turn], drafter: str
) -> Iterator[Played]:
    _, _, spec = name.partition(", ")
    most = sizes.parallel * (MOST_DRAFTED + 1)
    # it ends where one batch does not hold all rows and drafts
    drafting = ("--spec-type", spec, "-b", str(max(USUAL_BATCH, most)))
    drafting += ("-md", drafter) if drafter and spec.startswith("draft") else ()
    side = Theirs(model, sizes, extra=drafting if spec else ())
    try:
        side.wait_ready()
        yield Played(side, [their_way(side, name)], turns)
    finally:
        side.close()


def measure(found: Setting, texts: dict[Turn, list[Text]]) -> tuple[dict[str, Any], Recorder]:
    """All ways in turns; one server at a time where several do not fit in memory."""
    options, turns = found.options, list(texts)
    sizes = ServerSetting(max(t.streams for t in turns), found.n_ctx, found.threads)
    specs = [] if options.without_peer else options.specs.split(",")
    names = [] if options.without_peer else [THEIRS, *map(spec_way, specs)]
    chains = options.forced == CHAIN
    peer = list(
        map(int, (options.peer_streams or (options.streams if chains else "1,8")).split(","))
    )
    theirs = [t for t in turns if t.streams in peer and (chains or t.texts != PLAIN)]
    large = found.model_bytes > LARGE
    with contextlib.ExitStack() as stack:
        drafter = ["--draft-model", options.drafter] if options.drafter else []
        with ours(found.model, sizes, *drafter, *options.flags.split()) as side:
            forcing = Forcing(side.daemon.path, options.forced)
            bench = Bench(found, {turn: forcing.all_of(texts[turn]) for turn in turns})
            ways = [
                our_way(side, plain_way(OURS), options.lane, False),
                our_way(side, OURS, options.lane, True),
            ]
            played = [Played(side, ways, turns)]
            if not large:
                sides = [
                    their_side(found.model, sizes, name, theirs, options.drafter) for name in names
                ]
                played += [stack.enter_context(each) for each in sides]
            for turn in turns:
                bench.take(turn, played)
        for name in names if large else []:
            with their_side(found.model, sizes, name, theirs, options.drafter) as alone:
                for turn in theirs:
                    bench.take(turn, [alone])
    sizes_told = {key: getattr(options, key) for key in ("words", "answer", "forced", "lane")}
    if options.drafter:
        sizes_told |= {"draft_model": options.draft_model, "draft_wrong": options.draft_wrong}
    flags = {"specs": specs, "peer_streams": peer, "flags": options.flags}
    whole = {"one_at_a_time": large and bool(names), "rows": bench.rows()}
    return {**found.describe(), **sizes_told, **flags, **whole}, bench.recorder


def main() -> None:
    quiet_death()
    options = checked(options_parser())
    turns = turns_of(options, 1 if options.quick else options.rounds)
    texts = {turn: texts_of(turn, options) for turn in turns}
    options.n_ctx = options.n_ctx or max(map(cells, texts.values()))
    found = setting(options)
    found.label += "-chain" * options.chain
    result, recorder = measure(found, texts)
    recorder.name = options.name or recorder.name
    print(table(*draft_tables.whole(result, around)))
    print("written to", recorder.save(result, plot=False).name)


if __name__ == "__main__":
    sys.exit(main())
