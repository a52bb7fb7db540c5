"""The socket protocol, sans-I/O: bytes in, typed messages out; events in, frames out.

``FrameDecoder`` splits a stream into bodies, ``parse_message`` makes a typed request of a body, and
the ``*_event`` functions encode the answers as whole frames.  ``docs/PROTOCOL.md`` describes the
wire for readers who have only a socket.  Errors, events and messages have all their names here.
"""

# ruff: noqa: F401, F403 - the names that other rooms take from here
from __future__ import annotations

from umaserve.protocol.errors import *
from umaserve.protocol.events import *
from umaserve.protocol.frames import FrameDecoder, encode_frame
from umaserve.protocol.generate import Limits
from umaserve.protocol.messages import *
from umaserve.protocol.requests import parse_message
from umaserve.protocol.tables.chat_fields import ROLES
from umaserve.protocol.tables.fields import WITHOUT_KEY
