"""Break GGUF files on purpose, and see that nothing worse happens than a refusal.

    python -m tests.support.gguf_mutants --count 100000 --seed 1
    python -m tests.support.gguf_mutants --seed 1 --only 4711 --keep broken.gguf

Mutant number N of a seed is of the family N modulo their count, and the same bytes every time. Each
goes through the front's look at the header, the check before libllama, a load as the engine loads
it and one token; the table says how many came how far. The exit status is 1 where anything hung,
took memory beyond what the file's size allows, or raised what it must not. A child that ends is
listed with its reason: the engine's death is contained, but a sentence beforehand is better.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads where children are forked

from . import fields as gguf_fields  # noqa: E402
from . import mutations as gguf_mutations  # noqa: E402
from . import tiny as gguf_tiny  # noqa: E402
from . import trial as gguf_trial  # noqa: E402

WHOLE_FAMILY = "llama"


class Mutants:
    """The broken files of a seed, made from the tiny model of each family."""

    def __init__(self, seed: int, vocab_dir: Path, families: Iterable[str] = ()) -> None:
        self.seed, self.vocab_dir = seed, vocab_dir
        self.families = tuple(families) or gguf_tiny.FAMILIES
        self.whole = {f: gguf_tiny.tiny_model(f, vocab_dir) for f in self.families}
        self._pieces = {f: gguf_fields.parse(data) for f, data in self.whole.items()}

    def family(self, number: int) -> str:
        """The family of a mutant."""
        return self.families[number % len(self.families)]

    def make(self, number: int) -> tuple[bytes, str]:
        """A mutant's bytes, and what was done to it."""
        family = self.family(number)
        return gguf_mutations.mutate(self._pieces[family], Random(f"{self.seed} {family} {number}"))


class Tally:
    """Counts of outcomes, and examples of each kind of end."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.examples: dict[tuple[str, str], int] = {}
        self.slowest = self.largest = 0.0

    def add(self, number: int, outcome: gguf_trial.Outcome) -> None:
        self.outcomes[outcome.what] += 1
        self.slowest = max(self.slowest, outcome.seconds)
        self.largest = max(self.largest, outcome.peak)
        if outcome.what in (*gguf_trial.BAD, gguf_trial.CRASHED):
            kind = outcome.what, kind_of(outcome.detail)
            self.kinds[kind] += 1
            self.examples.setdefault(kind, number)

    @property
    def bad(self) -> int:
        return sum(self.outcomes[what] for what in gguf_trial.BAD)

    def lines(self) -> Iterator[str]:
        """The table, and below it the kinds of ends, the most frequent first."""
        total = sum(self.outcomes.values())
        yield f"| outcome | files of {total} |"
        yield "| --- | ---: |"
        for what in gguf_trial.OUTCOMES:
            yield f"| {what} | {self.outcomes[what]} |"
        yield f"slowest {self.slowest:.1f} s, most memory {self.largest / gguf_trial.MIB:.0f} MiB"
        for kind, count in self.kinds.most_common():
            yield f"{count:6} {kind[0]}: {kind[1]} (such as {self.examples[kind]})"


def kind_of(detail: str) -> str:
    """The same words for ends of one kind: without numbers that differ and without folders."""
    detail = re.sub(r"\S*/", "", detail)
    if "GGML_ASSERT" in detail or ".cpp:" in detail:
        return detail[:160]
    return re.sub(r"\d+", "N", detail)[:160]


def run(mutants: Mutants, numbers: Iterable[int], folder: Path) -> Iterator[tuple]:  # type: ignore[type-arg]
    """Tries each mutant: yields its number, what was done to it and what came of it."""
    whole = folder / "whole.gguf"
    family = WHOLE_FAMILY if WHOLE_FAMILY in mutants.whole else mutants.families[0]
    whole.write_bytes(mutants.whole[family])
    trials = gguf_trial.Trials(whole)
    for number in numbers:
        data, done = mutants.make(number)
        path = folder / f"{number}.gguf"
        path.write_bytes(data)
        try:
            yield number, done, trials.run(path)
        finally:
            path.unlink()


@contextlib.contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder in memory where there is one."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=parent) as name:
        yield Path(name)


def _shown(numbers: range, tally: Tally) -> Iterator[int]:
    """The numbers, with progress on stderr: a bar on a terminal, else a line every ten seconds."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        columns = Progress.get_default_columns()
        # no thread that draws: children are forked here
        with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
            task = bar.add_task("mutants", total=len(numbers))
            for number in numbers:
                yield number
                bar.advance(task)
                if number % 25 == 0:
                    bar.refresh()
        return
    said = began = time.monotonic()
    for done, number in enumerate(numbers):
        yield number
        if time.monotonic() - said > 10:
            said = time.monotonic()
            speed = (done + 1) / (said - began)
            ends = tally.outcomes[gguf_trial.CRASHED]
            print(
                f"{done + 1} of {len(numbers)}, {speed:.0f}/s, {ends} ended, {tally.bad} bad",
                file=sys.stderr,
                flush=True,
            )


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="gguf_mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="N", help="this mutant alone")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="with --only: write the mutant")
    parser.add_argument("--record", type=Path, metavar="FILE", help="a line of JSON a mutant")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = build_parser().parse_args(argv)
    from umaserve.llama import builds

    found = builds.installed()
    if not found:
        print("gguf_mutants: libllama is not built; run python build_llama.py", file=sys.stderr)
        return 2
    mutants = Mutants(args.seed, found[0].vocab_dir)
    if args.only is not None and args.keep:
        args.keep.write_bytes(mutants.make(args.only)[0])
    numbers = range(args.count) if args.only is None else range(args.only, args.only + 1)
    tally, began, stopped = Tally(), time.monotonic(), False
    try:
        _try_all(mutants, numbers, tally, args)
    except KeyboardInterrupt:
        stopped = True
    print("\n".join(tally.lines()))
    print(f"seed {args.seed}, {time.monotonic() - began:.0f} s{', interrupted' * stopped}")
    return 130 if stopped else 1 if tally.bad else 0


def _try_all(mutants: Mutants, numbers: range, tally: Tally, args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(fast_folder())
        record = stack.enter_context(args.record.open("w")) if args.record else None
        for number, done, outcome in run(mutants, _shown(numbers, tally), folder):
            tally.add(number, outcome)
            line = {"n": number, "family": mutants.family(number), "done": done}
            if record:
                record.write(json.dumps(line | outcome._asdict()) + "\n")
            if args.only is not None:
                print(f"{line['family']}: {done}\n{outcome}")


if __name__ == "__main__":
    # a kill is an interruption too: what was found so far is shown, and the folder goes
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
