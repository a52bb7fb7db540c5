"""Framing: ``uint32`` little-endian length, then that many bytes of UTF-8 JSON.

Bytes in, bodies out; no socket in here.  There are two rules.  A frame's length is judged before
any of its body is kept.  After an error the decoder stays broken, since nothing behind the error
can be trusted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from umaserve.protocol.errors import E_PROTO_002, ProtocolError
from umaserve.texts import printable_in

HEADER_BYTES = 4
MAX_FRAME_BYTES = 1024 * 1024

_encode = msgspec.json.Encoder().encode


def frame(body: bytes) -> bytes:
    """``body`` (UTF-8 JSON already) behind its length."""
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def encode_frame(obj: Any) -> bytes:
    """``obj`` (a dict or a msgspec struct) as one frame; NaN and infinities become ``null``.

    Bytes of a path that are no character become U+FFFD.
    """
    try:
        return frame(_encode(obj))
    except UnicodeEncodeError:
        return frame(_encode(printable_in(obj)))


class FrameDecoder:
    """Splits a byte stream into frame bodies, whatever the chunks it comes in.

    Holds at most one unfinished frame, so at most ``max_frame_bytes`` + 4 bytes between calls.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._refusal = ""  # not the error itself: its traceback would keep what was fed

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame that are held back (0 at a frame boundary)."""
        return len(self._buffer)

    def drop(self) -> None:
        """Forget an unfinished frame; nothing more is to be fed."""
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Append ``data``; return the body of every frame that is complete now, in order.

        Raises ``ProtocolError`` (``E_PROTO_002``, closes) as soon as a header announces more than
        ``max_frame_bytes``; its ``frames`` holds the bodies that came before that header.
        """
        if self._refusal:
            raise ProtocolError(E_PROTO_002, self._refusal)
        buffer = self._buffer
        buffer += data
        out: list[bytes] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            size = int.from_bytes(buffer[start : start + HEADER_BYTES], "little")
            if size > self.max_frame_bytes:
                self.drop()
                self._refusal = f"frame of {size} bytes; the limit is {self.max_frame_bytes}"
                raise ProtocolError(E_PROTO_002, self._refusal, frames=out)
            end = start + HEADER_BYTES + size
            if len(buffer) < end:
                break
            out.append(bytes(buffer[start + HEADER_BYTES : end]))
            start = end
        if start:
            del buffer[:start]
        return out
