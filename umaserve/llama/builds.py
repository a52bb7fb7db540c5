"""Which builds of libllama this machine has. Standard library only; nothing is loaded here.

A build is a folder ``<cache>/llama/<key>/``.  It has ``lib/``, ``include/``, ``vocab/``, and
``bin/`` when llama.cpp's own tools were asked for.  The binding is in ``python/<abi>/``, uma-chat
in ``chat/<digest>/``, uma-eyes in ``eyes/<digest>/``.  The file ``manifest.json`` is written last,
before the folder is moved into place.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from umaserve.system.private_folder import why_shared_within
from umaserve.system.processor import sysctl

PINNED_VERSION = "0.3.36"
"""The llama-cpp-python source distribution that vendors the llama.cpp this project is made for."""

BACKENDS = ("metal", "cuda", "hip", "vulkan", "cpu")
"""Known backends; in this order `select` prefers them."""

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 2  # 1: made by GCC, no build with AMX ran (see `compile.INTRINSICS`)
CHAT_SOURCES = Path(__file__).parents[1] / "chat" / "native"
EYES_SOURCES = CHAT_SOURCES.parents[1] / "eyes" / "native"
CHAT_ABSENT = "absent.txt"  # in place of the program: why there is none
BUILD_VARIABLE = "UMA_LLAMA_BUILD"
"""Environment variable naming the key, or the folder, of the one build to use in any case."""

_CLONE = Path(__file__).parents[2]
BUILD_COMMAND = (
    "python build_llama.py" if (_CLONE / "pyproject.toml").exists() else "umaserve build"
)
"""What a person types to build: an installed package has no script in the current folder."""


@dataclass(frozen=True)
class Build:
    """Built libllama on disk.

    `version` is the answer of ``llama_version()``, and `commit` the answer of ``ggml_commit()``.
    `source` is the id of the source that it was built from, `created` seconds since the epoch.
    """

    key: str
    backend: str
    version: str
    commit: str
    source: str
    created: float
    path: Path
    lib_dir: Path
    include_dir: Path
    vocab_dir: Path
    bin_dir: Path
    details: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def library(self) -> Path:
        """The libllama file that the binding links to."""
        return self.lib_dir / f"libllama.{library_suffix()}"

    @property
    def has_peers(self) -> bool:
        """Whether llama-server, llama-bench and llama-batched-bench are in `bin_dir`."""
        return (self.bin_dir / "llama-server").exists()

    @property
    def chat_dir(self) -> Path:
        """Where uma-chat as it is now belongs: an edit of its source is another program."""
        return self.path / "chat" / chat_digest()

    @property
    def chat_program(self) -> Path | None:
        """uma-chat, which renders conversations; None where it is not built."""
        program = self.chat_dir / "uma-chat"
        return program if program.exists() else None

    @property
    def lacks_chat(self) -> bool:
        """Whether nobody has tried to build uma-chat yet."""
        return self.chat_program is None and not (self.chat_dir / CHAT_ABSENT).exists()

    @property
    def why_no_chat(self) -> str:
        """Why there is no uma-chat, and what to do; empty where there is."""
        if self.chat_program is not None:
            return ""
        try:
            return (self.chat_dir / CHAT_ABSENT).read_text("utf-8").strip()
        except OSError:
            return f"uma-chat is not built; build it with: {BUILD_COMMAND}"


    @property
    def eyes_dir(self) -> Path:
        """Where uma-eyes as it is now belongs."""
        return self.path / "eyes" / _digest(EYES_SOURCES)

    @property
    def eyes_program(self) -> Path | None:
        """uma-eyes, which encodes pictures; None where it is not built."""
        program = self.eyes_dir / "uma-eyes"
        return program if program.exists() else None

    @property
    def why_no_eyes(self) -> str:
        """Why there is no uma-eyes, and what to do; empty where there is."""
        if self.eyes_program is not None:
            return ""
        return f"uma-eyes is not built; build it with: {BUILD_COMMAND} --with-eyes"


@functools.lru_cache(maxsize=1)
def chat_digest() -> str:
    """Eight hex digits over the source of uma-chat."""
    return _digest(CHAT_SOURCES)


def _digest(sources: Path) -> str:
    """Eight hex digits over the files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(sources.glob("*")):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def library_suffix() -> str:
    """File name suffix of shared libraries as llama.cpp's cmake writes them."""
    return "dylib" if sys.platform == "darwin" else "so"


def python_abi() -> str:
    """Tag of the running Python's extension-module ABI, e.g. ``cpython-311-x86_64-linux-gnu``."""
    tag = sysconfig.get_config_var("SOABI")
    return str(tag) if tag else f"{sys.implementation.cache_tag}-{machine_tag()}"


def cache_root() -> Path:
    """``$UMA_CACHE_DIR``, else the user's cache folder for umaserve."""
    chosen = os.environ.get("UMA_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("umaserve"))


def builds_root() -> Path:
    """The folder that holds the builds."""
    return cache_root() / "llama"


def machine_tag() -> str:
    """Operating system and processor architecture, e.g. ``linux-x86_64``."""
    return f"{platform.system().lower()}-{platform.machine().lower()}"


@functools.lru_cache(maxsize=1)
def cpu_signature() -> str:
    """Eight hex digits that differ where a ``-march=native`` build may not run.

    From the processors' model and feature lists: ``/proc/cpuinfo`` on Linux, ``sysctl`` on macOS.
    """
    if sys.platform == "darwin":
        names = ["machdep.cpu.brand_string", "machdep.cpu.features", "hw.optional.arm"]
        facts = "\n".join(sysctl(*names))
    else:
        facts = _proc_cpu_facts()
    return hashlib.sha256(f"{machine_tag()}\n{facts}".encode()).hexdigest()[:8]


def _proc_cpu_facts() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor()
    wanted = re.compile(r"^(model name|flags|Features|CPU part|isa)\s*:\s*(.*)$", re.MULTILINE)
    return "\n".join(sorted({f"{name}:{value}" for name, value in wanted.findall(text)}))


def read_build(path: Path) -> Build | None:
    """The build in `path`, or None where there is no whole one."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != MANIFEST_FORMAT:
        return None
    try:
        build = Build(
            key=str(manifest["key"]),
            backend=str(manifest["backend"]),
            version=str(manifest["version"]),
            commit=str(manifest["commit"]),
            source=str(manifest["source"]),
            created=float(manifest["created"]),
            path=path,
            lib_dir=path / "lib",
            include_dir=path / "include",
            vocab_dir=path / "vocab",
            bin_dir=path / "bin",
            details=manifest,
        )
    except (KeyError, TypeError, ValueError):
        return None
    return build if build.library.exists() else None


def runs_here(build: Build) -> bool:
    """Whether `build` was made for this system and, where it has to be, for this processor."""
    cpu = build.details.get("cpu")
    return build.details.get("machine") == machine_tag() and cpu in (None, cpu_signature())


def why_not_used(build: Build) -> str:
    """Return why `build` is not loaded: others could change its files. Empty: it may be loaded."""
    why = why_shared_within(build.path)
    return f"{build.path} is not used: {why}" if why else ""


def _here(backend: str | None) -> list[tuple[Build, str]]:
    """The builds that can run here, and why others' are not used."""
    try:
        folders = sorted(builds_root().iterdir())
    except OSError:
        return []
    wanted = None if backend in (None, "auto") else backend
    found = [read_build(folder) for folder in folders if not folder.name.startswith(".")]
    fit = [b for b in found if b is not None and runs_here(b) and wanted in (None, b.backend)]
    return [(build, why_not_used(build)) for build in fit]


def _preference(build: Build) -> tuple[bool, int, float]:
    rank = BACKENDS.index(build.backend) if build.backend in BACKENDS else len(BACKENDS)
    return (build.source != PINNED_VERSION, rank, -build.created)


def installed(backend: str | None = None) -> list[Build]:
    """The builds that can run here, most preferred first.

    The pinned source goes before any other, then `BACKENDS` in order, then the newest.
    `backend` None or ``"auto"`` means any. Builds that others could change are left out.
    """
    return sorted((build for build, why in _here(backend) if not why), key=_preference)


def refused(backend: str | None = None) -> list[str]:
    """Sentences about the builds that could run here, and are left out as others could change them.

    ``$UMA_LLAMA_BUILD`` is heard as in `select`.
    """
    chosen = named()
    found = _here(backend) if chosen is None else [(chosen, why_not_used(chosen))]
    return [why for _, why in found if why]


def named() -> Build | None:
    """The build that ``$UMA_LLAMA_BUILD`` names, by its key or its folder; whoever owns it."""
    name = os.environ.get(BUILD_VARIABLE)
    return read_build(builds_root() / name) if name else None


def select(backend: str = "auto") -> Build | None:
    """The build to use for `backend`, or None where there is none.

    ``$UMA_LLAMA_BUILD`` overrides everything else; None where it names no build, or one that others
    could change.
    """
    if os.environ.get(BUILD_VARIABLE):
        build = named()
        return build if build is not None and not why_not_used(build) else None
    found = installed(backend)
    return found[0] if found else None
