"""The scorecard in Prometheus' text format 0.0.4; its names with ``umaserve_`` before them.

What load balancers look for has their names: those that the Gateway API's inference extension asks
of a model server (``vllm:...``), and ``uma_...``.

``interactive.p95_ms`` becomes ``umaserve_p95_ms{lane="interactive"}``, and the top-level name that
says the same again is left out; ``queued_interactive`` becomes ``umaserve_queued{lane=...}``.
Texts are labels of ``umaserve_model_info``; a program's name is the label ``app``, a model's the
label ``model``.  A number that is ``None`` has no line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from umaserve.metrics.names import HELP

PREFIX = "umaserve_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LANES = ("interactive", "background")
_OWN = ("uma_", "vllm:")  # names that are whole as they are
_OF_APPS = {
    "requests": "app_requests_total",
    "active": "app_active_requests",
    "tokens": "app_tokens_generated_total",
    "share": "app_token_share",
    "cached": "app_cached_ratio",
    "p95_ms": "app_p95_ms",
}
_OF_MODELS = {
    "loaded": "model_loaded",
    "requests": "model_requests_total",
    "active": "model_active_requests",
    "waiting": "model_waiting_requests",
    "tokens": "model_tokens_generated_total",
    "prompt_tokens_computed": "model_prompt_tokens_computed_total",
    "batch_calls": "model_batch_calls_total",
    "p95_ms": "model_p95_ms",
    "ttft_ms_p95": "model_ttft_ms_p95",
    "memory_bytes": "model_memory_bytes",
    "kv_cells_used": "model_kv_cells_used",
    "kv_cells_total": "model_kv_cells_total",
}
_ROWS = {"apps": ("app", _OF_APPS), "models": ("model", _OF_MODELS)}
# what is counted apart, by which label
APART = {"errors_total": "code", "cache_evictions_total": "cause"}

Labels = tuple[tuple[str, str], ...]


def exposition(numbers: dict[str, Any], error_codes: Iterable[str] = ()) -> str:
    """The whole text for the object that ``Scorecard.read`` gives.

    ``error_codes`` are shown as 0 where no such error was sent.  Otherwise the counter would begin
    to exist with its first error, and nobody would see that error as an increase.
    """
    families: dict[str, list[tuple[Labels, Any]]] = {}
    texts: list[tuple[str, str]] = []
    for name, value in (numbers | _for_balancers(numbers)).items():
        if name in _ROWS:
            families |= _of_rows(value, *_ROWS[name])
            continue
        if isinstance(value, str):
            texts.append((name, value))
            continue
        family, lane = _apart(name)
        if value is None or (not lane and f"{_LANES[0]}.{name}" in numbers):
            continue
        if isinstance(value, dict) and "le" not in value:
            label = APART.get(family, "code")
            if label == "code":
                value = {**dict.fromkeys(error_codes, 0), **value}
            families[family] = [(((label, key),), count) for key, count in value.items()]
        else:
            labels = (("lane", lane),) if lane else ()
            families.setdefault(family, []).append((labels, value))
    if texts:
        families["model_info"] = [(tuple(texts), 1)]
    return "".join(line for family in families.items() for line in _lines(*family))


def _for_balancers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """How busy this server is, in the words of the Gateway API's inference extension."""
    waiting = [numbers.get(f"queued_{lane}") for lane in _LANES]
    used, total = numbers.get("kv_cells_used"), numbers.get("kv_cells_total")
    return {
        "vllm:num_requests_waiting": None if None in waiting else sum(waiting),
        "vllm:num_requests_running": numbers.get("active_sessions"),
        "vllm:kv_cache_usage_perc": used / total if used is not None and total else None,
    }


def _of_rows(
    rows: Mapping[str, Mapping[str, Any]], label: str, names: Mapping[str, str]
) -> dict[str, list[tuple[Labels, Any]]]:
    """Families of what is told of each program or model, whose name is the ``label``."""
    families: dict[str, list[tuple[Labels, Any]]] = {}
    for key, family in names.items():
        for name, figures in rows.items():
            if figures.get(key) is not None:
                families.setdefault(family, []).append((((label, name),), figures[key]))
    return families


def _apart(name: str) -> tuple[str, str]:
    """Name of the family, and the lane where the name says one."""
    for lane in _LANES:
        if name.startswith(lane + "."):
            return name[len(lane) + 1 :], lane
        if name == "queued_" + lane:
            return "queued", lane
    return name, ""


def _lines(family: str, samples: list[tuple[Labels, Any]]) -> Iterator[str]:
    name = family if family.startswith(_OWN) else PREFIX + family
    if isinstance(samples[0][1], dict):
        kind = "histogram"
    else:
        counts = family.endswith("_total")
        kind = "counter" if counts else "gauge"
    yield f"# HELP {name} {HELP.get(family, 'See docs/METRICS.md.')}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        if isinstance(value, dict):
            yield from _histogram(name, labels, value)
        else:
            yield f"{name}{_braces(labels)} {_number(value)}\n"


def _histogram(name: str, labels: Labels, value: Mapping[str, Any]) -> Iterator[str]:
    bounds = [_number(float(bound)) for bound in value["le"]] + ["+Inf"]
    for bound, count in zip(bounds, accumulate(value["counts"]), strict=True):
        yield f"{name}_bucket{_braces((*labels, ('le', bound)))} {count}\n"
    for part in ("sum", "count"):
        yield f"{name}_{part}{_braces(labels)} {_number(value[part])}\n"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return repr(int(value) if isinstance(value, bool) else value)
