"""Follows grammars: ``python -m umaserve.engine.constraints.grammar_process PATH N``.

The process loads the vocabulary of the model at PATH, which has N tokens.  Standard input is a
socket to the engine.  The process follows one grammar at a time, so a grammar that fails there
costs only its own request an error.  The system ends the process where an answer takes too much
time or memory.  It leaves when the engine has closed its end.

The engine sends a constraint, then a question (tokens, text) for each mask, then an empty message
when the answer has ended.  The reply to a constraint is ``+``, the reply to a question is ``+``
and the mask.  A reply ``-`` and a reason refuses either.  A reply ``!`` and a reason says that the
vocabulary cannot be used; then the process leaves.
"""

from __future__ import annotations

import resource
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from umaserve import core_dumps
from umaserve.llama import LlamaError, Model, load
from umaserve.wire import messages as m

from .errors import CannotBind
from .grammar import GrammarMatcher

MEMORY_BYTES = 256 << 20  # for grammars, beside what the vocabulary takes
QUESTION_CPU_S = 2

_constraint = msgspec.msgpack.Decoder(m.Constraint).decode
_question = msgspec.msgpack.Decoder(tuple[list[int], str]).decode


def main() -> int:
    core_dumps.forbid()  # answers would stand in them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the front
    path, n_vocab = sys.argv[1], int(sys.argv[2])
    pipe = Connection(0)
    try:
        model = Model.open(load(), path, vocab_only=True, n_gpu_layers=0)
    except (LlamaError, OSError) as error:
        return _refuse_all(pipe, f"its vocabulary cannot be read: {error}")
    if model.n_vocab != n_vocab:
        return _refuse_all(pipe, "the model's file has been replaced")
    _bound_memory()
    with suppress(EOFError, OSError):  # the engine is gone
        while True:
            _follow(pipe, model, pipe.recv_bytes())
    return 0


def _refuse_all(pipe: Connection, why: str) -> int:
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
        pipe.send_bytes(b"!" + why.encode("utf-8", "replace"))
    return 1


def _follow(pipe: Connection, model: Model, constraint: bytes) -> None:
    """Answer for one grammar, until an empty message ends it."""
    body = constraint
    matcher: GrammarMatcher | None = None
    while body:
        _bound_question()
        try:
            if matcher is None:
                matcher = GrammarMatcher(_constraint(body), model)
                made = b"+"
            else:
                tokens, text = _question(body)
                matcher.accept_text(text)
                matcher.accept(tokens)
                made = b"+" + matcher.mask()
        except CannotBind as error:
            made = b"-" + str(error).encode("utf-8", "replace")
        pipe.send_bytes(made)
        body = pipe.recv_bytes()


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
