"""Configures llama.cpp with cmake, compiles it with ninja and gathers what a build consists of."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from umaserve.llama import builds
from umaserve.system.own_python import run_code
from umaserve.system.processor import logical_cores

from . import BuildError
from .backends import Choice
from .process import run_logged
from .progress import Reporter
from .source import Source
from .toolchain import Toolchain

PEERS = ("llama-server", "llama-bench", "llama-batched-bench")
"""llama.cpp's own programs that the benchmarks compare with."""

_NINJA_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
_BYTES_PER_JOB = 2 << 30
_CORE_LIBRARY = re.compile(r"lib(llama|ggml[a-z0-9-]*)\.")

# Nothing but the library, and nothing that would reach for the network.
_BASE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DLLAMA_BUILD_NUMBER=0",
    # The folder may lie inside somebody's git repository, whose commit is not llama.cpp's.
    "-DGIT_EXE=false",
)


INTRINSICS = """
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) \\
    __asm__ volatile("ldtilecfg\\t%0" : : "m"(*(const char (*)[64])(config)))
#endif
"""
"""Read by the compiler ahead of each C++ file.

GCC's own ``_tile_loadconfig`` tells the optimiser that 8 of the 64 bytes are read, so it drops the
stores to the others, and the first product of matrices on a processor with AMX ends in SIGSEGV
(llama.cpp issue 20824, pull request 26954, which is open).
"""


@dataclass(frozen=True)
class Plan:
    """Build to make: its source and options."""

    key: str
    choice: Choice
    source: Source
    portable: bool
    extra: tuple[str, ...]
    jobs: int


@dataclass(frozen=True)
class Commands:
    """Commands of a build: their tools, log and reporter.

    They keep ``lock``, a descriptor, open: the build's lock lasts as long as they do.
    """

    tools: Toolchain
    log: Path
    report: Reporter
    lock: int
    jobs: int

    def run(
        self, command: Sequence[str | Path], what: str, on_line: Callable[[str], None],
        env: Mapping[str, str], hint: str = "",
    ) -> None:  # fmt: skip
        """Run a command to its end (`run_logged`)."""
        run_logged(
            command, self.log, what=what, hint=hint, env=env, keep_open=[self.lock],
            on_line=on_line,
        )  # fmt: skip

    def compile(self, folder: Path, *targets: str) -> list[str | Path]:
        """Return the command that compiles targets in ``folder``, which cmake has configured."""
        return [self.tools.ninja, "-C", folder, "-j", str(self.jobs), *targets]


def default_jobs() -> int:
    """Compilers to run at once: one a processor, as far as memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(logical_cores(), memory // _BYTES_PER_JOB))


def _environment(tree: Path, folder: Path, tools: Toolchain) -> dict[str, str]:
    """Return the variables of a build; its extra header goes into ``folder``."""
    environment = {**os.environ, "CC": tools.cc, "CXX": tools.cxx}
    environment["NINJA_STATUS"] = "[%f/%t] "
    # A failed assertion prints __FILE__: the name within llama.cpp, not that of a folder long gone.
    for name in ("CFLAGS", "CXXFLAGS"):
        flag = shlex.quote(f"-ffile-prefix-map={tree}/=")
        environment[name] = f"{os.environ.get(name, '')} {flag}".strip()
    intrinsics = folder / "intrinsics.h"
    intrinsics.write_text(INTRINSICS, "utf-8")
    environment["CXXFLAGS"] += f" -include {shlex.quote(str(intrinsics))}"
    return environment


def compile_tree(
    tree: Path,
    commit: str,
    folder: Path,
    plan: Plan,
    commands: Commands,
    *,
    peers_of: Path | None = None,
) -> Path:
    """Compiles `tree` in `folder`; returns the folder that holds what was made.

    That is the libraries, or with `peers_of` (a build) the programs, linked to its libraries.
    """
    folder.mkdir()
    tools = commands.tools
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    onoff = "ON" if peers_of else "OFF"
    arguments: list[str | Path] = [
        tools.cmake, "-S", tree, "-B", folder, "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tools.ninja}",
        *_BASE,
        *(f"-DLLAMA_BUILD_{part}={onoff}" for part in ("COMMON", "TOOLS", "SERVER")),
        f"-DCMAKE_INSTALL_RPATH={origin};{origin}/../lib",
        f"-DGGML_NATIVE={'OFF' if plan.portable else 'ON'}",
        f"-DLLAMA_BUILD_COMMIT={commit}",
        *plan.choice.cmake,
        *plan.extra,
    ]  # fmt: skip
    if peers_of is not None:
        reuse = folder / "reuse.cmake"
        reuse.write_text(_REUSE.replace("@BUILD@", peers_of.as_posix()), "utf-8")
        arguments.append(f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={reuse}")
    environment = _environment(tree, folder, tools)
    hint = f"Other backends: {builds.BUILD_COMMAND} --backend {'|'.join(builds.BACKENDS)}"
    what = "llama-server and the benchmarks" if peers_of else f"libllama ({plan.choice.backend})"
    with commands.report.step(f"Configuring {what}") as step:
        commands.run(
            arguments,
            f"configuring {what} with cmake",
            lambda line: step.update(None, None, line.strip(" -\n")),
            environment,
            hint,
        )
    with commands.report.step(f"Compiling {what}") as step:
        build = commands.compile(folder, *(PEERS if peers_of else ("llama",)))
        commands.run(build, f"compiling {what}", ninja_reader(step.update), environment, hint)
    return folder / "bin"


# cmake runs this at llama.cpp's own project().  The project's targets for the libraries then stand
# for the files that are there.  The folder that would compile llama again is passed over.
_REUSE = """
foreach (name ggml-base ggml ggml-cpu llama)
    set(file "@BUILD@/lib/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
    if (EXISTS "${file}")
        add_library(${name} SHARED IMPORTED GLOBAL)
        set_target_properties(${name} PROPERTIES
            IMPORTED_LOCATION "${file}"
            INTERFACE_INCLUDE_DIRECTORIES "@BUILD@/include"
            INTERFACE_COMPILE_DEFINITIONS "LLAMA_SHARED;GGML_SHARED;GGML_BACKEND_SHARED")
    endif()
endforeach()
if (TARGET ggml)
    set_target_properties(ggml PROPERTIES INTERFACE_LINK_LIBRARIES ggml-base)
    set_target_properties(llama PROPERTIES INTERFACE_LINK_LIBRARIES ggml)
endif()
macro(add_subdirectory folder)
    if (NOT "${folder}" STREQUAL "src")
        _add_subdirectory("${folder}" ${ARGN})
    endif()
endmacro()
macro(install)
endmacro()
"""


def ninja_reader(update: Callable[[float, float, str], None]) -> Callable[[str], None]:
    largest = 0

    def read(line: str) -> None:
        nonlocal largest
        match = _NINJA_STATUS.match(line)
        if match is None:
            return
        done, total = int(match.group(1)), int(match.group(2))
        # The Vulkan shader compiler is a small build inside the build, with numbers of its own.
        if 2 * total >= largest:
            largest = max(largest, total)
            update(done, total, match.group(3).rsplit("/", 1)[-1])

    return read


def gather(tree: Path, compiled: Path, out: Path, plan: Plan, tools: Toolchain) -> None:
    """Puts libraries, headers, vocabularies and the licence into `out`, the manifest last."""
    _copy_libraries(compiled, out / "lib", core=True)
    (out / "include").mkdir()
    for header in (*(tree / "include").glob("*.h"), *(tree / "ggml" / "include").glob("*.h")):
        shutil.copy2(header, out / "include" / header.name)
    (out / "vocab").mkdir()
    for vocabulary in sorted((tree / "models").glob("ggml-vocab-*.gguf")):
        shutil.copy2(vocabulary, out / "vocab" / vocabulary.name)
    if (tree / "LICENSE").exists():
        shutil.copy2(tree / "LICENSE", out / "LICENSE")
    facts = probe(out / "lib")
    revision = plan.source.revision
    manifest = {
        "format": builds.MANIFEST_FORMAT,
        "key": plan.key,
        "backend": plan.choice.backend,
        "version": facts["llama_version"],
        "ggml_version": facts["ggml_version"],
        "commit": facts["ggml_commit"],
        "source": plan.source.ident,
        "git_tag": revision.tag if revision is not None else None,
        "git_commit": revision.commit if revision is not None else None,
        "portable": plan.portable,
        "machine": builds.machine_tag(),
        "cpu": None if plan.portable else builds.cpu_signature(),
        "cmake": [*plan.choice.cmake, *plan.extra],
        "compiler": tools.cxx,
        "created": time.time(),
    }
    (out / builds.MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def gather_peers(compiled: Path, out: Path) -> None:
    """Puts llama.cpp's programs into `out`, with the libraries that only they need."""
    _copy_libraries(compiled, out, core=False)
    for name in PEERS:
        shutil.copy2(compiled / name, out / name)


def _copy_libraries(compiled: Path, out: Path, *, core: bool) -> None:
    """Copies shared libraries with their version links."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(compiled.glob("lib*")):
        is_library = ".so" in path.name or path.suffix == ".dylib"
        if is_library and core == bool(_CORE_LIBRARY.match(path.name)):
            shutil.copy2(path, out / path.name, follow_symlinks=False)


_PROBE = """
import ctypes, json, sys
llama = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
base = ctypes.CDLL(sys.argv[2])
facts = {}
for library, name in ((llama, "llama_version"), (base, "ggml_version"), (base, "ggml_commit")):
    function = getattr(library, name, None)
    if function is not None:
        function.restype = ctypes.c_char_p
    facts[name] = function().decode() if function is not None else "unknown"
print(json.dumps(facts))
"""


def probe(lib_dir: Path) -> dict[str, str]:
    """Loads the new library in a process of its own and asks its versions."""
    suffix = builds.library_suffix()
    files = [str(lib_dir / f"{name}.{suffix}") for name in ("libllama", "libggml-base")]
    done = subprocess.run([*run_code(_PROBE), *files], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"the new library does not load:\n{done.stderr.strip()[-600:]}")
    return json.loads(done.stdout)
