"""Files of pictures as parts of a message."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable

from umaserve.cli.parts.common import say
from umaserve.system.regular_file import open_regular


def picture_parts(paths: Iterable[str]) -> list[dict[str, str]] | None:
    """The files as parts of a message; None where one cannot be read, which is told."""
    found = []
    try:
        for path in paths:
            with open_regular(os.path.expanduser(path)) as file:
                data = base64.b64encode(file.read()).decode()
            found.append({"type": "image", "data": data})
    except OSError as error:
        say(f"error: the picture cannot be read: {error.filename}: {error.strerror}")
        return None
    return found
