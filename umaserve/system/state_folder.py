"""Where this user's programs keep what they remember: the chosen model, copies of settings."""

from __future__ import annotations

import os
from pathlib import Path

OWN_STATE = "set UMA_STATE_DIR to a folder of your own"  # what to do where it is not private


def state_folder() -> Path:
    """``$UMA_STATE_DIR``, else the user's folder for what programs remember."""
    given = os.environ.get("UMA_STATE_DIR")
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_state_dir("umaserve"))
