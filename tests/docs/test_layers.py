"""Which room may know which: the map of umaserve/README.md, held against the imports.

A room is a folder of the package.  Imports are read, not run, and those for types count too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "umaserve"
MAP = ROOT / "umaserve/README.md"
BASE = "umaserve"  # the modules outside the rooms
SHARED = (BASE, "system")  # which all may use


class Import(NamedTuple):
    """A module and the module that it imports, each with its dotted name."""

    importer: str
    imported: str


def modules() -> dict[str, Path]:
    """All of the package by name; a package's own name is that of its ``__init__``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_of(name: str) -> list[Import]:
    """Those of one module from the package, wherever in the file they stand."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.append(inner if inner in MODULES else source)
    return [Import(name, other) for other in found if other in MODULES]


IMPORTS = [each for name in MODULES for each in imports_of(name)]


def room_of(module: str) -> str:
    """``engine/loop``, or ``umaserve`` for a module outside the rooms."""
    folder = MODULES[module].parent
    return BASE if folder == PACKAGE else folder.relative_to(PACKAGE).as_posix()


def wrong_arrows(
    imports: Iterable[Import], rooms: Mapping[str, str], knows: Mapping[str, set[str]]
) -> list[str]:
    """A sentence for each import that the map does not have.  ``rooms``: by module."""
    sentences = []
    for importer, imported in imports:
        here, there = rooms[importer], rooms[imported]
        if here != there and there not in SHARED and there not in knows[here]:
            sentences.append(f"`{here}` may not know `{there}`: {importer} imports {imported}")
    return sentences


def circle(imports: Iterable[Import]) -> list[str]:
    """Modules that import each other in a circle, in their order; empty where there is none."""
    knows: dict[str, list[str]] = {}
    for importer, imported in imports:
        knows.setdefault(importer, []).append(imported)
    done: set[str] = set()

    def look(module: str, way: list[str]) -> list[str]:
        if module in way:
            return way[way.index(module) :]
        if module in done:
            return []
        for other in knows.get(module, ()):
            found = look(other, [*way, module])
            if found:
                return found
        done.add(module)
        return []

    return next((found for module in knows if (found := look(module, []))), [])


def map_of_rooms() -> dict[str, tuple[str, set[str]]]:
    """By room: what it is for, and which rooms it knows, as the page says it."""
    rows = re.findall(r"^\| `([\w/]+)` \| (.*?) \| (.*?) \|$", MAP.read_text("utf-8"), re.M)
    return {room: (what, set(re.findall(r"`([\w/]+)`", knows))) for room, what, knows in rows}


def purpose(room: str) -> str:
    """The first paragraph of the room's own ``__init__``, in one line."""
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8"))) or ""
    return re.sub(r"`+", "`", " ".join(text.split("\n\n")[0].split()))


def test_the_map_has_every_room_and_what_it_is_for() -> None:
    rooms = {room_of(module) for module in MODULES} - {BASE}
    assert {room: what for room, (what, _) in map_of_rooms().items()} == {
        room: purpose(room) for room in rooms
    }


def test_every_import_is_on_the_map() -> None:
    knows = {room: others for room, (_, others) in map_of_rooms().items()}
    knows[BASE] = {"cli"}  # `python -m umaserve`
    rooms = {module: room_of(module) for module in MODULES}
    wrong = wrong_arrows(IMPORTS, rooms, knows)
    assert not wrong, "\n".join([*wrong, f"The map is in {MAP.relative_to(ROOT)}."])
    used = {(room_of(a), room_of(b)) for a, b in IMPORTS}
    unused = [(a, b) for a, others in knows.items() for b in others if (a, b) not in used]
    assert not unused, f"arrows of the map that no import has: {unused}"


def test_no_module_is_in_a_circle() -> None:
    found = circle(IMPORTS)
    assert not found, " -> ".join(found)


def test_the_front_takes_of_the_engine_only_what_they_share() -> None:
    of_the_front = [each for each in IMPORTS if room_of(each.importer).startswith("server")]
    others = {room_of(each.imported).split("/")[0] for each in of_the_front}
    assert "wire" in others
    assert not others & {"engine", "policy", "sampling", "jit", "llama"}


def test_a_planted_arrow_is_named() -> None:
    rooms = {"umaserve.policy.base": "policy", "umaserve.engine.ticks.ticks": "engine/ticks"}
    planted = Import("umaserve.policy.base", "umaserve.engine.ticks.ticks")
    there = Import(planted.imported, planted.importer)
    knows = {"policy": set[str](), "engine/ticks": {"policy"}}
    assert wrong_arrows([planted, there], rooms, knows) == [
        "`policy` may not know `engine/ticks`: "
        "umaserve.policy.base imports umaserve.engine.ticks.ticks"
    ]
    assert circle([planted]) == []
    assert circle([planted, there]) == [planted.importer, planted.imported]
    read = {
        Import("umaserve.server.main", "umaserve.server.daemon"),
        Import("umaserve.engine.loop.engine", "umaserve.wire.table"),
    }
    assert read <= set(IMPORTS)


def test_what_tests_share_lies_in_support() -> None:
    """No test imports another: who changes a test changes nothing else."""
    pattern = re.compile(r"\btests\.(?:unit|policy|engine|server|e2e|docs)\.test_\w+ import")
    users = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if pattern.search(path.read_text("utf-8"))
    ]
    assert users == []
    assert not [path for path in (ROOT / "tests/support").rglob("test_*.py")]
