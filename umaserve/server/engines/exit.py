"""How an engine ended, and what to tell people about it."""

from __future__ import annotations

import re
import signal
from collections import deque
from dataclasses import dataclass

from umaserve.server.engines import blame


@dataclass(frozen=True)
class EngineExit:
    """How an engine ended; ``status`` as of ``Popen.returncode``."""

    status: int
    asked: bool
    hung: bool
    load_failed: str
    stderr: tuple[str, ...]
    why: str = ""  # it was killed, where that is no hang

    @property
    def kind(self) -> str:
        return blame.kind_of_exit(self.status, asked=self.asked, hung=self.hung)

    def __str__(self) -> str:
        if self.load_failed:  # also where it was killed because it took long to leave
            return self.load_failed
        if self.hung:
            return self.why or "hung, and was killed"
        if self.status < 0:
            name = _SIGNAL_NAMES.get(-self.status, f"signal {-self.status}")
            return f"died of {name}"
        return f"left with exit status {self.status}"


_SIGNAL_NAMES: dict[int, str] = {
    signal.SIGABRT: "SIGABRT (a failed assertion in the library)",
    signal.SIGKILL: "SIGKILL (killed from outside, or by the system for memory)",
    signal.SIGSEGV: "SIGSEGV (bad memory access)",
    signal.SIGBUS: "SIGBUS (the model file was cut short, or bad memory access)",
    signal.SIGFPE: "SIGFPE (bad arithmetic)",
    signal.SIGILL: "SIGILL (the library was built for another processor)",
    signal.SIGTERM: "SIGTERM",
}


def describe_exit(exit: EngineExit) -> str:
    """How it ended and, where it says why, the line that explains it."""
    text = str(exit)
    if exit.load_failed or exit.kind != blame.FAULT or exit.hung or not exit.stderr:
        return text
    return f"{text}: " + " | ".join(exit.stderr)


class LastWords:
    """Lines printed by an engine that may explain its end.

    Python adds a dump of all its threads to every abort.  The dump says nothing about libllama, and
    would push out the line that names the cause.
    """

    def __init__(self) -> None:
        self._causes: deque[str] = deque(maxlen=2)
        self._others: deque[str] = deque(maxlen=3)

    def take(self, line: str) -> bool:
        """Keep a line; False: it is a part of Python's dump, or of a decode that was given up."""
        if _DUMP.match(line) or _GIVEN_UP.search(line):
            return False
        line = _FOLDER.sub("", line.strip())
        (self._causes if _CAUSE.search(line) else self._others).append(line)
        return True

    def lines(self) -> tuple[str, ...]:
        """The last two that name a cause, else the last three there are."""
        return tuple(self._causes or self._others)


# of ``faulthandler``; a Python traceback has a comma before "in"
_DUMP = re.compile(
    r"Fatal Python error: (Aborted|Segmentation fault|Bus error|Illegal instruction|"
    r"Floating.point exception)"
    r"|(Current )?[Tt]hread 0x|Current thread's C stack trace|Extension modules: "
    r"|\s+(File \".*\", line (\d+|\?\?\?) in |<|Binary file \"|\.\.\.)"
    r"|<Cannot show|Stack \(most recent call first\)"
)
# what libllama logs of a decode that our abort callback ended, as an error
_GIVEN_UP = re.compile(r"failed with error 1$|compute status: 1$|failed to decode, ret = 2$")
_CAUSE = re.compile(
    r"\.(c|cc|cpp|cu|cuh|h|hpp|m|mm|metal):\d+: "  # ggml_abort: file, line, what failed
    r"|GGML_(ASSERT|ABORT)|ggml_abort|[Aa]ssertion\b.*\bfailed"
    r"|terminate called|\bwhat\(\): "
    r"|\b(CUDA|HIP|Vulkan|vk::|Metal)\b.*\b[Ee]rror|libgomp: |out of memory|bad_alloc"
    r"|\*\*\* |malloc\(\)|free\(\)|double free|corrupted"
    r"|error while loading shared libraries|undefined symbol"
    r"|^Fatal Python error: "
)
_FOLDER = re.compile(r"^/\S*/(?=[^/\s]+:\d+: )")  # of the machine that the library was built on
