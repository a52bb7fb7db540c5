"""The engine's side of the processes that follow grammars (`grammar_process`)."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from umaserve.own_python import run_module
from umaserve.wire import messages as m

from .errors import CannotBind

if TYPE_CHECKING:
    from umaserve.llama import Model

START_S = 30.0  # for a process to load the vocabulary and to compile a grammar
ANSWER_S = 10.0  # a mask that takes longer than a few seconds has ended its request already
MOST_IDLE = 2  # processes that are kept for the next grammars
ENDED = "it takes too much time or memory, or libllama cannot follow it"

_encode = msgspec.msgpack.encode


class GrammarProcess:
    """A process with the vocabulary of a model, for one grammar at a time."""

    def __init__(self, model: Model) -> None:
        """Start the process, which then loads the vocabulary.  Raises ``OSError``."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            module = f"{__package__}.grammar_process"
            command = [*run_module(module), str(model.path), str(model.n_vocab)]
            # the same library; it is to find no accelerator, and libraries are to start no threads
            own = {"UMA_LLAMA_BUILD": str(model.library.build.path), "OPENBLAS_NUM_THREADS": "1"}
            hidden = {"CUDA_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # libllama prints there what it refuses
                env={**os.environ, **own, **hidden},
            )
            self._pipe = Connection(ours.detach())

    @property
    def is_sound(self) -> bool:
        """Whether the process runs and owes no answer."""
        return not self._pipe.closed and self._process.poll() is None and not self._pipe.poll()

    def ask(self, body: bytes, limit_s: float) -> bytes:
        """Return the answer to a constraint or a question.

        Raises `CannotBind`.  The process is ended where no answer comes in time.
        """
        try:
            self._pipe.send_bytes(body)
            answer = self._pipe.recv_bytes() if self._pipe.poll(limit_s) else b""
        except (EOFError, OSError):
            answer = b""
        if answer[:1] != b"+":
            if answer[:1] != b"-":
                self.end()
            raise CannotBind(answer[1:].decode("utf-8", "replace") or ENDED)
        return answer[1:]

    def forget(self) -> None:
        """Say that the grammar is followed no more."""
        if not self._pipe.closed:
            try:
                self._pipe.send_bytes(b"")
            except OSError:
                self.end()

    def end(self) -> None:
        """End the process, whatever it computes."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()


class Grammars:
    """The processes for grammars of one model; the first starts at the first grammar.

    Once a process follows a grammar, another is started for the next.  Safe for several threads.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._idle: list[GrammarProcess] = []

    def take(self) -> GrammarProcess:
        """Return a process for one grammar, to be given back.  Raises `CannotBind`."""
        with self._lock:
            while self._idle:
                process = self._idle.pop(0)  # the longest idle has its vocabulary
                if process.is_sound:
                    return process
                process.end()
        try:
            return GrammarProcess(self._model)
        except OSError as error:
            raise CannotBind(f"there is no process for it ({error})") from None

    def give_back(self, process: GrammarProcess) -> None:
        """End the grammar of a process, and keep the process for another if it is sound."""
        process.forget()
        with self._lock:
            if process.is_sound and len(self._idle) < MOST_IDLE:
                self._idle.append(process)
                return
        process.end()

    def prepare(self) -> None:
        """Start a process for the next grammar, if none is idle."""
        with self._lock:
            if self._idle:
                return
            try:
                self._idle.append(GrammarProcess(self._model))
            except OSError:
                return  # the next grammar says so, if that is still true


class GrammarFollower:
    """A `Matcher`: a grammar in GBNF, followed by a process of its own."""

    def __init__(self, constraint: m.Constraint, grammars: Grammars) -> None:
        self._grammars = grammars
        self._process = grammars.take()
        self._tokens: list[int] = []  # that it has not been told
        self._text = ""  # before them
        try:
            self._process.ask(_encode(constraint), START_S)
        except CannotBind:
            self.close()
            raise
        grammars.prepare()

    def accept(self, tokens: list[int]) -> None:
        self._tokens += tokens

    def accept_text(self, text: str) -> None:
        self._text += text

    def fill(self, mask: np.ndarray) -> bool:
        question = _encode((self._tokens, self._text))
        self._tokens, self._text = [], ""
        mask[:] = np.frombuffer(self._process.ask(question, ANSWER_S), np.int32)
        return True

    def copy(self) -> Unfollowed:
        return Unfollowed()

    def close(self) -> None:
        self._grammars.give_back(self._process)


class Unfollowed:
    """A copy of a grammar that is followed elsewhere: nobody knows what may be next."""

    def accept(self, tokens: list[int]) -> None:
        pass

    def accept_text(self, text: str) -> None:
        pass

    def fill(self, mask: np.ndarray) -> bool:
        raise CannotBind("it is followed elsewhere")

    def copy(self) -> Unfollowed:
        return self

    def close(self) -> None:
        pass
