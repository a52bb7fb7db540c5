"""Client of a request, and the program whose share the request takes."""

from __future__ import annotations

import zlib
from typing import Protocol

from umaserve.protocol import WITHOUT_KEY, Generate


class Client(Protocol):
    """Identity of a client, as far as it is known."""

    @property
    def label(self) -> str: ...  # of the connection, for logs and ``info``

    @property
    def app(self) -> str: ...  # what is known of the client

    @property
    def program(self) -> int: ...  # the process that connected

    @property
    def relays(self) -> bool: ...  # it asks for several programs, which its requests name


def sharer_of(client: Client, key: str, app: str | None) -> int:
    """Return the program whose share is taken: the process that connected.

    A client that asks for several programs names one; its number is below 0.
    """
    if client.relays and is_key(key):
        return number_of("key", key)
    return number_of("app", app) if client.relays and app is not None else client.program


def number_of(kind: str, name: str) -> int:
    return -1 - (zlib.crc32(f"{kind} {name}".encode()) >> 1)


def is_key(key: str) -> bool:
    return key not in ("", WITHOUT_KEY)


def sharer_name(message: Generate, client: Client) -> str:
    """The name whose share a request takes: nobody can take another's by a name of their choice.

    Over HTTP the API key's, else the app's, as without keys all is the owner's.  On the socket the
    process's own, whatever app it names.
    """
    if not client.relays:
        return client.app
    return message.key if is_key(message.key) else message.app or client.app
