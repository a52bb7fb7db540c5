"""Which files count as compiled: wherever they lie, however a constant gets into them."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import umaserve
from umaserve.jit.sources import compiled_sources

HOT = "from numba import njit\n{}\n\n@njit\ndef hot(x):\n    return x + {}\n"


def plant(folder: Path, files: dict[str, str]) -> Path:
    """A package of these files, and of what makes their folders packages."""
    package = folder / "planted"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for inner in (package, *(p for p in package.rglob("*") if p.is_dir())):
        (inner / "__init__.py").touch()
    return package


def found(package: Path) -> set[str]:
    return {str(path.relative_to(package)) for path in compiled_sources(package)}


# what the compiled file imports and uses, the other files, those of them that count
TREES = {
    "compiled code lies in a deep folder": ("", "1", {}, set()),
    "two dots": (
        "from ..limits import MOST", "MOST", {"engine/limits.py": "MOST = 3"}, {"engine/limits.py"}
    ),
    "a module by two dots": (
        "from .. import limits", "limits.MOST", {"engine/limits.py": "MOST = 3"},
        {"engine/limits.py"},
    ),
    "three dots, and a module that is called something else": (
        "from ... import limits as few", "few.MOST", {"limits.py": "MOST = 3"}, {"limits.py"}
    ),
    "the same file names in several folders": (
        "from ...wire.limits import MOST", "MOST",
        {"wire/limits.py": "MOST = 3", "engine/limits.py": "", "engine/loop/limits.py": ""},
        {"wire/limits.py"},
    ),
    "by the package's name": (
        "from planted.limits import MOST", "MOST", {"limits.py": "MOST = 3"}, {"limits.py"}
    ),
    "a module by its whole name": (
        "import planted.wire.limits", "planted.wire.limits.MOST",
        {"wire/limits.py": "from .more import MOST", "wire/more.py": "MOST = 3"},
        {"wire/limits.py", "wire/more.py"},
    ),
    "a module that another file hands on": (
        "from ...wire import numbers", "numbers.MOST",
        {"wire/__init__.py": "from . import limits as numbers",
         "wire/limits.py": "from .more import MOST", "wire/more.py": "MOST = 3"},
        {"wire/__init__.py", "wire/limits.py", "wire/more.py"},
    ),
    "brackets, comments and several lines": (
        "from ..limits import (\n    FEW,  # (as many as fit)\n    MOST as m,\n)", "m",
        {"engine/limits.py": "from .more import MOST\nFEW = 1", "engine/more.py": "MOST = 3"},
        {"engine/limits.py", "engine/more.py"},
    ),
    "a re-export by a package": (
        "from ...wire import MOST", "MOST",
        {"wire/__init__.py": "from .limits import MOST", "wire/limits.py": "MOST = 3"},
        {"wire/__init__.py", "wire/limits.py"},
    ),
    "a re-export of everything": (
        "from ...wire import MOST", "MOST",
        {"wire/__init__.py": "from .limits import *", "wire/limits.py": "MOST = 3"},
        {"wire/__init__.py", "wire/limits.py"},
    ),
    "everything is imported": (
        "from ...wire import *", "MOST",
        {"wire/__init__.py": "from .limits import MOST", "wire/limits.py": "MOST = 3"},
        {"wire/__init__.py", "wire/limits.py"},
    ),
    "a constant that is made of another": (
        "from ..limits import BOTH", "BOTH",
        {"engine/limits.py": "from .more import few\nA, B = few(), 1\nBOTH = A + B",
         "engine/more.py": "import planted.least as l\ndef few():\n    return l.LEAST",
         "least.py": "LEAST = 1"},
        {"engine/limits.py", "engine/more.py", "least.py"},
    ),
    "a constant that is filled in later": (
        "from ..limits import SIZES", "SIZES[0]",
        {"engine/limits.py": "from .more import MOST\nSIZES = [1]\nSIZES[0] = MOST",
         "engine/more.py": "MOST = 3"},
        {"engine/limits.py", "engine/more.py"},
    ),
    "a constant that depends on the machine": (
        "from ..limits import MOST", "MOST",
        {"engine/limits.py": "import sys\nif sys.byteorder:\n    from .more import MOST\n",
         "engine/more.py": "MOST = 3"},
        {"engine/limits.py", "engine/more.py"},
    ),
    "another compiled file, with all of its own": (
        "from ..warm import warm", "warm(1)",
        {"engine/warm.py": HOT.format("from .limits import MOST", "MOST").replace("hot", "warm"),
         "engine/limits.py": "MOST = 3"},
        {"engine/warm.py", "engine/limits.py"},
    ),
    "what only types need": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ...server import Server",
        "1",
        {"server.py": "class Server: pass"}, set(),
    ),
    "a docstring that speaks of an import": (
        '"""Text.\n\nimport of everything:\nfrom x import (\n"""\nfrom ..limits import MOST',
        "MOST",
        {"engine/limits.py": "MOST = 3"}, {"engine/limits.py"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
def test_files_that_a_compiled_one_depends_on(tree: str, tmp_path: Path) -> None:
    imports, used, others, counted = TREES[tree]
    hot = "engine/loop/hot.py"
    package = plant(tmp_path, {hot: HOT.format(imports, used), "cli.py": "MOST = 4", **others})
    assert found(package) == {hot, *counted}


FOLDERS = ["", "a/", "a/a/", "a/b/", "b/", "b/a/c/"]
FILES = [folder + name for folder in FOLDERS for name in ("x.py", "y.py", "__init__.py")]


def handed_on(path: str, origin: str, by_dots: bool, as_module: bool, renamed: bool) -> str:
    """Text of a file that takes V from another one."""
    module = origin.removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")
    start = "." * (path.count("/") + 1) if by_dots else "planted."
    if as_module and module:
        above, _, last = module.rpartition(".")
        where = start + above if by_dots else f"{start}{above}".rstrip(".")
        return f"from {where} import {last} as m\nV = m.V\n"
    where = start + module if by_dots else f"{start}{module}".rstrip(".")
    return f"from {where} import V as W\nV = W + 0\n" if renamed else f"from {where} import V\n"


@given(
    st.sampled_from(FOLDERS),
    st.lists(st.sampled_from(FILES), min_size=1, max_size=6, unique=True),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=6, max_size=6),
)
@settings(max_examples=60)
def test_every_file_that_hands_a_constant_on_counts(folder, others, ways) -> None:
    chain = [f"{folder}hot.py", *others]
    texts = [handed_on(a, b, *way) for a, b, way in zip(chain, others, ways, strict=False)]
    texts = [HOT.format(texts[0], "V"), *texts[1:], "V = 7"]
    with tempfile.TemporaryDirectory() as place:
        package = plant(Path(place), dict(zip(chain, texts, strict=True)))
        for path in FILES:
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).touch()
        try:
            value = imported(place, chain[0]).V
        except (AttributeError, ImportError) as error:
            assume("circular import" not in str(error))
            raise
        assert value == 7  # else the texts are wrong
        assert found(package) == set(chain)


def imported(place: str, path: str) -> ModuleType:
    importlib.invalidate_caches()
    sys.path.insert(0, place)
    try:
        return importlib.import_module("planted." + path.removesuffix(".py").replace("/", "."))
    finally:
        sys.path.remove(place)
        for name in [name for name in sys.modules if name.split(".")[0] == "planted"]:
            del sys.modules[name]


def test_the_front_does_not_count() -> None:
    """Else an edit of the front would cost every user minutes of compiling."""
    package = Path(umaserve.__file__).resolve().parent
    counted = compiled_sources(package)
    assert package / "wire/states.py" in counted  # its constants are compiled in
    plain = {"server", "cli", "client", "protocol", "dashboard", "bench", "metrics", "assets"}
    assert not plain & {path.relative_to(package).parts[0] for path in counted}
    assert len(counted) < len(list(package.rglob("*.py"))) / 3


def test_every_function_that_the_engine_compiles_counts() -> None:
    """Whatever it is decorated with."""
    from numba.core.dispatcher import Dispatcher

    importlib.import_module("umaserve.engine.loop.engine")
    package = Path(umaserve.__file__).resolve().parent
    compiled = {
        Path(value.py_func.__code__.co_filename).resolve()
        for name, module in list(sys.modules.items())
        if name.startswith("umaserve.")
        for value in vars(module).values()
        if isinstance(value, Dispatcher)
    }
    assert len(compiled) > 20 and compiled <= set(compiled_sources(package))
