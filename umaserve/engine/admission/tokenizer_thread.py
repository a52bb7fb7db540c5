"""Texts of clients to tokens, beside the ticks, on a stack that is large enough for them.

``llama_tokenize`` is thread-safe and cffi releases the GIL.  For some vocabularies libllama splits
the text with ``std::regex``, which calls itself for every character: a text of 40,000 equal letters
overflows an ordinary stack.  So the stack grows with the text, and a text for which the system
gives no stack is refused.

Texts of interactive requests have a thread of their own.  All others have a second thread, which
gives way to the ticks: neither makes the other wait.

While a text is tokenised the session table says whose it is.  So a text that takes the process
down is blamed and nobody else (`umaserve.server.engines.blame`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from umaserve.engine.native.niceness import LAST, stand_back
from umaserve.llama.ranking import RankPrompt
from umaserve.llama.specials import Specials
from umaserve.wire import messages as m
from umaserve.wire import table as t

STACK_PER_BYTE = 1024  # of a text; between 200 and 420 were needed (``pre`` gpt-4o, x86-64)
USUAL_STACK_BYTES = 512 << 10  # a thread's on macOS; elsewhere it has more
STACK_BYTES = 64 << 20  # of the thread: address space, of which only what is used becomes memory

NOT_WANTED = "nobody waits for it any more"

Asked = m.Submit | m.Tokenize | m.Embed
# tokens of a request; of an `Embed`, those of each of its texts
Finished = tuple[m.Submit | m.Embed | m.Tokens, list[Any], str]


class TokenizerThread:
    """``notify`` is called from the thread when `finished` has something more.  Of a `Tokenize`
    that is its whole answer.

    ``gives_way``: the thread is for texts that nobody waits for.  ``ranks`` makes the prompts of a
    model that ranks.
    """

    def __init__(
        self,
        specials: Specials,
        table: t.SessionTable,
        notify: Callable[[], None],
        *,
        gives_way: bool = False,
        ranks: RankPrompt | None = None,
    ) -> None:
        self._gives_way, self._ranks = gives_way, ranks
        self.finished: deque[Finished] = deque()
        self._specials = specials
        self._table = table
        self._notify = notify
        self._work: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self._forgotten: set[int] = set()  # refs that nobody waits for
        self._given = self._done = 0  # messages
        self._stack_bytes = STACK_BYTES
        if not run_with_stack(self._run, STACK_BYTES):
            self._stack_bytes = USUAL_STACK_BYTES  # longer texts ask for a stack of their own
            threading.Thread(target=self._run, name="tokenizer", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return self._given != self._done

    def put(self, message: Asked) -> None:
        self._given += 1
        self._work.put(message)

    def forget(self, ref: int) -> None:
        """Nobody waits for the answer to that message any more."""
        if self.is_busy:
            self._forgotten.add(ref)
        else:
            self._forgotten.clear()

    def _run(self) -> None:
        if self._gives_way:
            stand_back(LAST)
        while True:
            message = self._work.get()
            self._mark(message, True)
            finished = self._answer(message)
            self._mark(message, False)
            self.finished.append(finished)
            self._done += 1
            self._notify()

    def _answer(self, message: Asked) -> Finished:
        if isinstance(message, m.Submit):
            return message, *self._tokens_of(message)
        try:
            if isinstance(message, m.Tokenize):
                return self._tokens(message), [], ""
            return message, *self._each(message)
        finally:
            self._forgotten.discard(message.ref)

    def _tokens(self, message: m.Tokenize) -> m.Tokens:
        tokens: list[int] = []
        counts: list[int] = []
        for at, text in enumerate([message.text, *message.more]):
            if message.ref in self._forgotten:
                return m.Tokens(message.ref, [], NOT_WANTED)
            special = message.add_special and at == 0
            found, error = self._tokens_of(
                m.Tokenize(message.ref, text, special, message.parse_special)
            )
            if error:
                return m.Tokens(message.ref, [], error)
            tokens += found
            counts.append(len(found))
        return m.Tokens(message.ref, tokens, "", counts)

    def _each(self, message: m.Embed) -> tuple[list[list[int]], str]:
        """Tokens of each text; of those before the first that has none, and why."""
        found: list[list[int]] = []
        for text in message.texts:
            if message.ref in self._forgotten:
                return found, NOT_WANTED
            tokens, error = (text, "") if isinstance(text, list) else self._embedded(message, text)
            if error:
                return found, error
            found.append(tokens)
        return found, ""

    def _embedded(self, message: m.Embed, text: str) -> tuple[list[int], str]:
        query, ranks = message.query, self._ranks
        if query is None or ranks is None:
            return self._on_stack(text, lambda: self._specials.tokenize(text))
        return self._on_stack(query + text, lambda: ranks.tokens(query, text))

    def _mark(self, message: Asked, is_under_way: bool) -> None:
        header, since_ns = self._table.header, time.monotonic_ns() if is_under_way else 0
        if self._gives_way:
            header.other_text_since_ns = since_ns
        else:
            header.text_since_ns = since_ns
        if isinstance(message, m.Submit):
            self._table.in_tick[message.slot] = t.IN_TOKENIZER if is_under_way else 0
        else:
            header.tokenizing = message.ref if is_under_way else 0

    def _tokens_of(self, message: m.Submit | m.Tokenize) -> tuple[list[int], str]:
        return self._on_stack(text_of(message), lambda: made_of(self._specials, message))

    def _on_stack(self, text: str, make: Callable[[], list[int]]) -> tuple[list[int], str]:
        """The tokens that ``make`` makes of a text, on a stack that is large enough; or why not."""
        n_bytes = len(text.encode("utf-8", "replace"))
        if STACK_PER_BYTE * n_bytes <= self._stack_bytes:
            return _or_why(make)
        out: list[tuple[list[int], str]] = []
        done = threading.Event()

        def run() -> None:
            if self._gives_way:
                stand_back(LAST)
            try:
                out.append(_or_why(make))
            finally:
                done.set()

        if not run_with_stack(run, STACK_PER_BYTE * n_bytes):
            return [], f"{n_bytes} bytes are too long: there is no memory for the tokenizer's stack"
        done.wait()
        return out[0] if out else ([], "there is not enough memory")


def run_with_stack(target: Callable[[], None], n_bytes: int) -> bool:
    """Run ``target`` in a new thread with so large a stack; False where there is none."""
    page = 1 << 16
    try:
        usual = threading.stack_size(-(-n_bytes // page) * page)
    except ValueError:
        return False
    try:
        threading.Thread(target=target, name="tokenizer", daemon=True).start()
    except (RuntimeError, MemoryError):
        return False
    finally:
        threading.stack_size(usual)
    return True


def text_of(message: m.Submit | m.Tokenize) -> str:
    return (message.prompt if isinstance(message, m.Submit) else message.text) or ""


def tokens_of(
    specials: Specials, message: m.Submit | m.Tokenize
) -> tuple[list[int], str]:
    """The tokens, or why there are none."""
    return _or_why(lambda: made_of(specials, message))


def made_of(specials: Specials, message: m.Submit | m.Tokenize) -> list[int]:
    """The tokens.  Raises ``ValueError``."""
    text, parse_special = text_of(message), message.parse_special
    if isinstance(message, m.Submit) and message.add_special:
        pictures = [(picture.at, picture.tokens) for picture in message.pictures]
        return specials.tokenize(
            text, add_bos=message.add_bos, parse_special=parse_special, plain=message.plain,
            inserted=pictures,
        )  # fmt: skip
    if message.add_special:
        return specials.tokenize(text, parse_special=parse_special)
    return specials.model.tokenize(text, add_special=False, parse_special=parse_special)


def _or_why(make: Callable[[], list[int]]) -> tuple[list[int], str]:
    try:
        return make(), ""
    except ValueError as error:
        return [], str(error)
