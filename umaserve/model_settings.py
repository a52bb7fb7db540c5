"""Settings that the configuration gives a model by its name."""

from __future__ import annotations

from typing import NamedTuple

ROLES = ("chat", "completion", "embed", "rerank")


class AdapterSettings(NamedTuple):
    """A LoRA adapter by name: its file, and its scale where a request names none."""

    name: str
    path: str
    scale: float = 1.0


class ModelSettings(NamedTuple):
    """``path``: any reference to its file, or the file; what is ``None`` is as for the daemon.

    ``ttl_s``: seconds without a request after which it leaves memory, 0 = never.  ``pin``: it is
    loaded at start and never leaves.  ``role``: empty where the file tells.
    """

    path: str
    aliases: tuple[str, ...] = ()
    n_ctx: int | None = None
    n_seq: int | None = None
    kv_type: tuple[str, str] | None = None
    draft_model: str | None = None
    mmproj: str | None = None
    lora: tuple[AdapterSettings, ...] | None = None
    ttl_s: float | None = None
    pin: bool = False
    role: str = ""
