"""The error codes of the socket protocol, and the exception that carries one of them.

The table in ``docs/PROTOCOL.md`` says when each is sent.
"""

from __future__ import annotations

from typing import NamedTuple

BYTES_A_TOKEN = 4  # of text, to estimate the tokens of what is not tokenised

E_PROTO_001 = "E_PROTO_001"  # not JSON, not an object, not UTF-8
E_PROTO_002 = "E_PROTO_002"  # a frame longer than the cap
E_PROTO_003 = "E_PROTO_003"  # a field is missing or wrong
E_PROTO_004 = "E_PROTO_004"  # the id is in flight already
E_PROTO_005 = "E_PROTO_005"  # a constraint that cannot be met or compiled
E_LIMIT_001 = "E_LIMIT_001"  # a prompt longer than the byte cap
E_LIMIT_002 = "E_LIMIT_002"  # queue full or too many sessions
STOPPING = "the daemon is shutting down"  # a message of E_LIMIT_002: nobody need wait for it
E_LIMIT_003 = "E_LIMIT_003"  # it cannot fit the context
E_LIMIT_004 = "E_LIMIT_004"  # idle too long
E_MODEL_001 = "E_MODEL_001"  # no model is loaded
E_MODEL_002 = "E_MODEL_002"  # a model could not be loaded
E_RUNTIME_001 = "E_RUNTIME_001"  # libllama failed on this batch
E_RUNTIME_002 = "E_RUNTIME_002"  # the model's file has changed
E_RUNTIME_003 = "E_RUNTIME_003"  # the chat layer or a constraint failed
E_IO_001 = "E_IO_001"  # the client does not read

ERRORS = (
    E_PROTO_001, E_PROTO_002, E_PROTO_003, E_PROTO_004, E_PROTO_005, E_LIMIT_001, E_LIMIT_002,
    E_LIMIT_003, E_LIMIT_004, E_MODEL_001, E_MODEL_002, E_RUNTIME_001, E_RUNTIME_002,
    E_RUNTIME_003, E_IO_001,
)  # fmt: skip
CLOSING = (E_PROTO_001, E_PROTO_002, E_LIMIT_004, E_IO_001)  # the connection ends after them


class Overflow(NamedTuple):
    """Tokens of a prompt that is too long, estimated where it was not tokenised, and of a context.

    ``n_ctx`` is 0 while no model is loaded.
    """

    n_prompt_tokens: int
    n_ctx: int


class ProtocolError(Exception):
    """A message that cannot be served, as the client is told about it.

    ``code`` is one of ``ERRORS``, ``message`` a sentence that names the field.  ``id`` is the id
    of the message where it was readable.  ``closes``: the connection ends.  ``frames`` holds the
    bodies that were complete before the offending bytes of the same ``feed``.  They are good, and
    are to be handled before the error is sent.  ``overflow`` goes with a prompt that is too long.
    """

    def __init__(
        self,
        code: str,
        message: str,
        closes: bool = False,
        id: str | None = None,
        frames: list[bytes] | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.closes = closes or code in CLOSING
        self.id = id
        self.frames: list[bytes] = frames or []
        self.overflow = overflow


def too_long(message: str, size: int, n_ctx: int) -> ProtocolError:
    """Return the error for a prompt of so many bytes, for a context of ``n_ctx`` tokens."""
    return ProtocolError(E_LIMIT_001, message, overflow=Overflow(size // BYTES_A_TOKEN, n_ctx))
