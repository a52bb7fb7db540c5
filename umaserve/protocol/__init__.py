"""The socket protocol, sans-I/O: bytes in, typed messages out; events in, frames out.

``FrameDecoder`` splits a stream into bodies, ``parse_message`` makes a typed request of a body, and
the ``*_event`` functions encode the answers as whole frames.  ``docs/PROTOCOL.md`` describes the
wire for readers who have only a socket.
"""

from __future__ import annotations

from umaserve.protocol.errors import (
    E_IO_001,
    E_LIMIT_001,
    E_LIMIT_002,
    E_LIMIT_003,
    E_LIMIT_004,
    E_MODEL_001,
    E_MODEL_002,
    E_PROTO_001,
    E_PROTO_002,
    E_PROTO_003,
    E_PROTO_004,
    E_RUNTIME_001,
    ERRORS,
    ErrorCode,
    ProtocolError,
)
from umaserve.protocol.events import (
    REASONS,
    Timings,
    TokenEncoder,
    Usage,
    admin_event,
    eos_event,
    error_event,
    token_event,
)
from umaserve.protocol.fields import PRIORITIES, ROLES, Limits
from umaserve.protocol.frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    FrameDecoder,
    encode_frame,
    frame,
)
from umaserve.protocol.requests import (
    Cancel,
    ChatMessage,
    Generate,
    Info,
    Load,
    Message,
    Metrics,
    Ping,
    SamplingOptions,
    SetPriority,
    Slo,
    TokenizeRequest,
    Unload,
    parse_message,
)

__all__ = [
    "ERRORS",
    "E_IO_001",
    "E_LIMIT_001",
    "E_LIMIT_002",
    "E_LIMIT_003",
    "E_LIMIT_004",
    "E_MODEL_001",
    "E_MODEL_002",
    "E_PROTO_001",
    "E_PROTO_002",
    "E_PROTO_003",
    "E_PROTO_004",
    "E_RUNTIME_001",
    "HEADER_BYTES",
    "MAX_FRAME_BYTES",
    "PRIORITIES",
    "REASONS",
    "ROLES",
    "Cancel",
    "ChatMessage",
    "ErrorCode",
    "FrameDecoder",
    "Generate",
    "Info",
    "Limits",
    "Load",
    "Message",
    "Metrics",
    "Ping",
    "ProtocolError",
    "SamplingOptions",
    "SetPriority",
    "Slo",
    "Timings",
    "TokenEncoder",
    "TokenizeRequest",
    "Unload",
    "Usage",
    "admin_event",
    "encode_frame",
    "eos_event",
    "error_event",
    "frame",
    "parse_message",
    "token_event",
]
