"""``python -m umaserve`` is ``umaserve``."""

from __future__ import annotations

import sys

from umaserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
