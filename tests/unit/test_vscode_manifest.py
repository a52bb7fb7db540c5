"""What the manifest of editors/vscode says besides its code: versions, licence, pinned packages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from umaserve import __version__
from umaserve.client.connect import DEFAULT_SOCKET

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = ROOT / "editors/vscode"
MANIFEST = json.loads((EXTENSION / "package.json").read_text("utf-8"))
SETTINGS = MANIFEST["contributes"]["configuration"]["properties"]
LOCKS = [EXTENSION, ROOT / "tests/clients/editor", ROOT / "tests/clients/npm"]


def test_it_has_our_version_and_licence() -> None:
    assert MANIFEST["version"] == __version__
    assert (EXTENSION / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    # vsce refuses types of a newer VS Code than the extension says that it needs
    assert MANIFEST["engines"]["vscode"] == "^" + MANIFEST["devDependencies"]["@types/vscode"]


def test_no_opened_folder_may_say_what_is_run_or_asked() -> None:
    for name in ("umaserve.socket", "umaserve.command"):
        assert SETTINGS[name]["scope"] == "machine"


def test_each_setting_stands_in_the_readme() -> None:
    page = (EXTENSION / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(umaserve\.[\w.]+)` \| `?([^|`]+?)`? \|", page, re.M))
    assert rows == {
        name: json.dumps(each["default"]).strip('"') or "empty" for name, each in SETTINGS.items()
    }
    for told in (page, SETTINGS["umaserve.socket"]["markdownDescription"]):
        assert DEFAULT_SOCKET in told


@pytest.mark.parametrize("folder", LOCKS, ids=lambda folder: folder.name)
def test_packages_are_pinned_by_hash_and_from_no_host(folder: Path) -> None:
    lock = json.loads((folder / "package-lock.json").read_text("utf-8"))
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert packages and all("integrity" in each for each in packages.values())
    assert not [name for name, each in packages.items() if "resolved" in each]
