"""Everything that ``make run`` needs before it can serve, with one line of progress over it.

    python -m tools.first_start LOG MAKE

runs ``make setup`` and ``make llama``.  What they print goes to LOG; a terminal gets one line that
is drawn anew, anything else a line a step.  Where everything is there, nothing is printed.
Standard library only, since it runs before there is a virtual environment.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

STEPS = (  # with their usual seconds on two cores
    ("virtual environment", 8.0),
    ("Python packages", 25.0),
    ("libllama", 100.0),
    ("chat layer and scheduler", 110.0),
    ("encoder of pictures", 30.0),
    ("the model", 3.0),
)
VENV, PACKAGES, LIBRARY, COMPILED, PICTURES, MODEL = range(len(STEPS))

BEGINS = (  # the first words of a line, and the step that it belongs to
    ("setting up ", VENV),
    ("Collecting ", PACKAGES),
    ("Process ", LIBRARY),  # another one builds, and this one waits
    ("Backend ", LIBRARY),
    ("Fetching ", LIBRARY),
    ("Configuring ", LIBRARY),
    ("Compiling libllama", LIBRARY),
    ("Compiling the binding", LIBRARY),
    ("Compiling uma-chat", COMPILED),
    ("Compiling samplers", COMPILED),
    ("Compiling uma-eyes", PICTURES),
)
# as long steps tell their shares: "  Compiling uma-chat: 40% after 12 s", "  40% of the functions"
SHARE = re.compile(r" +(?:Compiling (libllama|uma-chat|samplers|uma-eyes)\b.*: )?(\d+)%")
WARNING = "warning: "

BAR = 20  # characters
DRAW_S = 0.5
LEARNED = 0.1  # share of a step from which on its own pace counts
TAIL, WIDEST = 25, 300  # lines of the log that a failure shows, characters of each


class Progress:
    """Progress by the lines that the steps print.  ``packages``: the number to fetch."""

    def __init__(self, packages: int) -> None:
        self.step: int | None = None  # None: nothing had to be done yet
        self.warnings: list[str] = []
        self._packages = packages
        self._fetched = 0
        self._shares: dict[str, float] = {}  # of the parts of a step, which run at the same time
        self._began_s = 0.0  # of the step

    def read(self, line: str) -> None:
        """Learn from one line of output."""
        if line.startswith(WARNING):
            self.warnings.append(line.rstrip())
        for words, step in BEGINS:
            if line.startswith(words):
                self._begin(step)
        if self.step == PACKAGES and line.startswith("Collecting "):
            self._fetched += 1
            self._shares = {"": 0.8 * min(self._fetched / max(self._packages, 1), 1.0)}
        found = SHARE.match(line)
        if found and self.step in (LIBRARY, COMPILED, PICTURES):
            self._shares[found[1] or "samplers"] = int(found[2]) / 100
        if line.startswith("Compiling ") and self.step in (COMPILED, PICTURES):
            self._shares[line.split()[1]] = 1.0 if ": done in " in line else 0.0

    @property
    def share(self) -> float:
        """Share of the step that is done, from 0 to 1: that of its slowest part."""
        return min(self._shares.values(), default=0.0)

    def left_s(self, now_s: float) -> float:
        """Estimate the seconds of all of the rest, if every step has something to do."""
        if self.step is None:
            return 0.0
        rest = STEPS[self.step][1] * (1 - self.share)
        if self.share >= LEARNED:
            rest = (now_s - self._began_s) * (1 - self.share) / self.share
        return rest + sum(seconds for _, seconds in STEPS[self.step + 1 :])

    def text(self, now_s: float) -> str:
        """The step with its share, and what is left."""
        assert self.step is not None
        share = f" {self.share:.0%}" if self._shares else ""
        left = left_text(self.left_s(now_s))
        return f"{self.step + 1} of {len(STEPS)}: {STEPS[self.step][0]}{share}, {left}"

    def bar(self) -> str:
        """The share of all steps, by their usual seconds."""
        assert self.step is not None
        usual = [seconds for _, seconds in STEPS]
        done = sum(usual[: self.step]) + self.share * usual[self.step]
        return "#" * round(BAR * done / sum(usual))

    def _begin(self, step: int) -> None:
        if self.step is None or step > self.step:
            self.step, self._shares, self._began_s = step, {}, time.monotonic()


def left_text(seconds: float) -> str:
    """Say how long the rest takes at most: some steps may have nothing to do."""
    if seconds <= 45:
        return "less than a minute left"
    minutes = math.ceil(seconds / 60)
    return "up to a minute left" if minutes == 1 else f"up to {minutes} minutes left"


class Preparation:
    """The steps, their log, and the line that is drawn."""

    def __init__(self, log: Path, make: str, packages: int) -> None:
        self.progress = Progress(packages)
        self._log, self._make = log, make
        self._lines: list[str] = []
        self._logged = 0  # of the lines, those that are in the log
        self._terminal = sys.stderr.isatty()
        self._said = (-1, False)  # the step, and whether half of it was done
        self._began_s = time.monotonic()

    def run(self) -> int:
        """Make what is missing; returns an exit status."""
        for target in ("setup", "llama"):
            status = self._make_target(target)
            if status:
                self._tell_failure()
                return status
        if self.progress.step is not None:
            self._erase()
            took_s = round(time.monotonic() - self._began_s)
            for line in self.progress.warnings:
                _say(line)
            _say(
                f"make run: all is built after {took_s // 60}:{took_s % 60:02} "
                f"(details: {self._log}); {MODEL + 1} of {len(STEPS)}: {STEPS[MODEL][0]}"
            )
        return 0

    def _make_target(self, target: str) -> int:
        child = subprocess.Popen(
            [self._make, "--no-print-directory", target, "GOAL=run", "PIP_QUIET="],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", bufsize=1,
        )  # fmt: skip
        over = threading.Event()
        drawing = threading.Thread(target=self._draw_until, args=(over,), daemon=True)
        drawing.start()
        assert child.stdout is not None
        try:
            for line in child.stdout:
                self._lines.append(line)
                self.progress.read(line)
                if self.progress.step is not None:
                    self._write_log()
                if not self._terminal:
                    self._tell_step()
            return child.wait()
        finally:
            over.set()
            drawing.join()
            if child.poll() is None:
                child.terminate()
                child.wait()

    def _tell_step(self) -> None:
        """One line where a step begins, and one where half of a long one is done."""
        progress = self.progress
        if progress.step is None:
            return
        if self._said[0] < 0:
            _say(f"make run: the first start builds what is missing (details: {self._log})")
        now = (progress.step, progress.step >= LIBRARY and progress.share >= 0.5)
        if now > self._said:
            self._said = now
            _say(f"make run: {progress.text(time.monotonic())}")

    def _draw_until(self, over: threading.Event) -> None:
        while self._terminal and not over.wait(DRAW_S):
            if self.progress.step is not None:
                width = shutil.get_terminal_size().columns - 1
                text = self.progress.text(time.monotonic())
                line = f"[{self.progress.bar():-<{BAR}}] {text} (details: {self._log})"
                sys.stderr.write(f"\r{line[:width]}\x1b[K")
                sys.stderr.flush()

    def _erase(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _write_log(self) -> None:
        """Write new lines to the log; where the disk is full, there is none."""
        with contextlib.suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a" if self._logged else "w", encoding="utf-8") as file:
                file.writelines(self._lines[self._logged :])
            self._logged = len(self._lines)

    def _tell_failure(self) -> None:
        """The end of the log, and what to do next."""
        self._write_log()
        self._erase()
        told = [line.rstrip()[:WIDEST] for line in self._lines if not _of_make(line)]
        for line in told[-TAIL:]:
            _say(line)
        step = self.progress.step
        where = "" if step is None else f" at step {step + 1} of {len(STEPS)}, {STEPS[step][0]}"
        whole = f"; the whole output is in {self._log}" if self._log.exists() else ""
        _say(
            f"make run: stopped{where}{whole}.\n"
            "When what is said above is mended, `make run` goes on from there."
        )


def _of_make(line: str) -> bool:
    """Whether a line is of make itself, and helps nobody."""
    return re.match(r"(g?make)(\[\d+\])?: ", line) is not None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _packages() -> int:
    """Number of packages in the lock file; some are of other systems."""
    try:
        text = Path("requirements.lock").read_text("utf-8")
    except OSError:
        return 0
    return len(re.findall(r"(?m)^[\w.-]+==", text))


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main(log: str, make: str) -> int:
    """Prepare; the exit status of what failed, 130 where it was interrupted."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        return Preparation(Path(log), make, _packages()).run()
    except KeyboardInterrupt:
        print("\nmake run: interrupted; `make run` goes on from there", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
