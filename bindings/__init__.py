"""Turns the ``llama.h`` of a built libllama into a compiled cffi module.

Nothing here repeats by hand what the header says.  The C preprocessor reads it, and pycparser
parses it.  `bindings.header` rewrites the declarations for cffi.  `bindings.compile` compiles the
API-mode module, where the C compiler checks every struct against the real header.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from pathlib import Path

MODULE_NAME = "_uma_llama"
"""Name of the compiled extension module."""


@functools.lru_cache(maxsize=1)
def generator_digest() -> str:
    """Eight hex digits over this package: another version of it makes another module."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def module_dir(build: Path) -> Path:
    """Where the module for the libllama in `build` and the running Python belongs."""
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return build / "python" / f"{abi}-{generator_digest()}"


def module_file(folder: Path) -> Path:
    """Path of the compiled module in `folder`, for the running Python."""
    return folder / f"{MODULE_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
