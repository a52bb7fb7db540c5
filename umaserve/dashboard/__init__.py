"""The live screen of a daemon: ``Dashboard`` runs it, ``Screen`` lays it out, ``View`` is what it
shows and what keys do."""

from umaserve.dashboard.app import LEAVING as LEAVING
from umaserve.dashboard.app import Dashboard as Dashboard
from umaserve.dashboard.canvas.terminal import Terminal as Terminal
from umaserve.dashboard.screen import Screen as Screen
from umaserve.dashboard.view import View as View
