"""The live screen of a daemon: ``Dashboard`` runs it, ``Screen`` lays it out, ``View`` is what it
shows and what keys do."""

from __future__ import annotations

from umaserve.dashboard.app import LEAVING, Dashboard
from umaserve.dashboard.canvas.terminal import Terminal
from umaserve.dashboard.panels.sentence import summary
from umaserve.dashboard.screen import Screen
from umaserve.dashboard.view import View

__all__ = [
    "LEAVING",
    "Dashboard",
    "Screen",
    "Terminal",
    "View",
    "summary",
]
