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
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import trio

from benchmarks import machine, programs, streams
from benchmarks.desk import add, add_common, ratios, save, shown
from benchmarks.names import OURS, THEIRS
from benchmarks.peers import batched_bench
from benchmarks.prompts import N_TOKENS, prompts
from benchmarks.setting import Series
from benchmarks.sides import SAMPLING, quiet_death
from benchmarks.timeline import Phase, Session, gaps_ms, percentile
from benchmarks.turns import say
from benchmarks.web import Caller, Model, Server, find_model, servers, settle, warm_up

LIBRARY = "llama-batched-bench"
CHAT, OTHER = "chat", "other"
PARALLEL, STREAM_TOKENS, ANSWER_TOKENS = 8, 1500, 160
AFTER_S = 0.25  # ticks after a prompt's last that it may still disturb
SHORT_PAUSE_S, WARM_S = 0.2, 1.0


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


@contextlib.asynccontextmanager
async def chatting(caller: Caller, count: int) -> AsyncIterator[None]:
    """Keep ``count`` streams of a chat running; begin when each has its first token."""

    async def keep(number: int) -> None:
        documents = caller.documents(f"{CHAT}{number}")
        while True:
            await caller.ask(CHAT, documents.words(16), STREAM_TOKENS)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(keep, number)
        while sum(bool(s.times_s) for s in caller.sessions if s.session_id == CHAT) < count:
            await trio.sleep(0.01)
        await trio.sleep(WARM_S)
        yield
        nursery.cancel_scope.cancel()


def chats(caller: Caller) -> list[Session]:
    return [s for s in caller.sessions if s.session_id == CHAT]


async def watch(caller: Caller, seconds: float) -> Phase:
    """Watch the chat for some time."""
    began = time.perf_counter()
    await trio.sleep(seconds)
    return Phase(CHAT, began, time.perf_counter(), chats(caller))


def gaps_of(prefix: str, phases: list[Phase]) -> dict[str, float]:
    """The figures of a chat's gaps in some stretches of time."""
    gaps = [gap for phase in phases for gap in gaps_ms(phase)]
    tens = [programs.largest_mean_of_ten(gaps_ms(phase)) for phase in phases]
    return {
        f"{prefix}p95_ms": percentile(gaps, 95),
        f"{prefix}ten_ms": max((ten for ten in tens if ten == ten), default=float("nan")),
        f"{prefix}longest_ms": max(gaps, default=float("nan")),
    }


async def first_tokens(
    caller: Caller, words: int, repeats: int, pause_s: float
) -> tuple[list[float], list[Phase]]:
    """Send one prompt after another; times to the first token, and the stretches until then."""
    documents = caller.documents(f"{words} {len(caller.sessions)}")
    firsts, phases = [], []
    for _ in range(repeats):
        await trio.sleep(pause_s)
        session = await caller.ask(OTHER, documents.words(caller.words(words)), 8)
        await trio.sleep(AFTER_S)
        firsts.append(1e3 * (session.times_s[0] - session.sent_s))
        phases.append(Phase(CHAT, session.sent_s, session.times_s[0] + AFTER_S, chats(caller)))
    return firsts, phases


Values = dict[str, float]


async def prompt_part(caller: Caller, options: argparse.Namespace, words: int) -> Values:
    """A long prompt alone, then beside one stream."""
    alone, _ = await first_tokens(caller, words, options.repeats, SHORT_PAUSE_S)
    await settle(caller.server)
    async with chatting(caller, 1):
        quiet = await watch(caller, options.seconds / 2)
        beside, phases = await first_tokens(caller, words, options.repeats, options.pause)
    first, first_alone = statistics.median(beside), statistics.median(alone)
    return {
        "alone_ms": first_alone,
        "beside_ms": first,
        "over_alone": first / first_alone,
        "chat_alone_p95_ms": percentile(gaps_ms(quiet), 95),
        **gaps_of("chat_", phases),
    }


async def tail_part(caller: Caller, options: argparse.Namespace) -> Values:
    """A short prompt alone, then beside two streams."""
    alone, _ = await first_tokens(caller, 16, options.tail_repeats, SHORT_PAUSE_S)
    async with chatting(caller, 2):
        beside, _ = await first_tokens(caller, 16, options.tail_repeats, SHORT_PAUSE_S)
    first, first_alone = statistics.median(beside), statistics.median(alone)
    return {"alone_ms": first_alone, "beside_ms": first, "over_alone": first / first_alone}


async def storm_part(caller: Caller, options: argparse.Namespace, label: bool) -> Values:
    """A stream alone, then beside clients that send one prompt after another."""
    fields = {"priority": "background"} if label else {}

    async def flood(number: int) -> None:
        documents = caller.documents(f"storm{number}")
        while True:
            words = documents.words(caller.words(options.storm_words))
            await caller.ask(f"storm{number}", words, 1, **fields)

    async with chatting(caller, 1), trio.open_nursery() as nursery:
        alone = await watch(caller, options.seconds)
        for number in range(options.storm_clients):
            nursery.start_soon(flood, number)
        await trio.sleep(WARM_S)
        before = await computed(caller.server)
        beside = await watch(caller, options.seconds)
        after = await computed(caller.server)
        nursery.cancel_scope.cancel()
    storm = [s for s in caller.sessions if s.session_id.startswith("storm")]
    seconds = beside.end_s - beside.begin_s
    done = [s for s in storm if s.end_s is not None and beside.begin_s < s.end_s <= beside.end_s]
    rate = answered_rate(storm, beside.begin_s, beside.end_s)
    alone_p95 = percentile(gaps_ms(alone), 95)
    figures = gaps_of("", [beside])
    return {
        "alone_p95_ms": alone_p95,
        **figures,
        "p95_over_alone": figures["p95_ms"] / alone_p95,
        "prompts_finished": float(len(done)),
        "prompt_rate": rate if before is None or after is None else (after - before) / seconds,
    }


async def computed(server: Server) -> float | None:
    """Prompt tokens computed so far; None of a server that tells only of whole prompts."""
    if server.daemon is None:
        return None
    found = await trio.to_thread.run_sync(server.daemon.metrics)
    return float(found["prompt_tokens_computed_total"])


def answered_rate(sessions: list[Session], begin_s: float, end_s: float) -> float:
    """Prompt tokens per second of answered prompts, each spread over the time that it took."""
    tokens = 0.0
    for session in sessions:
        if session.end_s is not None:
            inside = min(session.end_s, end_s) - max(session.sent_s, begin_s)
            tokens += session.prompt_tokens * max(0.0, inside) / (session.end_s - session.sent_s)
    return tokens / (end_s - begin_s)


async def editor_part(caller: Caller, options: argparse.Namespace) -> Values:
    """The editor of the desk, alone."""
    phase = await programs.run(caller, [programs.EDITOR], options.seconds, 0.0)
    return programs.by_program(phase)[programs.EDITOR]


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
        with servers(model, PARALLEL, options.flags, not options.without_peer) as found:
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
    with servers(model, max(counts), options.flags, not options.without_peer) as found:
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
        model.path, counts=counts, prompt=N_TOKENS, n=ANSWER_TOKENS, n_ctx=n_ctx,
        threads=machine.usable_cpus(),
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
    results = []
    for name in options.models.split(","):
        began = time.perf_counter()
        model = find_model(name, options.quant, options.n_ctx)
        results.append(measure(model, options))
        show(results[-1])
        save(options.json, options, results)
        say(f"{name}: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
