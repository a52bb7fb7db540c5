"""Settings that the gateway process gets at its start."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True):
    """``socket`` is the daemon's.  No secret is in here: a process's arguments can be read by all.

    ``hosts`` are names that a request may use for this server, beside numbers and localhost;
    ``any_host`` lifts that, for a Unix socket.  ``origins`` are web pages that may ask.
    ``api_key_file`` and ``model_dirs`` are paths; empty: no keys, nothing to load.
    ``own_key_file`` holds the owner's own key.  ``owner`` is the user that may ask
    without keys (-1: not known).  ``image_urls``: pictures are fetched from the web.
    """

    socket: str
    hosts: tuple[str, ...] = ()
    any_host: bool = False
    origins: tuple[str, ...] = ()
    api_key_file: str = ""
    own_key_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    model_dirs: tuple[str, ...] = ()
    max_connections: int = 1024
    idle_timeout_s: float = 300.0
    owner: int = -1
    core_dumps: bool = False
    image_urls: bool = False
