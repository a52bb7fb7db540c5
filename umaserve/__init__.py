"""UMA Serve: one daemon that shares one loaded model with many local applications."""

from __future__ import annotations

__version__ = "0.2.0"
