"""What runs imports only what is installed to run: pyproject.toml's dependencies.

Imports are read, not run, so that one within a function counts too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OWN = {"umaserve", "bindings", "build_llama"}
# numba's own language for intrinsics, the type of what jinja2 writes, and the errors of the network
# that huggingface-hub passes on: no version without them.
BROUGHT = {"llvmlite", "markupsafe", "httpx2"}
# `make run` and `make lock` run these before a package of the tests is installed.
SOURCES = [
    *sorted((ROOT / "umaserve").rglob("*.py")), *sorted((ROOT / "bindings").rglob("*.py")),
    ROOT / "build_llama.py", ROOT / "tools/lock.py",
]  # fmt: skip
# A report of `umaserve bench` asks first whether its extra is there.
EXTRAS = {"umaserve/bench/charts.py": "bench", "umaserve/bench/page.py": "bench"}
DISTRIBUTIONS = packages_distributions()  # by module; it reads every installed package


class Import(NamedTuple):
    """The first name of an imported module, and whether it is imported with the file."""

    name: str
    at_once: bool


def imports_of(text: str) -> Iterator[Import]:
    """Those of other packages; an import for types alone is none."""
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(text), True)]
    while todo:
        node, at_once = todo.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name.partition(".")[0], at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield Import(node.module.partition(".")[0], at_once)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += [(child, at_once) for child in node.orelse]
        else:
            within = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            todo += [(child, at_once and not within) for child in ast.iter_child_nodes(node)]


def packages(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def strangers(text: str, extra: str | None = None) -> set[str]:
    """The modules that `text` imports and that no dependency brings."""
    allowed = packages(PROJECT["dependencies"]) | BROUGHT
    later = packages(PROJECT["optional-dependencies"][extra]) if extra else set()
    found = set()
    for name, at_once in imports_of(text):
        if name in sys.stdlib_module_names or name in OWN:
            continue
        of = {canonicalize_name(each) for each in DISTRIBUTIONS.get(name, [])}
        if not of & (allowed if at_once else allowed | later):
            found.add(name)
    return found


def test_what_runs_imports_dependencies_only() -> None:
    said = {}
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        found = strangers(path.read_text("utf-8"), EXTRAS.get(place))
        if found:
            said[place] = found
    assert said == {}, "name it among pyproject.toml's dependencies, or do without"


@pytest.mark.parametrize(
    ("text", "extra", "found"),
    [
        ("import psutil", None, {"psutil"}),
        ("def f():\n    from hypothesis import given", None, {"hypothesis"}),
        ("try:\n    import gguf.quants\nexcept ImportError:\n    pass", None, {"gguf"}),
        ("import os, numpy.random\nfrom umaserve import jit\nfrom . import pytest", None, set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pytest", None, set()),
        ("import matplotlib", "bench", {"matplotlib"}),
        ("def f():\n    import matplotlib", "bench", set()),
        ("def f():\n    import matplotlib", None, {"matplotlib"}),
        ("import nobody_has_this", None, {"nobody_has_this"}),
    ],
)
def test_a_package_of_the_tests_is_found(text: str, extra: str | None, found: set[str]) -> None:
    assert strangers(text, extra) == found
