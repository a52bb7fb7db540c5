"""What runs imports only what is installed to run: pyproject.toml's dependencies.

Imports are read, not run, so that one within a function counts too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OWN = {"umaserve", "bindings", "build_llama"}
# the errors of the network that huggingface-hub passes on, and what httpx2 connects with: no
# version without them
BROUGHT = {"httpx2", "httpcore2", "anyio"}
# `make run` and `make lock` run these before a package of the tests is installed.
SOURCES = [
    *sorted((ROOT / "umaserve").rglob("*.py")), *sorted((ROOT / "bindings").rglob("*.py")),
    ROOT / "build_llama.py",
    *(ROOT / "tools" / f"{name}.py" for name in ("first_start", "room", "run", "lock")),
]  # fmt: skip
DISTRIBUTIONS = packages_distributions()  # by module; it reads every installed package


def imports_of(text: str) -> Iterator[str]:
    """The first names of modules of other packages; an import for types alone is none."""
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)


def packages(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def strangers(text: str) -> set[str]:
    """The modules that `text` imports and that no dependency brings."""
    allowed = packages(PROJECT["dependencies"]) | BROUGHT
    found = set()
    for name in imports_of(text):
        if name in sys.stdlib_module_names or name in OWN:
            continue
        if not {canonicalize_name(each) for each in DISTRIBUTIONS.get(name, [])} & allowed:
            found.add(name)
    return found


def test_what_runs_imports_dependencies_only() -> None:
    said = {}
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        found = strangers(path.read_text("utf-8"))
        if found:
            said[place] = found
    assert said == {}, "name it among pyproject.toml's dependencies, or do without"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import psutil", {"psutil"}),
        ("def f():\n    from hypothesis import given", {"hypothesis"}),
        ("try:\n    import gguf.quants\nexcept ImportError:\n    pass", {"gguf"}),
        ("import os, numpy.random\nfrom umaserve import jit\nfrom . import pytest", set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pytest", set()),
        ("def f():\n    import matplotlib", {"matplotlib"}),
        ("import nobody_has_this", {"nobody_has_this"}),
    ],
)
def test_a_package_of_the_tests_is_found(text: str, found: set[str]) -> None:
    assert strangers(text) == found
