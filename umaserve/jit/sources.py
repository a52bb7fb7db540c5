"""Which files decide what compiled code does: the compiled ones, and those whose names they use.

numba compiles the value of a global name in.  So a constant's file counts as well, and so does
every file that the constant comes through.  Files are read here, and nothing is imported.

A file that compiles something counts with all that it imports.  Of any other file only the names
that are wanted are followed: it may import half of the package for something else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ALL = "*"
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
    sources = _Sources(package)
    for module, source in sources.modules.items():
        if source.compiles:
            sources.follow_all(module)
    return sorted(sources.modules[module].path for module in sources.found)


class _Import(NamedTuple):
    """``name`` of a module is called ``here`` in the file; without a name it is the module."""

    here: str
    module: str
    name: str


class _Source:
    """Text of a file, with its imports and names, which are found on first use."""

    def __init__(self, path: Path, parents: list[str]) -> None:
        self.path = path
        self._parents = parents  # the packages around it, the outermost first
        self._bytes = path.read_bytes()
        may_compile = any(hint in self._bytes for hint in _HINTS)
        self.compiles = may_compile and _COMPILES.search(self._bytes) is not None

    @cached_property
    def _text(self) -> str:
        return _FOR_TYPES.sub("", self._bytes.decode())

    @cached_property
    def imports(self) -> list[_Import]:
        """Imports from this package."""
        texts = _STATEMENT.findall(self._text)
        try:
            found = list(self._imported("\n".join(texts)))
        except SyntaxError:  # a docstring has words that look like an import
            found = []
            for text in texts:
                with suppress(SyntaxError):
                    found += self._imported(text)
        return [x for x in found if x.module.split(".")[0] == self._parents[0]]

    def _imported(self, text: str) -> Iterator[_Import]:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.ImportFrom):
                parts = self._parents[: len(self._parents) + 1 - statement.level]
                parts = (parts if statement.level else []) + [statement.module or ""]
                for x in statement.names:
                    yield _Import(x.asname or x.name, ".".join(filter(None, parts)), x.name)
            elif isinstance(statement, ast.Import):
                for x in statement.names:
                    yield _Import(x.asname or x.name, x.name, "")

    @cached_property
    def made(self) -> dict[str, list[ast.stmt]]:
        """The statements at the top level that make or change each name, imports left out."""
        made: dict[str, list[ast.stmt]] = {}
        for statement in ast.parse(self._text).body:
            for name in _changed(statement):
                made.setdefault(name, []).append(statement)
        return made

    def made_of(self, name: str) -> set[str]:
        """All names in the statements that make ``name``."""
        nodes = [node for statement in self.made.get(name, []) for node in ast.walk(statement)]
        return {node.id for node in nodes if isinstance(node, ast.Name)} - {name}

    def taken_from(self, module: str) -> set[str]:
        """Return the names that are used of ``module``, as it is called in this file."""
        return set(re.findall(rf"\b{re.escape(module)}\.(\w+)", self._text))


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement of the top level makes, or may change."""
    changed: list[ast.AST] = [statement]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
        return
    if isinstance(statement, ast.Assign):
        changed = [*statement.targets]
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        changed = [statement.target]
    for node in (node for part in changed for node in ast.walk(part)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name


class _Sources:
    """All files of a package; ``found`` are the modules that count."""

    def __init__(self, package: Path) -> None:
        self.modules: dict[str, _Source] = {}
        self.found: set[str] = set()
        self._followed: set[tuple[str, str]] = set()
        for path in package.rglob("*.py"):
            *parents, name = path.relative_to(package.parent).with_suffix("").parts
            module = parents if name == "__init__" else [*parents, name]
            self.modules[".".join(module)] = _Source(path, parents)

    def follow_all(self, module: str) -> None:
        """Count a file with all that it imports."""
        if (module, ALL) in self._followed:
            return
        self._followed.add((module, ALL))
        self.found.add(module)
        for used in self.modules[module].imports:
            self._follow_import(self.modules[module], used)

    def _follow_import(self, source: _Source, used: _Import) -> None:
        here, module, name = used
        if not name and module in self.modules:
            self.found.add(module)
            for taken in source.taken_from(here) or {ALL}:  # handed on, or looked up by name
                self._follow_import(source, _Import(f"{here}.{taken}", module, taken))
        elif name:
            self._follow_import(source, _Import(here, f"{module}.{name}", ""))
            self._follow_name(module, name)

    def _follow_name(self, module: str, name: str) -> None:
        """Count a file where a name comes from or through, and what the name is made of."""
        source = self.modules.get(module)
        if source is None:
            return
        if source.compiles:
            self.follow_all(module)
            return
        if (module, name) in self._followed:
            return
        self._followed.add((module, name))
        if name == ALL:
            for other in {*source.made, *(used.here for used in source.imports)}:
                self._follow_name(module, other)
        else:
            for used in source.imports:
                if used.here.split(".")[0] in (name, ALL):
                    self.found.add(module)
                    whole = _Import(name, used.module, name)
                    self._follow_import(source, whole if used.here == ALL else used)
            if name in source.made:
                self.found.add(module)
                for other in source.made_of(name):
                    self._follow_name(module, other)
