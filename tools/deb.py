"""Makes a Debian package of a wheel: ``python -m tools.deb WHEEL``.

The package has umaserve with all that it needs below ``/usr/lib/umaserve``, for the machine's own
``/usr/bin/python3``: the locked versions, by their hashes.  It is made on the release that it is
for, and lies beside the wheel.  $DEBFULLNAME and $DEBEMAIL name its maintainer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ROOT / "packaging/debian"
PYTHON = "/usr/bin/python3"
COMMANDS = ("umaserve", "umad", "uma-cli")


class CannotMake(Exception):
    """The message says why, and what to do."""


def make(wheel: Path) -> Path:
    """The package, beside the wheel.  Raises `CannotMake`."""
    for program in (PYTHON, "dpkg-deb", "dpkg"):
        if shutil.which(program) is None:
            raise CannotMake(f"{program} is not here; this runs on Debian and what is made of it")
    version = wheel.name.split("-")[1]
    architecture = _run("dpkg", "--print-architecture").strip()
    target = wheel.with_name(f"umaserve_{version}_{architecture}.deb")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir(mode=0o755)
        library = tree / "usr/lib/umaserve"
        _install(library, "--require-hashes", "-r", ROOT / "requirements.lock")
        _install(library, "--no-index", "--no-deps", wheel)
        _tidy(library)
        _add_commands(tree / "usr/bin")
        _add_papers(tree / "usr/share/doc/umaserve")
        _add_control(tree, version, architecture)
        _run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", tree, target)
    return target


def _install(library: Path, *words: str | Path) -> None:
    """By the pip of the running Python, for the machine's: that may have none."""
    print(f"installing {words[-1]}", flush=True)
    _run(
        sys.executable, "-m", "pip", f"--python={PYTHON}", "install", "--quiet",
        "--disable-pip-version-check", "--only-binary=:all:", "--upgrade", "--no-compile",
        "--target", library, *words,
    )  # fmt: skip


def _tidy(library: Path) -> None:
    shutil.rmtree(library / "bin")  # they name the Python that made them
    for cache in library.rglob("__pycache__"):
        shutil.rmtree(cache)
    # root alone may write there, so each start would compile it anew; paths are the installed ones
    _run(PYTHON, "-m", "compileall", "-q", "-s", library, "-p", "/usr/lib/umaserve",
         "--invalidation-mode", "unchecked-hash", library)  # fmt: skip


def _add_commands(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy2(PARTS / "umaserve", folder / COMMANDS[0])
    (folder / COMMANDS[0]).chmod(0o755)
    for name in COMMANDS[1:]:
        (folder / name).symlink_to(COMMANDS[0])


def _add_papers(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy2(ROOT / "LICENSE", folder / "copyright")


def _add_control(tree: Path, version: str, architecture: str) -> None:
    code = "import sys; print(*sys.version_info[:2])"
    major, minor = map(int, _run(PYTHON, "-I", "-c", code).split())
    kib = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
    name, mail = (os.environ.get(key) for key in ("DEBFULLNAME", "DEBEMAIL"))
    text = (PARTS / "control").read_text("utf-8").format(
        version=version, architecture=architecture, size=kib, python=f"{major}.{minor}",
        next_python=f"{major}.{minor + 1}",
        maintainer=f"{name or 'nobody'} <{mail or 'nobody@localhost'}>",
    )  # fmt: skip
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(text, "utf-8")
    for path in (tree, *tree.rglob("*")):  # whatever the umask is
        if not path.is_symlink():
            is_open = path.is_dir() or path.parent == tree / "usr/bin"
            path.chmod(0o755 if is_open else 0o644)


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotMake(f"{Path(command[0]).name} failed: {done.stderr.strip()}")
    return done.stdout


def main(words: list[str]) -> int:
    """The command; returns its exit status."""
    if len(words) != 1 or words[0].startswith("-"):
        print(__doc__, file=sys.stdout if "--help" in words else sys.stderr)
        return 0 if "--help" in words else 2
    wheel = Path(words[0])
    if not wheel.is_file() or wheel.suffix != ".whl":
        print(f"deb: {wheel} is no wheel; `pyproject-build` makes one in dist/", file=sys.stderr)
        return 1
    try:
        print(make(wheel))
    except CannotMake as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
