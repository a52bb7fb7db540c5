"""Puts one model file through what the daemon does with it: a look, the check, a load, a token.

The look and the check run in this process and may raise nothing but their own errors. What passes
is loaded in a child made by ``fork``, as the engine loads it, under bounds of memory and time.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from umaserve.engine.model.loaded import Loaded

MIB = 1 << 20
WALL_S = 10.0
CPU_S = 10
LOOK_S = 1.0
_LINUX = sys.platform.startswith("linux")
_TEXT = "Hello, wörld 12\n"
_MOST_TOKENS = 16
_MEMORY = re.compile(r"bad_alloc|alloc|MemoryError|memory", re.IGNORECASE)
_ADDRESS = re.compile(r"0x[0-9a-f]+")

# what `_serve` imports: a child's bound of memory is for its file, and for no compiler
_MODULES = (
    "umaserve.engine.model.boot", "umaserve.engine.model.thread_places",
    "umaserve.engine.model.unused_memory", "umaserve.engine.native.batch",
    "umaserve.llama.context", "umaserve.llama.model", "umaserve.llama.purpose",
    "umaserve.llama.specials", "umaserve.llama.traffic", "cffi",
)  # fmt: skip

# What may come of a file. Those of BAD must not happen; CRASHED ends a child and nothing else.
REFUSED_LOOK, REFUSED_CHECK = "refused by the look", "refused by the check"
REFUSED_WORDS = "refused by the engine"
REFUSED_LIBRARY, TOKEN, NO_NUMBERS = "refused by libllama", "one token", "logits no numbers"
PASSED = "passed the check"  # and was not loaded: that is tried on Linux alone
NO_TOKEN, CRASHED, MEMORY, HANG = "decode refused", "child ended", "memory", "hang"
FAULT = "fault in our code"
OUTCOMES = (
    REFUSED_LOOK, REFUSED_CHECK, PASSED, REFUSED_WORDS, REFUSED_LIBRARY, TOKEN, NO_NUMBERS,
    NO_TOKEN, CRASHED, MEMORY, HANG, FAULT,
)  # fmt: skip
BAD = (MEMORY, HANG, FAULT)


class Outcome(NamedTuple):
    """What came of a file, the words for it, seconds and the most bytes beside the weights."""

    what: str
    detail: str
    seconds: float = 0.0
    peak: int = 0


def allowed_look(size: int) -> int:
    """Bytes that the look and the check may take for a file: strings become Python objects."""
    return 2 * MIB + 24 * size


def allowed_load(size: int) -> int:
    """Bytes that a load and a token may take beside what the process had, with 256 cells."""
    return 64 * MIB + 16 * size


class Trials:
    """Tries files in forks; has loaded libllama, but no model, which may make threads."""

    def __init__(self, whole: Path) -> None:
        """*whole* is a model that can be served; it is tried first."""
        if not _LINUX:
            return
        from umaserve.jit.cache import use_jit_cache

        use_jit_cache()
        for name in _MODULES:
            importlib.import_module(name)
        from umaserve import llama
        from umaserve.wire.table import PIECE_BYTES

        llama.load()
        self._piece_bytes = PIECE_BYTES
        self._said = os.memfd_create("said")
        self._pages = os.sysconf("SC_PAGE_SIZE")
        outcome = self.run(whole)
        if outcome.what != TOKEN:
            raise RuntimeError(f"{whole} cannot be tried: {outcome.what}, {outcome.detail}")

    def run(self, path: Path) -> Outcome:
        """Everything, until something refuses the file."""
        began = time.monotonic()
        try:
            outcome = look_and_check(path) or self._load(path)
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            outcome = Outcome(FAULT, f"{type(error).__name__}: {error}")
        return outcome._replace(seconds=time.monotonic() - began)

    def _load(self, path: Path) -> Outcome:
        if not _LINUX:
            # a process that knows Metal does not survive a fork, and nothing bounds its memory
            return Outcome(PASSED, "")
        size = path.stat().st_size
        os.ftruncate(self._said, 0)
        from umaserve.one_thread import require_one_thread

        read, write = os.pipe()
        sys.stdout.flush()
        require_one_thread()
        pid = os.fork()  # noqa: TID251
        if pid == 0:
            try:
                os.close(read)
                self._be_child(str(path), size, write)
            finally:
                os._exit(70)
        os.close(write)
        answer, hung = _wait_for(read, WALL_S)
        os.close(read)
        if hung:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        before, _, answer = answer.partition(b"\n")
        peak = max(usage.ru_maxrss * 1024 - int(before or 0), 0)
        return self._judge(answer, hung, status, peak, size)

    def _be_child(self, path: str, size: int, write: int) -> None:
        os.dup2(self._said, 2)
        os.lseek(2, 0, os.SEEK_SET)
        # what is shared with the parent and not touched does not count as the child's
        os.write(write, b"%d\n" % (_statm(1) * self._pages))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
        most = _statm(0) * self._pages + self._piece_bytes + allowed_load(size)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            words = _serve(path)
        except MemoryError:
            words = f"{MEMORY}\nMemoryError in Python"
        except OSError as error:
            what = MEMORY if error.errno == errno.ENOMEM else FAULT
            words = f"{what}\n{error}"
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            words = f"{FAULT}\n{type(error).__name__}: {error}"
        os.write(write, words.encode("utf-8", "replace")[:4000])
        os._exit(0)

    def _judge(self, answer: bytes, hung: bool, status: int, peak: int, size: int) -> Outcome:
        what, _, detail = answer.decode("utf-8", "replace").partition("\n")
        said = os.pread(self._said, 65536, 0).decode("utf-8", "replace")
        code = os.waitstatus_to_exitcode(status)
        if hung or code == -signal.SIGXCPU:
            what, detail = HANG, said[-200:]
        elif not answer:
            name = signal.Signals(-code).name if code < 0 else f"status {code}"
            what, detail = CRASHED, f"{name} {last_words(said)}"
        no_room = _MEMORY.search(detail) and what in (REFUSED_LIBRARY, CRASHED)
        if no_room or peak > allowed_load(size):
            why = f"{detail} {last_words(said)}"
            what, detail = MEMORY, f"{peak // MIB} MiB for {size} bytes; {why}"
        return Outcome(what, detail, peak=peak)


def look_and_check(path: Path) -> Outcome | None:
    """What the front and the engine see in the header; None where both let the file pass."""
    size = path.stat().st_size
    began = time.monotonic()
    try:
        with _memory_bound(allowed_look(size)):
            refused = _look(path)
    except MemoryError:
        return Outcome(MEMORY, f"the header of {size} bytes took {allowed_look(size)} and more")
    took = time.monotonic() - began
    if took > LOOK_S:
        return Outcome(HANG, f"the header took {took:.1f} s")
    return refused


def _look(path: Path) -> Outcome | None:
    from umaserve.config import Config
    from umaserve.models.gguf.faults import check_gguf
    from umaserve.models.gguf.header import GGUFError
    from umaserve.models.needs import look_at
    from umaserve.server.engines.start.model_start import why_not_served

    try:
        refusal = why_not_served(look_at(str(path)), Config(n_ctx=64))
    except GGUFError as error:
        refusal = str(error)
    if refusal:
        return Outcome(REFUSED_LOOK, refusal)
    try:
        check_gguf(path)
    except GGUFError as error:
        return Outcome(REFUSED_CHECK, str(error))
    return None


@contextlib.contextmanager
def _memory_bound(count: int) -> Iterator[None]:
    """This process maps no more than `count` bytes more, or gets MemoryError; on Linux alone."""
    if not _LINUX:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = _statm(0) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _serve(path: str) -> str:
    """The engine's steps with a file: outcome and words, separated by a newline."""
    from umaserve import llama
    from umaserve.engine.model import boot
    from umaserve.engine.model.loaded import CannotLoad
    from umaserve.llama.traffic import Traffic
    from umaserve.models.gguf.faults import check_gguf
    from umaserve.wire import messages as m
    from umaserve.wire import table as t

    start = m.Start(model_path=path, n_slots=1, n_ctx=64, n_seq=1, n_threads=1, gpu_layers=0)
    pieces = os.memfd_create("pieces")
    os.ftruncate(pieces, t.PIECE_BYTES)
    control = SimpleNamespace(send=lambda _: None, closed=False)
    try:
        loaded = boot.load(start, pieces, control, lambda: None)  # type: ignore[arg-type]
        Traffic.of(check_gguf(loaded.model.path))
        m.encode(boot.describe(start, loaded, 0.0))
        words = _one_token(loaded)
        loaded.close()
    except (CannotLoad, llama.LlamaError) as error:
        by_library = re.search("cannot be loaded:|KV cells could be made", str(error))
        return f"{REFUSED_LIBRARY if by_library else REFUSED_WORDS}\n{error}"
    finally:
        os.close(pieces)
    return words


def _one_token(loaded: Loaded) -> str:
    import numpy as np

    from umaserve.llama.specials import Specials

    lib, ffi = loaded.library.lib, loaded.library.ffi
    prompt = Specials(loaded.model).tokenize(_TEXT)[:_MOST_TOKENS] or [0]
    batch = ffi.new("struct llama_batch *")
    tokens = ffi.new("llama_token[]", prompt)
    batch.n_tokens, batch.token = len(prompt), tokens
    status = lib.uma_decode(loaded.context.pointer, batch)
    row = lib.llama_get_logits_ith(loaded.context.pointer, -1) if status == 0 else ffi.NULL
    if row == ffi.NULL:
        return f"{NO_TOKEN}\nllama_decode answers {status}: {loaded.library_log_tail()}"
    logits = np.frombuffer(ffi.buffer(row, 4 * loaded.n_vocab), np.float32)
    if np.isnan(logits).any():
        return NO_NUMBERS
    piece = loaded.model.token_to_piece_bytes(int(logits.argmax()), special=True)
    return f"{TOKEN}\n{piece!r}"


def last_words(said: str) -> str:
    """The line of stderr that says why a process ended itself, without addresses."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [x for x in lines if re.search(r"GGML_ASSERT|GGML_ABORT|what\(\)|: .*!", x)]
    words = (telling or lines or [""])[-1]
    return _ADDRESS.sub("0x", words)[:300]


def _wait_for(fd: int, seconds: float) -> tuple[bytes, bool]:
    """What a child writes until it ends, and whether it took longer than it may."""
    deadline = time.monotonic() + seconds
    data = b""
    while True:
        ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return data, True
        chunk = os.read(fd, 65536)
        if not chunk:
            return data, False
        data += chunk


def _statm(column: int) -> int:
    """Pages of this process: mapped (0), resident (1)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[column])
