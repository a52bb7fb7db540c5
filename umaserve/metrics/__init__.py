"""Windows, quantiles, histograms and counters: numbers in, numbers out, no clock of their own.

What needs numpy is imported when it is asked for: the gateway takes the Prometheus text alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umaserve.metrics.slices import CapSlices
    from umaserve.metrics.window import Histogram, Window, quantile

__all__ = ["CapSlices", "Histogram", "Window", "quantile"]


def __getattr__(name: str) -> Any:
    if name == "CapSlices":
        from umaserve.metrics import slices as module
    elif name in __all__:
        from umaserve.metrics import window as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
