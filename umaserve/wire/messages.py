"""Messages between front and engine over the control socket.

A message is a msgspec struct, encoded as MessagePack, behind a ``uint32`` little-endian length.
Tokens do not travel here: they lie in the session table (``umaserve.wire.table``).  For each tick
that changed something, the engine writes one byte to the wake pipe.  Both processes come from the
same installation, so there is no version negotiation.

Messages of an engine's start are in `umaserve.wire.start`, those of requests in
`umaserve.wire.requests`.
"""

from __future__ import annotations

import msgspec

from umaserve.texts import path_of, printable_in, sendable_path
from umaserve.wire import requests as r
from umaserve.wire import start as s
from umaserve.wire.requests import *  # noqa: F403 - all messages have their names here
from umaserve.wire.start import *  # noqa: F403
from umaserve.wire.states import LANE_BACKGROUND as LANE_BACKGROUND
from umaserve.wire.states import LANE_INTERACTIVE as LANE_INTERACTIVE

# --- front -> engine -----------------------------------------------------------------------------


class GiveWay(msgspec.Struct, tag="give_way"):
    """Somebody waits for another model's engine, or nobody does any more (not ``on``)."""

    on: bool


class Tokenize(msgspec.Struct, tag="tokenize", omit_defaults=True):
    """Texts to tokens; `Tokens` is the answer.  ``add_special`` holds for ``text`` alone."""

    ref: int
    text: str
    add_special: bool = False
    parse_special: bool = True
    more: list[str] = []


class Embed(msgspec.Struct, tag="embed", omit_defaults=True):
    """Texts, or their token ids, to vectors; `Embedded` is the answer.

    ``query``: the texts are documents, each of which gets a score for this query instead.
    ``truncate``: a text that is too long loses its end, else it is refused.  A model that generates
    takes one text at a time.
    """

    ref: int
    texts: list[str | list[int]]
    query: str | None = None
    truncate: bool = False


class Forget(msgspec.Struct, tag="forget"):
    """Nobody waits for the answer to `Tokenize` or `Embed` any more."""

    ref: int


class AskCache(msgspec.Struct, tag="ask_cache"):
    """Request for the prefix cache's contents and last lookups; `CacheReport` is the answer."""

    ref: int


class Shutdown(msgspec.Struct, tag="shutdown"):
    """Leave now: free the model and exit 0.  (End of file on the control socket means the same.)"""


# --- engine -> front -----------------------------------------------------------------------------


class Tokens(msgspec.Struct, tag="tokens", omit_defaults=True):
    """``tokens`` of all texts together; ``counts`` are those of each."""

    ref: int
    tokens: list[int]
    error: str = ""
    counts: list[int] = []


class Embedded(msgspec.Struct, tag="embedded", omit_defaults=True):
    """``vectors``: float32, one of length 1 for each text; of documents, one score for each.

    ``n_tokens``: of all texts.  Else ``error`` says why text number ``at`` has no vector, with its
    ``code``.  A text that is too long has ``n_tokens``, of which there may be ``most``.
    """

    ref: int
    vectors: bytes = b""
    n_tokens: int = 0
    at: int = 0
    most: int = 0
    code: str = ""
    error: str = ""


class CachedOf(msgspec.Struct):
    """Contents of the prefix cache for one domain (`Submit.domain`), in memory and on disk."""

    domain: str
    entries: int = 0
    tokens: int = 0
    bytes: int = 0
    disk_bytes: int = 0


class CachedText(msgspec.Struct):
    """A text of which all ``tokens`` are kept; other texts may share some of its ``bytes``.

    ``begins``: its first tokens, none of a private one.
    """

    domain: str
    tokens: int
    bytes: int
    hits: int
    begins: list[int]


class CacheAnswer(msgspec.Struct):
    """Result of a prompt's lookup in the prefix cache.

    ``known`` of the prompt's tokens were kept when it began; ``cached`` of its tokens were copied.
    ``before`` are the last of the known tokens.  Behind these, ``kept`` follow in another text and
    ``wanted`` in the prompt.  All three are ids, and empty where the text is private.  ``domain``
    is None where the request did not ask the cache.
    """

    serial: int
    domain: str | None
    prompt: int
    cached: int
    known: int = 0
    before: list[int] = []
    kept: list[int] = []
    wanted: list[int] = []


class CacheReport(msgspec.Struct, tag="cache_report", omit_defaults=True):
    """``why_off``: why nothing is kept; empty where something may be.  Bytes are of memory.

    ``domains`` have the largest first, ``texts`` the most used, ``prompts`` the newest.
    """

    ref: int
    why_off: str = ""
    entries: int = 0
    bytes: int = 0
    most_bytes: int = 0
    domains: list[CachedOf] = []
    texts: list[CachedText] = []
    prompts: list[CacheAnswer] = []


PRIVATE = "\0"  # in a domain: in front of the session that it is of
ADAPTED = "\0lora\0"  # in a domain: in front of the digest of a set of adapters
ALONE = 2 * PRIVATE  # a domain that begins so is of one parked request, and told to nobody


class Log(msgspec.Struct, tag="log"):
    level: str  # "debug", "info", "warn", "error"
    text: str


ToEngine = (
    s.Start | r.Submit | r.Cancel | r.SetLane | GiveWay | r.Shift | r.Release | Tokenize | Embed
    | Forget | AskCache | Shutdown
)  # fmt: skip
ToFront = (
    s.LoadProgress | s.Ready | s.Threads | s.LoadFailed | r.Rejected | r.Failed | Tokens
    | Embedded | CacheReport | r.PromptLogprobs | Log
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_front = msgspec.msgpack.Decoder(ToFront)


def encode(message: ToEngine | ToFront) -> bytes:
    """Length-prefixed bytes of one message.

    A path of the file system that is no UTF-8 arrives as it was in ``Start.model_path``, and with
    U+FFFD in texts for people.
    """
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        texts = {k: printable_in(v) for k, v in msgspec.structs.asdict(message).items()}
        if isinstance(message, s.Start):
            texts["model_path"] = sendable_path(message.model_path)
        body = _encoder.encode(type(message)(**texts))
    return len(body).to_bytes(4, "little") + body


NUDGE = (0).to_bytes(4, "little")  # an empty message: wakes the engine and says nothing


class Channel:
    """Bytes in, messages out, for one direction of the control socket (sans-I/O)."""

    def __init__(self, side: str) -> None:
        self._decode = (_to_engine if side == "engine" else _to_front).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[ToEngine | ToFront]:
        """Append ``data`` and return every message that is complete, in order."""
        buffer = self._buffer
        buffer += data
        out: list[ToEngine | ToFront] = []
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "little")
            end = start + 4 + size
            if len(buffer) < end:
                break
            if not size:
                start = end
                continue
            message = self._decode(bytes(buffer[start + 4 : end]))
            if isinstance(message, s.Start):
                path = path_of(message.model_path)
                message = msgspec.structs.replace(message, model_path=path)
            out.append(message)
            start = end
        if start:
            del buffer[:start]
        return out
