"""``python -m umaserve.config --markdown`` prints ``docs/CONFIG.md``."""

from __future__ import annotations

import argparse

from umaserve.config.markdown import markdown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m umaserve.config")
    parser.add_argument("--markdown", action="store_true", required=True, help="print the page")
    parser.parse_args()
    print(markdown(), end="")


if __name__ == "__main__":
    main()
