"""Windows, quantiles, histograms and counters: numbers in, numbers out, no clock of their own."""

from __future__ import annotations

from umaserve.metrics.slices import CapSlices
from umaserve.metrics.window import Histogram, Window, quantile

__all__ = ["CapSlices", "Histogram", "Window", "quantile"]
