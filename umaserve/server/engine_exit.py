"""How an engine ended, and what to tell people about it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from umaserve.server import blame


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
        if self.hung:
            return self.why or "hung, and was killed"
        if self.load_failed:
            return self.load_failed
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
    """How it ended and, where that explains it, the last it printed."""
    text = str(exit)
    if exit.load_failed or exit.kind != "fault" or exit.hung or not exit.stderr:
        return text
    last = [line for line in exit.stderr if line.strip()][-3:]
    return f"{text}; it last printed: " + " | ".join(last)
