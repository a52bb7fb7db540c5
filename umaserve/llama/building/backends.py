"""Which backend this machine can build: what was found, what is missing, what installs it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from umaserve.llama import builds
from umaserve.system.private_folder import why_shared

from . import BuildError
from .toolchain import install_command

FIT_HEADER_MARK = "VK_EXT_layer_settings"
"""ggml-vulkan needs this extension's declarations; Vulkan headers before 1.3.272 lack them."""

_VERSION = re.compile(r"#define VK_HEADER_VERSION (\d+)")
_COMPLETE = re.compile(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, (\d+), (\d+)")


@dataclass(frozen=True)
class VulkanPieces:
    """Pieces that a Vulkan build needs, and their places; `missing` names the pieces not found."""

    glslc: Path | None
    headers: Path | None
    loader: Path | None
    spirv_config: Path | None
    header_version: str
    too_old: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=())

    @property
    def complete(self) -> bool:
        return not self.missing

    def advice(self) -> str:
        """Return commands and hints to get the missing pieces, a line each."""
        lines = []
        old = ", ".join(self.too_old)
        wanted = [piece for piece in self.missing if not (piece == "vulkan headers" and old)]
        if wanted:
            lines.append(f"missing: {', '.join(wanted)}. Install:  {install_command(*wanted)}")
        if "vulkan headers" in self.missing and old:
            lines.append(f"the Vulkan headers here are too old ({old}); 1.3.272 or later is needed")
        if "vulkan headers" in self.missing or "spirv headers" in self.missing:
            if shutil.which("apt-get") and shutil.which("dpkg-deb"):
                lines.append(
                    "newer headers, unpacked into the cache without root:  "
                    f"{builds.BUILD_COMMAND} --fetch-vulkan-headers"
                )
            elif old:
                lines.append("unpack newer ones somewhere and give --vulkan-headers DIR")
        return "\n".join(lines)

    def cmake_arguments(self) -> list[str]:
        return [
            f"-DVulkan_INCLUDE_DIR={self.headers}",
            f"-DVulkan_LIBRARY={self.loader}",
            f"-DVulkan_GLSLC_EXECUTABLE={self.glslc}",
            f"-DSPIRV-Headers_DIR={self.spirv_config}",
        ]


@dataclass(frozen=True)
class Choice:
    """The backend to build, why, and the cmake arguments that select it."""

    backend: str
    why: str
    cmake: tuple[str, ...]


def fetched_headers_dir() -> Path:
    """Where ``--fetch-vulkan-headers`` unpacks; holds a ``usr/`` like a system's own."""
    return builds.cache_root() / "vulkan-headers"


def choose(backend: str, vulkan_headers: Path | None, failed_before: str | None) -> Choice:
    """Settles `backend` (``"auto"`` included). `failed_before`: log of an earlier Vulkan failure.

    Raises `BuildError` where an explicitly named backend lacks a piece, saying how to get it.
    """
    if backend not in ("auto", *builds.BACKENDS):
        names = ", ".join(("auto", *builds.BACKENDS))
        raise BuildError(f"there is no backend {backend!r}; choose one of {names}.")
    if backend == "auto":
        return _automatic(vulkan_headers, failed_before)
    return _explicit(backend, vulkan_headers)


def _automatic(vulkan_headers: Path | None, failed_before: str | None) -> Choice:
    if sys.platform == "darwin":
        return Choice("metal", "this is macOS", _FLAGS["metal"])
    for backend in ("cuda", "hip"):
        if any(b.source == builds.PINNED_VERSION for b in builds.installed(backend)):
            return Choice(backend, f"a {backend} build is in the cache", _FLAGS[backend])
    if failed_before is not None:
        why = (
            f"an earlier Vulkan build failed here ({failed_before}); "
            f"{builds.BUILD_COMMAND} --backend vulkan tries it again"
        )
        return Choice("cpu", why, _FLAGS["cpu"])
    pieces = find_vulkan(vulkan_headers)
    if pieces.complete:
        why = f"glslc, Vulkan headers {pieces.header_version} and a loader are here"
        return Choice("vulkan", why, (*_FLAGS["vulkan"], *pieces.cmake_arguments()))
    advice = pieces.advice().replace("\n", "\n    ")
    return Choice("cpu", f"a Vulkan build needs more than is here.\n    {advice}", _FLAGS["cpu"])


def _explicit(backend: str, vulkan_headers: Path | None) -> Choice:
    why = "asked for"
    if backend == "metal" and sys.platform != "darwin":
        raise BuildError("the metal backend exists on macOS only; choose another --backend.")
    if backend == "vulkan":
        pieces = find_vulkan(vulkan_headers)
        if not pieces.complete:
            raise BuildError(f"the vulkan backend cannot be built yet.\n{pieces.advice()}")
        return Choice(backend, why, (*_FLAGS[backend], *pieces.cmake_arguments()))
    if backend == "cuda" and find_program("nvcc", ("CUDACXX",), "/usr/local/cuda/bin") is None:
        raise BuildError(
            "the cuda backend needs NVIDIA's CUDA toolkit, and no nvcc was found.\n"
            "Install the toolkit, or set CUDACXX to the nvcc that you have, and run this again."
        )
    if backend == "hip" and find_program("hipconfig", (), "/opt/rocm/bin") is None:
        raise BuildError(
            "the hip backend needs AMD's ROCm, and no hipconfig was found.\n"
            "Install ROCm's HIP development packages, put its bin folder on PATH, run this again."
        )
    return Choice(backend, why, _FLAGS[backend])


# Metal and BLAS are on by default on macOS, so the others turn Metal off there.
_FLAGS = {
    "metal": ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON"),
    "vulkan": ("-DGGML_VULKAN=ON", "-DGGML_METAL=OFF"),
    "cuda": ("-DGGML_CUDA=ON", "-DGGML_METAL=OFF"),
    "hip": ("-DGGML_HIP=ON", "-DGGML_METAL=OFF"),
    "cpu": ("-DGGML_METAL=OFF",),
}


def find_program(name: str, variables: tuple[str, ...], *folders: str) -> Path | None:
    """Path of `name`: from an environment variable, PATH or one of `folders`."""
    for variable in variables:
        value = os.environ.get(variable)
        if value and shutil.which(value):
            return Path(str(shutil.which(value)))
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    return Path(found) if found else None


def find_vulkan(headers: Path | None = None) -> VulkanPieces:
    """Looks for what a Vulkan build needs; `headers` is the folder given by the user.

    Nothing is run and nothing is built: only files are looked at.
    """
    prefixes = _prefixes()
    glslc = find_program("glslc", (), *(str(p / "bin") for p in prefixes))
    too_old: list[str] = []
    include, version = None, ""
    for folder in _header_folders(headers, prefixes):
        version = header_version(folder)
        if not version:
            continue
        if is_fit(folder):
            include = folder
            break
        too_old.append(f"{version} in {folder}")
    if headers is not None and include is None:
        what = f"only {too_old[0]}, too old" if too_old else "no vulkan/vulkan_core.h"
        raise BuildError(f"--vulkan-headers {headers}: {what}.")
    loader = _first(
        folder / name
        for prefix in prefixes
        for folder in _library_folders(prefix)
        for name in _LOADER_NAMES
    )
    config = _first(
        folder / "SPIRV-HeadersConfig.cmake"
        for prefix in prefixes
        for folder in (
            prefix / "share" / "cmake" / "SPIRV-Headers",
            prefix / "lib" / "cmake" / "SPIRV-Headers",
        )
    )
    found = {
        "glslc": glslc,
        "vulkan headers": include,
        "vulkan loader": loader,
        "spirv headers": config,
    }
    return VulkanPieces(
        glslc=glslc,
        headers=include,
        loader=loader,
        spirv_config=config.parent if config else None,
        header_version=version if include else "",
        too_old=tuple(too_old),
        missing=tuple(name for name, path in found.items() if path is None),
    )


_LOADER_NAMES = (
    ("libvulkan.dylib", "libvulkan.1.dylib")
    if sys.platform == "darwin"
    else ("libvulkan.so", "libvulkan.so.1")
)


def header_version(include: Path) -> str:
    """Version of the Vulkan headers in `include`, or an empty string where there are none."""
    try:
        text = (include / "vulkan" / "vulkan_core.h").read_text("utf-8", "replace")
    except OSError:
        return ""
    number, complete = _VERSION.search(text), _COMPLETE.search(text)
    if number is None:
        return "of unknown version"
    return ".".join([*(complete.groups() if complete else ("1",)), number.group(1)])


def is_fit(include: Path) -> bool:
    """Whether the headers in `include` have what ggml-vulkan needs."""
    core = include / "vulkan" / "vulkan_core.h"
    return (
        FIT_HEADER_MARK in core.read_text("utf-8", "replace")
        and (include / "vulkan" / "vulkan.hpp").exists()
    )


def _prefixes() -> list[Path]:
    sdk = os.environ.get("VULKAN_SDK")
    brew = ("/opt/homebrew", "/usr/local") if sys.platform == "darwin" else ()
    fetched = fetched_headers_dir() / "usr"
    ours = [fetched] if not why_shared(fetched) else []
    names = [*([sdk] if sdk else []), *ours, *brew, "/usr", "/usr/local"]
    return [Path(name) for name in names]


def _header_folders(given: Path | None, prefixes: list[Path]) -> list[Path]:
    if given is not None:
        given = given.expanduser().absolute()
        return [given, given / "include", given / "usr" / "include"]
    return [prefix / "include" for prefix in prefixes]


def _library_folders(prefix: Path) -> list[Path]:
    return [prefix / "lib" / _multiarch(), prefix / "lib64", prefix / "lib"]


def _multiarch() -> str:
    return getattr(sys.implementation, "_multiarch", "") or "."


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)
