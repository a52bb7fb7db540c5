"""What pip and uv say of the package index."""

from __future__ import annotations


def no_index_reachable(output: str) -> bool:
    """Whether an output says that it got no answer, rather than a wrong one."""
    signs = ("NewConnectionError", "Temporary failure in name resolution", "ConnectTimeoutError",
             "Network is unreachable", "ProxyError", "error sending request for url")  # fmt: skip
    return any(sign in output for sign in signs)
