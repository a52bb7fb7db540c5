"""A build that says nothing."""

from __future__ import annotations

import io

from umaserve.llama.building.progress import Reporter


def quiet() -> Reporter:
    return Reporter(io.StringIO())
