"""Compiles the cffi module for one build and one Python ABI, aside first, then moved into place."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from umaserve.llama.building import BuildError
from umaserve.llama.building.process import run_logged
from umaserve.llama.building.toolchain import install_command
from umaserve.system.own_python import run_code

from . import MODULE_NAME, module_file
from .header import HEADERS, Declarations, HeaderError, read_headers
from .support import CDEF, SOURCE

_LINKED = ("libllama", "libggml", "libggml-base", "libggml-cpu")
_INFO_FUNCTION = "uma_binding_info"


def headers_digest(include_dir: Path) -> str:
    """Sixteen hex digits over the headers that the module was compiled against."""
    digest = hashlib.sha256()
    for path in sorted(include_dir.glob("*.h")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def read_declarations(lib_dir: Path, include_dir: Path, compiler: list[str]) -> Declarations:
    """The declarations for the libraries in `lib_dir`."""
    return read_headers(include_dir, lambda names: _exported(lib_dir, names), compiler)


_ASK_EXPORTS = """
import ctypes, json, sys
loaded = [ctypes.CDLL(path) for path in sys.argv[1:]]
names = json.load(sys.stdin)
print(json.dumps([name for name in names if any(hasattr(one, name) for one in loaded)]))
"""


def _exported(lib_dir: Path, names: set[str]) -> set[str]:
    """Which of `names` the libraries offer, asked in a process of its own.

    A library that this process has loaded would stand in for every other of the same name.
    """
    done = subprocess.run(
        [*run_code(_ASK_EXPORTS), *map(str, _libraries(lib_dir))],
        input=json.dumps(sorted(names)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise BuildError(f"the libraries in {lib_dir} do not load:\n{done.stderr.strip()[-600:]}")
    return set(json.loads(done.stdout))


def compile_module(
    lib_dir: Path,
    include_dir: Path,
    folder: Path,
    compiler: list[str],
    versions: dict[str, str],
    log: Path,
) -> Path:
    """Writes and compiles the module into `folder` (created; replaced as a whole).

    `compiler` is the C compiler's command line, `versions` what the library says of itself; they
    are compiled in, for the check at import. The module finds the libraries relative to itself, so
    `folder` has to be two levels below the parent of `lib_dir`. Returns the module's path.
    Raises `BuildError`.
    """
    _require_python_headers()
    try:
        found = read_declarations(lib_dir, include_dir, compiler)
    except HeaderError as error:
        raise BuildError(str(error)) from error
    aside = folder.parent / f".tmp-{folder.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        info = {
            **versions,
            "headers": headers_digest(include_dir),
            "functions": len(found.functions),
            "missing": list(found.missing),
            "shims": found.shim_names,
        }
        source = aside / f"{MODULE_NAME}.c"
        _write_source(source, found, info)
        _compile(source, module_file(aside), lib_dir, include_dir, compiler, log)
        (aside / "declarations.h").write_text(found.cdef, "utf-8")
        source.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return module_file(folder)


def _write_source(path: Path, found: Declarations, info: dict[str, object]) -> None:
    import cffi

    ffi = cffi.FFI()
    try:
        ffi.cdef(f"{found.cdef}{CDEF}const char *{_INFO_FUNCTION}(void);\n")
    except (cffi.FFIError, cffi.CDefError) as error:
        raise BuildError(f"cffi does not take the declarations of llama.h: {error}") from error
    text = json.dumps(json.dumps(info))
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    shown = f"static const char *{_INFO_FUNCTION}(void) {{ return {text}; }}\n"
    ffi.set_source(MODULE_NAME, includes + shown + found.shims + SOURCE)
    with contextlib.redirect_stdout(io.StringIO()):  # cffi prints the name of the file
        ffi.emit_c_code(str(path))


def _libraries(lib_dir: Path) -> list[Path]:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    found = [lib_dir / f"{name}.{suffix}" for name in _LINKED]
    return [path for path in found if path.exists()]


def _compile(
    source: Path, out: Path, lib_dir: Path, include_dir: Path, compiler: list[str], log: Path
) -> None:
    darwin = sys.platform == "darwin"
    rpath = ("@loader_path" if darwin else "$ORIGIN") + "/../../lib"
    command = [
        *compiler, "-O1", "-w", "-fPIC", "-DLLAMA_SHARED", "-DGGML_SHARED", "-DGGML_BACKEND_SHARED",
        *(("-bundle", "-undefined", "dynamic_lookup") if darwin else ("-shared",)),
        f"-I{include_dir}", f"-I{sysconfig.get_path('include')}",
        f"-I{sysconfig.get_path('platinclude')}",
        source, "-o", out, f"-L{lib_dir}",
        *(f"-l{path.stem.removeprefix('lib')}" for path in _libraries(lib_dir)),
        f"-Wl,-rpath,{rpath}",
    ]  # fmt: skip
    run_logged(command, log, what="compiling the binding against the headers of this libllama")


def _require_python_headers() -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise BuildError(
            f"the C headers of this Python are missing (no {header}).\n"
            f"Install them, then run this again:  {install_command('python headers')}\n"
            "A Python from pyenv, uv or python.org brings its own."
        )
