"""Estimates for a model on this machine: how much context fits, and about how fast it decodes.

Decoding reads the weights once a token, so bandwidth over bytes bounds its rate.  The best figure
is the fastest run of this very model by daemons here: other programs only make a run slower.
Without such a run, a run of another large model gives the bandwidth.  Without any run, reading main
memory for a moment gives the bandwidth.
"""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from umaserve.llama.builds import cache_root
from umaserve.llama.memory import kv_bytes_per_cell, state_shape
from umaserve.llama.traffic import Traffic
from umaserve.models.gguf.header import GGUFInfo
from umaserve.models.kv_shape import KvKind
from umaserve.models.needs import ENGINE_BYTES
from umaserve.system.own_file import open_to_read
from umaserve.system.private_folder import why_shared
from umaserve.system.processor import logical_cores

from .graphics import graphics_bytes

COST_LAYOUT = 10  # of `engine.model.costs.cost_file`, which a test compares
_SURE = 2.0  # ticks behind a figure
ALIKE = 1.1  # times the best: a run as good
_LARGE_BYTES = 200 << 20  # of smaller models, calls and caches decide, not bandwidth
_LEAST_CONTEXT = 512  # fewer tokens are no use
_SUMMED_BYTES, _MEASURE_S = 256 << 20, 0.15


class Learned(NamedTuple):
    """Figures of a model that daemons learned here: bytes, parameters, and ms of a lone token.

    ``runs`` are ms of single runs, ``ms`` is the best.  ``where``: machine, backend and devices.
    """

    model_bytes: int
    parameters: int
    ms: float
    mixture: bool  # of experts: a token reads only some of the bytes
    runs: tuple[float, ...] = ()
    where: str = ""


class Machine(NamedTuple):
    """``memory``: of graphics cards with their own (``graphics``), else main memory.

    ``bandwidth``: bytes per second that decoding reads, None where nobody knows yet.
    """

    memory: int
    bandwidth: float | None
    learned: tuple[Learned, ...] = ()
    graphics: bool = False


class Estimate(NamedTuple):
    """``context``: tokens that fit, at most the trained length; 0 = the model does not fit.

    ``needs``: bytes with that context, or with the least useful one.  ``rate``: tokens per second
    of one stream, None where nothing says; ``measured``: of this very model, in so many ``runs``.
    It is the best of them, and ``sure`` where a second run was as good.
    """

    context: int
    needs: int
    rate: float | None
    measured: bool
    runs: int = 0
    sure: bool = False


def estimate(info: GGUFInfo, n_ctx_train: int, kv: tuple[str, str], machine: Machine) -> Estimate:
    """Estimate a model by its header; ``kv``: ggml's names of the types of K and V."""
    cell = kv_bytes_per_cell(info, KvKind(*kv))
    fixed = info.tensor_bytes + state_shape(info).n_bytes + ENGINE_BYTES
    most = n_ctx_train or 4096
    left = machine.memory - fixed
    context = min(most, left // cell if cell else most) if left > 0 else 0
    if context < min(_LEAST_CONTEXT, most):
        context = 0
    needs = fixed + cell * (context or min(_LEAST_CONTEXT, most))
    own = [k for k in machine.learned if (k.model_bytes, k.parameters) == _size(info)]
    own = [known for known in own if known.where == own[0].where]  # as the newest daemon
    if own:
        best, runs = min(known.ms for known in own), [ms for known in own for ms in known.runs]
        sure = sum(ms <= ALIKE * best for ms in runs) > 1
        return Estimate(context, needs, 1e3 / best, True, max(len(runs), 1), sure)
    rate = machine.bandwidth / bytes_per_token(info) if machine.bandwidth else None
    return Estimate(context, needs, rate, False)


def bytes_per_token(info: GGUFInfo) -> float:
    """Weights that a lone token reads: of a mixture of experts, those that it uses."""
    traffic = Traffic.of(info)
    return max(traffic.dense + traffic.head + traffic.expert * traffic.n_expert_used, 1.0)


def this_machine(main_memory: int) -> Machine:
    """Looks at what daemons learned here; measures main memory for a moment where they did not."""
    learned = tuple(_learned(cache_root() / "costs"))
    told = [known for known in learned if known.model_bytes >= _LARGE_BYTES and not known.mixture]
    rates = [known.model_bytes / known.ms * 1e3 for known in told]
    cards = graphics_bytes()
    bandwidth = max(rates) if rates else None
    if bandwidth is None and cards is None:
        bandwidth = _main_memory()
    return Machine(cards or main_memory, bandwidth, learned, bool(cards))


def _size(info: GGUFInfo) -> tuple[int, int]:
    return info.tensor_bytes, sum(math.prod(tensor.shape) for tensor in info.tensors)


def _learned(folder: Path) -> list[Learned]:
    """The newest first."""
    if not folder.is_dir() or why_shared(folder):
        return []
    found = []
    for path in sorted(folder.glob("*.npz"), key=lambda path: -path.stat().st_mtime):
        known = _read(path)
        if known is not None:
            found.append(known)
    return found


def _read(path: Path) -> Learned | None:
    import numpy as np

    try:
        with open_to_read(path) as file, np.load(file, allow_pickle=False) as stored:
            key: dict[str, Any] = json.loads(str(stored["key"]))
            ms, count = float(stored["mean"][0, 1, 0]), float(stored["count"][0, 1, 0])
            runs = tuple(map(float, stored["runs"])) if "runs" in stored else ()
        description, size, parameters = key["model"]
        usable = key["layout"] == COST_LAYOUT and key["experts_used"] == 0
        if usable and count >= _SURE and ms > 0:
            mixture = "moe" in description.lower() or ".A" in description
            where = json.dumps([key.get(name) for name in ("machine", "backend", "devices")])
            return Learned(int(size), int(parameters), min([ms, *runs]), mixture, runs, where)
    except Exception:  # numpy, zipfile and json each have their own for damage
        return None
    return None


def _main_memory() -> float:
    """Bytes per second that all cores read together: the best of a few passes."""
    import numpy as np

    threads = min(logical_cores(), 16)
    parts = np.array_split(np.ones(_SUMMED_BYTES // 8, np.float64), threads)
    best, until = 0.0, time.perf_counter() + _MEASURE_S
    with ThreadPoolExecutor(threads) as pool:
        while time.perf_counter() < until or not best:
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, _SUMMED_BYTES / (time.perf_counter() - began))
    return best
