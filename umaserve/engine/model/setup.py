"""The objects that an engine has from its start on, and that most parts of its loop use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control

if TYPE_CHECKING:
    from .loaded import Loaded


@dataclass(frozen=True)
class Setup:
    """The front's order, the model that it names, and the two ways to the front."""

    start: m.Start
    loaded: Loaded
    table: t.SessionTable
    control: Control
