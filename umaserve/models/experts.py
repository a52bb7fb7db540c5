"""Mixtures of experts: how many experts a model has, and how many a token uses."""

from __future__ import annotations

from .gguf.header import GGUFInfo


def used_key(info: GGUFInfo) -> str:
    """The key of the file that says how many experts a token uses."""
    return f"{info.architecture}.expert_used_count"


def why_not_used(info: GGUFInfo, experts: int) -> str:
    """Why a token cannot use that many ``experts`` of the model; empty where it can.

    0 stands for the model's own number, which every model can use.
    """
    if not experts:
        return ""
    has = info.metadata.get(f"{info.architecture}.expert_count", 0)
    has = has if isinstance(has, int) else 0
    own = info.metadata.get(used_key(info))
    if not has or own is None:
        return f"it is no mixture of experts, and --experts-used is {experts}; leave that out"
    if not isinstance(own, int):  # libllama takes another number for all layers, or none
        return f"its layers use different numbers of experts; leave --experts-used {experts} out"
    if not 1 <= experts <= has:
        return f"it has {has} experts, and --experts-used is {experts}; take 1 to {has}"
    return ""
