"""Where grammars are followed: ``python -m umaserve.engine.constraints.grammar.process PATH N``.

The process loads the vocabulary of the model at PATH, which has N tokens.  Standard input is a
socket.  Each descriptor that comes over it is one end of a pipe for one grammar, and gets a fork of
this process.  Whatever a grammar does there costs its own request an error, and nobody else
anything.  The system ends a fork that takes too much time or memory.  All forks leave when the
engine has closed its ends.

A process that may have a second thread must not fork.  It follows the grammar itself then, and the
engine starts another process for the next.  Before a grammar begins, `FORKS` or `LEAVES` goes back
over the socket.

Over the pipe comes the constraint, and ``+`` goes back.  For each question (tokens, text) then
comes ``+`` with a mask.  A ``-`` and why may come instead, and the process leaves.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from umaserve.engine.constraints.matcher import CannotBind
from umaserve.llama import LlamaError, Model, load
from umaserve.one_thread import has_one_thread
from umaserve.system.own_process import forbid_core_dumps, name_process
from umaserve.wire import messages as m

from .sampler import GrammarMatcher

MEMORY_BYTES = 256 << 20  # for one grammar, beside what the vocabulary takes
QUESTION_CPU_S = 2
FORKS, LEAVES = b"+", b"-"  # whether the process takes more grammars

_constraint = msgspec.msgpack.Decoder(m.Constraint).decode
_question = msgspec.msgpack.Decoder(tuple[list[int], str]).decode


def main() -> int:
    name_process("uma-grammar")
    forbid_core_dumps()  # answers would stand in them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the front
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    path, n_vocab = sys.argv[1], int(sys.argv[2])
    desk = socket.socket(fileno=0)
    model, why = None, ""
    try:
        model = Model.open(load(), path, vocab_only=True, n_gpu_layers=0)
        if model.n_vocab != n_vocab:
            why = "the model's file has been replaced"
    except (LlamaError, OSError) as error:
        why = f"its vocabulary cannot be read: {error}"
    gc.collect()
    gc.freeze()  # a fork that collects would copy all pages
    while True:
        _, descriptors, _, _ = socket.recv_fds(desk, 1, 1)
        if not descriptors:
            return 0
        # a library for an accelerator may make threads when it is loaded
        forks = not why and has_one_thread()
        desk.send(FORKS if forks else LEAVES)
        with Connection(descriptors[0]) as pipe:
            if why or model is None:
                pipe.send_bytes(b"-" + why.encode())
                return 1
            if not forks or os.fork() == 0:  # noqa: TID251
                desk.close()
                _serve(pipe, model)


def _serve(pipe: Connection, model: Model) -> None:
    """Follow one grammar, then end this process."""
    try:
        _bound_memory()
        with suppress(EOFError, OSError):  # the engine wants no more
            _follow(pipe, model)
    finally:
        os._exit(0)


def _follow(pipe: Connection, model: Model) -> None:
    matcher: GrammarMatcher | None = None
    while True:
        body = pipe.recv_bytes()
        _bound_question()
        try:
            if matcher is None:
                matcher, answer = GrammarMatcher(_constraint(body), model), b""
            else:
                tokens, text = _question(body)
                matcher.accept_text(text)
                matcher.accept(tokens)
                answer = matcher.mask()
        except CannotBind as error:
            pipe.send_bytes(b"-" + str(error).encode("utf-8", "replace"))
            return
        pipe.send_bytes(b"+" + answer)


def _bound_memory() -> None:
    try:
        with open("/proc/self/statm", encoding="ascii") as facts:
            pages = int(facts.read().split()[0])
    except OSError:
        return  # macOS, which bounds no address space either
    most = pages * resource.getpagesize() + MEMORY_BYTES
    with suppress(ValueError, OSError):  # the system's own bound is less
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _bound_question() -> None:
    """The next answer may take so many seconds of a processor; then the system ends us."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + QUESTION_CPU_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


if __name__ == "__main__":
    sys.exit(main())
