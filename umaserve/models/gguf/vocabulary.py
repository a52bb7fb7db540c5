"""Vocabularies with which libllama ends the process, or never ends, over a text."""

from __future__ import annotations


def why_no_vocabulary(tokenizer: object, tokens: set[bytes]) -> str:
    """Why libllama could not turn every text into these `tokens`; empty where it can.

    `tokenizer` is what ``tokenizer.ggml.model`` says.
    """
    if tokenizer == "rwkv":
        return _never_ends(tokens)
    if tokenizer == "llama":
        return _lacks_bytes(tokens)
    return ""


def _lacks_bytes(tokens: set[bytes]) -> str:
    """SentencePiece spells what it has no token for in bytes; libllama ends where one is missing.

    A vocabulary that spells none in bytes is not damaged.
    """
    spelled = [b"<0x%02X>" % byte in tokens for byte in range(256)]
    missing = [byte for byte in range(256) if not spelled[byte] and bytes([byte]) not in tokens]
    if any(spelled) and missing:
        return f"its vocabulary has tokens for bytes and none for the byte {missing[0]:#04x}"
    return ""


def _never_ends(tokens: set[bytes]) -> str:
    """RWKV's tokenizer takes the longest token that a text begins with.

    Where a byte begins tokens and is none, it may find none. Then it adds token 0 again and again,
    until the memory is full.
    """
    begun, whole = set(), set()
    for token in tokens:
        text = _unescaped(token)
        begun.add(text[:1])
        if len(text) == 1:
            whole.add(text)
    missing = sorted(begun - whole - {b""})
    if not missing:
        return ""
    return f"tokens of its vocabulary begin with the byte {missing[0]!r}, which is no token"


_ESCAPES = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def _unescaped(token: bytes) -> bytes:
    """The first two bytes that an RWKV token stands for (``llama_unescape_rwkv_token``)."""
    out, at = b"", 0
    while at < len(token) and len(out) < 2:
        one = token[at : at + 1]
        at += 1
        if one == b"\\":
            one = token[at : at + 1]
            at += 1
            if one == b"x":
                digits = token[at : at + 2]
                at += 2
                one = _byte_of(digits) if len(digits) == 2 else b""
            else:
                one = _ESCAPES.get(one, one)
        out += one
    return out


def _byte_of(digits: bytes) -> bytes:
    value = 0
    for digit in digits:
        signed = digit - 256 if digit > 127 else digit
        value = value << 4 & 0xFF
        value = value + (signed - 87 if signed >= 97 else signed - 48) & 0xFF
    return bytes([value])
