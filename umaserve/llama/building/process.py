"""Running compilers and package tools: output to a log, no child left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import BuildError

_TAIL_LINES = 20
_TELLING = re.compile(r"error|FAILED|fatal|undefined reference|not found|No space|Killed", re.I)


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    what: str,
    hint: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep_open: Sequence[int] = (),
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Runs `command`, appending its output to `log` and handing each line to `on_line`.

    The command gets a process group of its own; when this call is left by an exception (Ctrl-C),
    the whole group is ended first. `keep_open` are descriptors that the children keep, so that a
    lock lasts as long as they do. Raises `BuildError` ("`what` failed") with the telling lines of
    the output, the path of the log and `hint`.
    """
    words = [str(word) for word in command]
    with log.open("a", encoding="utf-8", errors="replace") as out:
        out.write(f"\n$ {' '.join(words)}\n")
        out.flush()
        start = out.tell()
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                pass_fds=tuple(keep_open),
            )
        except OSError as error:
            raise BuildError(f"{what} failed: cannot run {words[0]}: {error}") from error
        try:
            assert child.stdout is not None
            for line in child.stdout:
                out.write(line)
                if on_line is not None:
                    on_line(line)
            code = child.wait()
        finally:
            end_group(child)
    if code != 0:
        raise BuildError(_failure(what, code, log, start, hint))


def end_group(child: subprocess.Popen[str]) -> None:
    """Ends `child` and everything in its process group; returns when the child is gone."""
    if child.poll() is None:
        for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                break
            until = time.monotonic() + patience
            while child.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            if child.poll() is not None:
                break
    if child.stdout is not None:
        child.stdout.close()


def _failure(what: str, code: int, log: Path, start: int, hint: str) -> str:
    with log.open("rb") as out:
        out.seek(start)
        lines = out.read().decode("utf-8", "replace").splitlines()
    telling = [i for i, line in enumerate(lines) if _TELLING.search(line)]
    first = max(0, telling[0] - 1) if telling else max(0, len(lines) - _TAIL_LINES)
    shown = lines[first : first + _TAIL_LINES]
    reason = f"signal {-code}" if code < 0 else f"exit code {code}"
    text = f"{what} failed ({reason}).\n" + "\n".join(f"  | {line[:200]}" for line in shown)
    text += f"\nThe whole output is in {log}"
    return f"{text}\n{hint}" if hint else text
