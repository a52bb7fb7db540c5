"""Writes the Homebrew formula of a source distribution: ``python -m tools.formula SDIST URL``.

It is `packaging/homebrew/umaserve.rb` with the address and the hash of that file, on standard
output.  URL is where the file will be found; a ``file://`` address does for one machine.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

FORMULA = Path(__file__).resolve().parents[1] / "packaging/homebrew/umaserve.rb"


def formula(sdist: Path, url: str) -> str:
    """The formula's text.  Raises ``OSError``."""
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    text = FORMULA.read_text("utf-8")
    text = re.sub(r"^  # `python -m tools\.formula`.*\n", "", text, flags=re.M)
    text = re.sub(r'^  url ".*"$', lambda _: f'  url "{url}"', text, flags=re.M)
    return re.sub(r'^  sha256 ".*"$', f'  sha256 "{digest}"', text, flags=re.M)


def main(words: list[str]) -> int:
    """The command; returns its exit status."""
    if len(words) != 2 or words[0].startswith("-"):
        print(__doc__, file=sys.stdout if "--help" in words else sys.stderr)
        return 0 if "--help" in words else 2
    try:
        print(formula(Path(words[0]), words[1]), end="")
    except OSError as error:
        print(f"formula: {error}; `pyproject-build` makes the file", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
