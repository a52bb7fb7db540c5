"""The engine's end of the process that follows grammars (`grammar.process`)."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from umaserve.engine.constraints.matcher import CannotBind, Matcher
from umaserve.llama import Model
from umaserve.system.own_python import run_module
from umaserve.wire import messages as m

from .process import FORKS

START_S = 30.0  # for the process to load the vocabulary, and to compile the first grammar
ANSWER_S = 10.0  # a mask that takes longer than a few seconds has ended its request already
ENDED = "it takes too much time or memory, or libllama cannot follow it"

_encode = msgspec.msgpack.encode


class Grammars:
    """Starts the process at the first grammar, and again where it has ended or takes no more.

    Safe for several threads.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._desk: socket.socket | None = None
        self._left: list[subprocess.Popen[bytes]] = []  # that were left and have not ended

    def open(self) -> Connection:
        """A pipe to a process for one grammar.  Raises `CannotBind`."""
        try:
            ours, theirs = Pipe()
        except OSError as error:
            raise CannotBind(f"there is no pipe for it ({error})") from None
        with theirs, self._lock:
            for _ in range(2):  # the process may have ended since it was used
                try:
                    desk = self._running()
                    socket.send_fds(desk, [b"x"], [theirs.fileno()])
                    answer = desk.recv(1)
                    if answer != FORKS:
                        self._leave()
                    if answer:
                        return ours
                    why = OSError("it has ended")
                except OSError as error:
                    self._leave()
                    why = error
        ours.close()
        raise CannotBind(f"there is no process for it ({why})")

    def _running(self) -> socket.socket:
        if self._desk is not None and self._process is not None and self._process.poll() is None:
            return self._desk
        self._leave()
        ours, theirs = socket.socketpair()
        ours.settimeout(START_S)
        module = f"{__package__}.process"
        command = [*run_module(module), str(self._model.path), str(self._model.n_vocab)]
        # the same library; it is to find no accelerator, and libraries are to start no threads
        own = {"UMA_LLAMA_BUILD": str(self._model.library.build.path), "OPENBLAS_NUM_THREADS": "1"}
        hidden = {"CUDA_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # libllama prints there what it refuses
                env={**os.environ, **own, **hidden},
            )
        self._desk = ours
        return ours

    def _leave(self) -> None:
        """Ask the process for nothing more; it ends once it follows no grammar."""
        if self._desk is not None:
            self._desk.close()
        if self._process is not None:
            self._left.append(self._process)
        self._left = [process for process in self._left if process.poll() is None]
        self._desk = self._process = None


class GrammarFollower(Matcher):
    """A grammar in GBNF, followed by a process of its own."""

    def __init__(self, constraint: m.Constraint, grammars: Grammars) -> None:
        self._pipe = grammars.open()
        self._tokens: list[int] = []  # that it has not been told
        self._text = ""  # before them
        try:
            self._ask(_encode(constraint), START_S)
        except CannotBind:
            self.close()
            raise

    def accept(self, tokens: list[int]) -> None:
        self._tokens += tokens

    def accept_text(self, text: str) -> None:
        self._text += text

    def fill(self, mask: np.ndarray) -> bool:
        question = _encode((self._tokens, self._text))
        self._tokens, self._text = [], ""
        mask[:] = np.frombuffer(self._ask(question, ANSWER_S), np.int32)
        return True

    def close(self) -> None:
        self._pipe.close()

    def _ask(self, body: bytes, limit_s: float) -> bytes:
        """Return the answer of the grammar's process to ``body``.  Raises `CannotBind`."""
        try:
            self._pipe.send_bytes(body)
            if not self._pipe.poll(limit_s):
                raise CannotBind(ENDED)
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise CannotBind(ENDED) from None
        if answer[:1] == b"-":
            raise CannotBind(answer[1:].decode("utf-8", "replace"))
        return answer[1:]
