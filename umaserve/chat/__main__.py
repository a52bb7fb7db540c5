"""The chat child: ``python -m umaserve.chat``, started by the front and never by hand.

A question comes on standard input, its answer leaves on standard output, one after the other.
Both are frames: a ``uint32`` little-endian length, then that many bytes of JSON.

    {}  (from us: ready)
    {"template": "..." or null, "messages": [{"role", "content"}, ...], "bos": "", "eos": ""}
    {"text": "..."} or {"refused": "why"} or {"failed": "why"}

The process may have little memory, and little time for each question; it ends where it needs more.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
from typing import Any

from umaserve import core_dumps
from umaserve.chat.template import TemplateRefusal, TemplateRenderer

MEMORY_BYTES = 512 * 1024 * 1024
QUESTION_CPU_S = 10  # the front kills earlier; this is for a front that is gone


def bound() -> None:
    """Bounds that hold whatever the template does: memory and files."""
    for what, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):  # macOS knows no limit of address space
            resource.setrlimit(what, (most, most))


def _bound_time() -> None:
    """The next question may use so many seconds of a processor; then the system ends us."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime) + QUESTION_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def answer(renderer: TemplateRenderer, question: dict[str, Any]) -> dict[str, str]:
    """What to say to one question."""
    try:
        text = renderer.render(
            question["template"], question["messages"], question["bos"], question["eos"]
        )
    except TemplateRefusal as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"failed": f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    except Exception as error:  # whatever a template can raise
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"text": text}


def _read(fd: int, size: int) -> bytes:
    """Exactly so many bytes; fewer at the end of the input."""
    data = bytearray()
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            break
        data += part
    return bytes(data)


def _write(answer: dict[str, str]) -> None:
    said = json.dumps(answer).encode()  # in ASCII: an error's text may hold a lone surrogate
    view = memoryview(len(said).to_bytes(4, "little") + said)
    while view:
        view = view[os.write(1, view) :]


def main() -> int:
    """Say that we are ready, then answer until the input ends."""
    bound()
    core_dumps.forbid()
    renderer = TemplateRenderer()
    _write({})
    while len(head := _read(0, 4)) == 4:
        body = _read(0, int.from_bytes(head, "little"))
        _bound_time()
        _write(answer(renderer, json.loads(body)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
