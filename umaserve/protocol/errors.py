"""The error codes of the socket protocol: one table, and the exception that carries one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BYTES_A_TOKEN = 4  # of text, to estimate the tokens of what is not tokenised


@dataclass(frozen=True)
class ErrorCode:
    """A row of the table: ``closes`` says whether the server ends the connection afterwards."""

    code: str
    when: str
    closes: bool = False


E_PROTO_001 = "E_PROTO_001"
E_PROTO_002 = "E_PROTO_002"
E_PROTO_003 = "E_PROTO_003"
E_PROTO_004 = "E_PROTO_004"
E_PROTO_005 = "E_PROTO_005"
E_LIMIT_001 = "E_LIMIT_001"
E_LIMIT_002 = "E_LIMIT_002"
STOPPING = "the daemon is shutting down"  # a message of E_LIMIT_002: nobody need wait for it
E_LIMIT_003 = "E_LIMIT_003"
E_LIMIT_004 = "E_LIMIT_004"
E_MODEL_001 = "E_MODEL_001"
E_MODEL_002 = "E_MODEL_002"
E_RUNTIME_001 = "E_RUNTIME_001"
E_RUNTIME_002 = "E_RUNTIME_002"
E_RUNTIME_003 = "E_RUNTIME_003"
E_IO_001 = "E_IO_001"

ERRORS: dict[str, ErrorCode] = {
    row.code: row
    for row in (
        ErrorCode(E_PROTO_001, "not JSON, not an object, not UTF-8", closes=True),
        ErrorCode(
            E_PROTO_002, "frame longer than the cap (refused before its bytes are read)", True
        ),
        ErrorCode(
            E_PROTO_003,
            "a field missing, of the wrong type, out of range, or with an escape that is no "
            "character (a lone surrogate); the message names the field, the event has the `id`",
        ),
        ErrorCode(E_PROTO_004, "`id` already in flight on this connection"),
        ErrorCode(
            E_PROTO_005,
            "a constraint that cannot be met or compiled; refused before anything is generated",
        ),
        ErrorCode(E_LIMIT_001, "prompt longer than the byte cap"),
        ErrorCode(E_LIMIT_002, "queue full or too many sessions"),
        ErrorCode(
            E_LIMIT_003,
            "prompt plus `max_tokens` cannot fit the context, or what the model was trained for",
        ),
        ErrorCode(E_LIMIT_004, "idle too long", closes=True),
        ErrorCode(E_MODEL_001, "no model loaded"),
        ErrorCode(
            E_MODEL_002,
            "the model could not be loaded; the message says why; a model that was serving goes on",
        ),
        ErrorCode(
            E_RUNTIME_001,
            "`llama_decode` failed, or its logits are no numbers; "
            "only the requests of that batch end",
        ),
        ErrorCode(
            E_RUNTIME_002,
            "the model's file is not the one that was loaded; what ran cannot go on",
        ),
        ErrorCode(
            E_RUNTIME_003,
            "the chat layer or the constraint failed or took too long on this request",
        ),
        ErrorCode(E_IO_001, "the client does not read; its unsent bytes passed the cap", True),
    )
}


class Overflow(NamedTuple):
    """Tokens of a prompt that is too long, estimated where it was not tokenised, and of a context.

    ``n_ctx`` is 0 while no model is loaded.
    """

    n_prompt_tokens: int
    n_ctx: int


class ProtocolError(Exception):
    """A message that cannot be served, as the client is told about it.

    ``code`` is a key of ``ERRORS``, ``message`` a sentence that names the field.  ``id`` is the id
    of the message where it was readable.  ``closes``: the connection ends.  ``frames`` holds the
    bodies that were complete before the offending bytes of the same ``feed``.  They are good, and
    are to be handled before the error is sent.  ``overflow`` goes with a prompt that is too long.
    """

    def __init__(
        self,
        code: str,
        message: str,
        closes: bool | None = None,
        id: str | None = None,
        frames: list[bytes] | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.closes = ERRORS[code].closes if closes is None else closes
        self.id = id
        self.frames: list[bytes] = frames or []
        self.overflow = overflow
