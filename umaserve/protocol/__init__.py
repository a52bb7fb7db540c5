"""The socket protocol, sans-I/O: bytes in, typed messages out; events in, frames out.

``FrameDecoder`` splits a stream into bodies, ``parse_message`` makes a typed request of a body, and
the ``*_event`` functions encode the answers as whole frames.  ``docs/PROTOCOL.md`` describes the
wire for readers who have only a socket.
"""

# ruff: noqa: F401 - the names that other rooms take from here
from __future__ import annotations

from umaserve.protocol.errors import (
    BYTES_A_TOKEN,
    E_IO_001,
    E_LIMIT_001,
    E_LIMIT_002,
    E_LIMIT_003,
    E_LIMIT_004,
    E_MODEL_001,
    E_MODEL_002,
    E_PROTO_003,
    E_PROTO_004,
    E_PROTO_005,
    E_RUNTIME_001,
    E_RUNTIME_002,
    E_RUNTIME_003,
    ERRORS,
    STOPPING,
    Overflow,
    ProtocolError,
)
from umaserve.protocol.events import (
    REASONS,
    Beginning,
    Ending,
    Rated,
    Timings,
    TokenEncoder,
    TopLogprob,
    Usage,
    admin_event,
    begin_event,
    delta_event,
    echo_event,
    eos_event,
    error_event,
    progress_event,
    prompt_logprobs_event,
    rated_fields,
)
from umaserve.protocol.frames import FrameDecoder, encode_frame
from umaserve.protocol.generate import Limits
from umaserve.protocol.messages import (
    AdminMessage,
    AskAdapters,
    AskCache,
    AskModels,
    Cancel,
    DetokenizeRequest,
    Embed,
    Generate,
    Info,
    Load,
    Metrics,
    Ping,
    Render,
    Rerank,
    SetPriority,
    TokenizeRequest,
    Unload,
)
from umaserve.protocol.requests import parse_message
from umaserve.protocol.tables.chat_fields import ROLES
from umaserve.protocol.tables.fields import WITHOUT_KEY
