"""Which files decide what compiled code does: the compiled ones, and all that these import.

numba compiles the value of a global name in.  So a constant's file counts as well, and so does
every file that the constant comes through.  Files are read here, and nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Parsing the whole package takes most of a second.  So the text says which files compile, and only
# the import statements of such a file are parsed.
_HINTS = (b"numba", b"jit", b"cfunc", b"intrinsic")  # found in a fraction of the time
_COMPILES = re.compile(
    rb"^[ \t]*(?:(?:from|import) numba\b|@(?:\w+\.)*(?:njit|jit|cfunc|intrinsic)\b)", re.M
)
_STATEMENT = re.compile(
    r"^[ \t]*((?:from [\w.]+ )?import (?:\((?:[\w\s,]|#[^\n]*)*\)|(?:[^\n\\]|\\\n)*))", re.M
)
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|\n)*", re.M)


def compiled_sources(package: Path) -> list[Path]:
    """The files that compiled code depends on, of the package in that folder."""
    modules: dict[str, tuple[Path, list[str]]] = {}  # with the packages around each
    for path in package.rglob("*.py"):
        *parents, name = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parents if name == "__init__" else [*parents, name])] = path, parents
    left = [module for module, (path, _) in modules.items() if _compiles(path.read_bytes())]
    found: set[str] = set()
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            used = _imported(*modules[module])
            names = (name if name in modules else name.rpartition(".")[0] for name in used)
            left += filter(modules.__contains__, names)
    return sorted(modules[module][0] for module in found)


def _compiles(text: bytes) -> bool:
    return any(hint in text for hint in _HINTS) and _COMPILES.search(text) is not None


def _imported(path: Path, parents: list[str]) -> Iterator[str]:
    """Modules that a file imports, or names of modules."""
    for text in _STATEMENT.findall(_FOR_TYPES.sub("", path.read_text("utf-8"))):
        with suppress(SyntaxError):  # a docstring has words that look like an import
            statement = ast.parse(text).body[0]
            start = ""
            if isinstance(statement, ast.ImportFrom):
                above = parents[: len(parents) + 1 - statement.level] if statement.level else []
                start = "".join(f"{part}." for part in [*above, statement.module] if part)
            for each in statement.names:  # type: ignore[attr-defined]
                yield start + each.name
