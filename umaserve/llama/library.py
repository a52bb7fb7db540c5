"""Loading the compiled binding of a build, after checking that the two belong together."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
from types import ModuleType
from typing import Any

from bindings import MODULE_NAME, module_dir, module_file
from umaserve.kept import in_use

from . import builds
from .builds import Build
from .errors import BindingMismatch, NotBuilt

_REBUILD = f"Build it again with: {builds.BUILD_COMMAND}"
_LOG_INFO = 2  # enum ggml_log_level
_LOG_WARN = 3
_LOG_ERROR = 4
_LOG_BYTES = 65536
_FUNCTION_NAME = re.compile(r"^\w*_\w*: ")


class Library:
    """Loaded libllama. A process has at most one, which is never unloaded.

    `lib` and `ffi` belong to the cffi module. `lib` has every exported function of ``llama.h``,
    such as ``lib.llama_decode(...)``. Where ``llama.h`` wants a struct by value, a function such as
    ``lib.uma_decode(ctx, batch)`` takes a pointer. Calls release the GIL. `version` is
    ``llama_version()``.
    """

    def __init__(self, module: ModuleType, build: Build) -> None:
        self.lib: Any = module.lib  # type: ignore[attr-defined]
        self.ffi: Any = module.ffi  # type: ignore[attr-defined]
        self.build = build
        self.version = self.text(self.lib.llama_version())
        # On an abort ggml would start a debugger to print a backtrace, which takes seconds in which
        # nobody is served. The line that says what failed is printed all the same.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        self.lib.uma_log_install(_LOG_INFO)
        self.lib.llama_backend_init()

    def address(self, name: str) -> int:
        """Address of the C function `name`, for ctypes and numba; AttributeError if not bound."""
        return int(self.ffi.cast("uintptr_t", self.ffi.addressof(self.lib, name)))

    def text(self, pointer: Any) -> str:
        """The C string at `pointer`; empty for NULL."""
        if pointer == self.ffi.NULL:
            return ""
        return self.ffi.string(pointer).decode("utf-8", "replace")

    def show_errors(self) -> None:
        """Write errors that libllama logs to stderr as well: they outlive an abort there."""
        self.lib.uma_log_show(_LOG_ERROR)

    def log_position(self) -> int:
        """A mark for `log_lines`: what is logged later comes after it."""
        return int(self.lib.uma_log_position())

    def log_lines(self, since: int = 0, level: int = _LOG_INFO) -> list[str]:
        """Lines that libllama logged after `since` at `level` (``enum ggml_log_level``) or above.

        The last 64 KiB are kept. libllama's log goes there and, but for `show_errors`, nowhere
        else.
        """
        room = self.ffi.new("char[]", _LOG_BYTES)
        count = self.lib.uma_log_read(since, room, _LOG_BYTES)
        text = bytes(self.ffi.buffer(room, count)).decode("utf-8", "replace")
        lines = [line for line in text.split("\n") if line[:1].isdigit()]
        return [line[1:].rstrip() for line in lines if int(line[0]) >= level]

    def warnings(self, since: int = 0) -> list[str]:
        """Warnings and errors that libllama logged after `since`."""
        return self.log_lines(since, _LOG_WARN)

    def last_error(self, since: int = 0) -> str:
        """The last error that libllama logged, else the last warning, else an empty string."""
        lines = self.log_lines(since, _LOG_ERROR) or self.log_lines(since, _LOG_WARN)
        return without_prefix(lines[-1]) if lines else ""

    def first_error(self, since: int = 0) -> str:
        """The first error logged after `since`: the cause, where later ones only repeat it."""
        lines = self.log_lines(since, _LOG_ERROR)
        return without_prefix(lines[0]) if lines else ""


def without_prefix(line: str) -> str:
    """``llama_model_load: error loading model: x`` -> ``x``: no function names for users."""
    line = _FUNCTION_NAME.sub("", line)
    return _FUNCTION_NAME.sub("", line.removeprefix("error loading model: ")).strip()


_loaded: Library | None = None
_lock = threading.Lock()


def load(backend: str = "auto") -> Library:
    """The libllama for `backend`, loaded.

    Raises `NotBuilt` where there is no such build.  Raises `BindingMismatch` where its binding is
    missing or made for another library, or where this process has loaded another build already.
    """
    global _loaded
    with _lock:
        build = builds.select(backend)
        if build is None:
            raise NotBuilt(_not_built(backend))
        if _loaded is None:
            for folder in (build.path, build.chat_dir, build.eyes_dir, module_dir(build.path)):
                in_use.hold(folder)
            _loaded = Library(_import(build), build)
        elif _loaded.build.key != build.key and backend not in ("auto", _loaded.build.backend):
            raise BindingMismatch(
                f"this process runs libllama {_loaded.build.key} and cannot load {build.key} too"
            )
        return _loaded


def _not_built(backend: str) -> str:
    refused = "".join(f". {why}" for why in builds.refused(backend))
    forced = os.environ.get(builds.BUILD_VARIABLE)
    if forced:
        what = "no build that may be used" if refused else "no build"
        return f"{builds.BUILD_VARIABLE} names {forced}, which is {what}{refused}"
    found = ", ".join(build.key for build in builds.installed()) or "none"
    name = "libllama" if backend == "auto" else f"libllama with the {backend} backend"
    option = "" if backend == "auto" else f" --backend {backend}"
    return (
        f"{name} is not built (builds here: {found}). "
        f"Build it with: {builds.BUILD_COMMAND}{option}{refused}"
    )


def _import(build: Build) -> ModuleType:
    path = module_file(module_dir(build.path))
    if not path.exists():
        raise BindingMismatch(
            f"libllama {build.key} has no binding for this Python and this version of umaserve. "
            f"Compile it with: {builds.BUILD_COMMAND} --backend {build.backend}"
        )
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise BindingMismatch(f"{path} is no extension module of this Python. {_REBUILD}")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BindingMismatch(
            f"the binding of libllama {build.key} does not load: {error}. {_REBUILD}"
        ) from error
    check_versions(module)
    return module


def check_versions(module: ModuleType) -> None:
    """Compares what `module` was compiled against with the library that it found.

    Raises `BindingMismatch`: a struct of another version has other fields at the same offsets.
    """
    ffi, lib = module.ffi, module.lib  # type: ignore[attr-defined]
    compiled = json.loads(ffi.string(lib.uma_binding_info()))
    for name in ("llama_version", "ggml_version", "ggml_commit"):
        function = getattr(lib, name, None)
        found = ffi.string(function()).decode() if function is not None else "unknown"
        if found != compiled[name]:
            raise BindingMismatch(
                f"the binding was compiled against {name} {compiled[name]!r}, and the library "
                f"that was loaded answers {found!r}. {_REBUILD}"
            )
