"""The live screen of a daemon: ``Dashboard`` runs it, ``Screen`` lays it out, ``View`` is what it
shows and what keys do."""

from __future__ import annotations

from umaserve.dashboard.app import LEAVING, REFRESH_S, Dashboard, Feed
from umaserve.dashboard.canvas.terminal import PLAIN_INTERVAL_S, Terminal
from umaserve.dashboard.panels.sentence import summary
from umaserve.dashboard.screen import Screen
from umaserve.dashboard.view import View

__all__ = [
    "LEAVING",
    "PLAIN_INTERVAL_S",
    "REFRESH_S",
    "Dashboard",
    "Feed",
    "Screen",
    "Terminal",
    "View",
    "summary",
]
