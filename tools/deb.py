"""Makes a Debian package of a wheel: ``python -m tools.deb WHEEL``.

The package has umaserve with all that it needs below ``/usr/lib/umaserve``, for the machine's own
``/usr/bin/python3``: the locked versions, by their hashes.  It is made on the release that it is
for, and lies beside the wheel.  $DEBFULLNAME and $DEBEMAIL name its maintainer.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ROOT / "packaging/debian"
PYTHON = "/usr/bin/python3"
COMMANDS = ("umaserve", "umad", "uma-cli")
SCRIPTS = ("postinst", "prerm")


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
        fields = {"version": version, "architecture": architecture, "maintainer": _maintainer()}
        _add_papers(tree / "usr/share", {**fields, "date": formatdate(wheel.stat().st_mtime)})
        _add_control(tree, fields)
        _set_modes(tree)
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
    """Leave no names of the Python that made it; the package compiles itself when installed."""
    shutil.rmtree(library / "bin")
    for cache in library.rglob("__pycache__"):
        shutil.rmtree(cache)


def _add_commands(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy2(PARTS / "umaserve", folder / COMMANDS[0])
    for name in COMMANDS[1:]:
        (folder / name).symlink_to(COMMANDS[0])


def _maintainer() -> str:
    name, mail = (os.environ.get(key) for key in ("DEBFULLNAME", "DEBEMAIL"))
    return f"{name or 'nobody'} <{mail or 'nobody@localhost'}>"


def _add_papers(share: Path, fields: dict[str, str]) -> None:
    """Licence, changes, manual page, and what lintian need not tell."""
    folder, pages = share / "doc/umaserve", share / "man/man1"
    overrides = share / "lintian/overrides"
    for made in (folder, pages, overrides):
        made.mkdir(parents=True)
    licences = (ROOT / "LICENSE").read_text("utf-8") + (PARTS / "copyright").read_text("utf-8")
    (folder / "copyright").write_text(licences, "utf-8")
    for target, part in ((folder / "changelog", "changelog"), (pages / "umaserve.1", "umaserve.1")):
        text = (PARTS / part).read_text("utf-8").format_map(fields)
        data = gzip.compress(text.encode(), 9, mtime=0)
        target.with_name(target.name + ".gz").write_bytes(data)
    for name in COMMANDS[1:]:
        (pages / f"{name}.1.gz").symlink_to("umaserve.1.gz")
    shutil.copy2(PARTS / "umaserve.lintian-overrides", overrides / "umaserve")


def _add_control(tree: Path, fields: dict[str, str]) -> None:
    """With Python's and glibc's versions on this release, which wheels and package fit."""
    code = "import sys; print(*sys.version_info[:2])"
    major, minor = map(int, _run(PYTHON, "-I", "-c", code).split())
    kib = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
    text = (PARTS / "control").read_text("utf-8").format(
        size=kib, python=f"{major}.{minor}", next_python=f"{major}.{minor + 1}",
        glibc=(os.confstr("CS_GNU_LIBC_VERSION") or "").split()[-1], **fields,
    )  # fmt: skip
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(text, "utf-8")
    for name in SCRIPTS:
        shutil.copy2(PARTS / name, tree / "DEBIAN" / name)


def _set_modes(tree: Path) -> None:
    """Whatever the umask is."""
    programs = {tree / "usr/bin" / COMMANDS[0], *(tree / "DEBIAN" / name for name in SCRIPTS)}
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path in programs else 0o644)


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
