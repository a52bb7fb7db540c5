"""Costs of ticks on this machine, kept from one start to the next.

One small file for each combination of model, library, backend, machine and settings that change the
cost of a tick.  A file that cannot be read or written is no reason to stop: the costs are learned
again.

The time of a lone token in each of the newest runs lies beside the files.  Other programs only make
a run slower, so the best run tells what the machine can do, and a second run as good confirms it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from umaserve.engine.model.loaded import Loaded
from umaserve.llama.builds import cache_root
from umaserve.policy.cost.model import CostModel
from umaserve.system.own_file import open_to_read
from umaserve.system.private_folder import make_private, why_shared
from umaserve.system.processor import processor_name
from umaserve.wire import messages as m

LAYOUT = 10  # raise it when what the numbers mean changes
KEEP = 64  # files; the oldest go
RUNS = 8  # newest runs of which the time of a lone token is kept
RUN_TICKS = 8.0  # of a lone token: with fewer, a run says nothing of its own


def identity(start: m.Start, loaded: Loaded) -> dict[str, Any]:
    """Everything that the cost of a tick depends on, as JSON values."""
    model = loaded.model
    return {
        "layout": LAYOUT,
        "model": [model.description, model.size_bytes, model.n_params],
        "library": loaded.library.version,
        "backend": loaded.library.build.backend,
        "devices": loaded.device,
        "gpu_layers": start.gpu_layers,
        "machine": [platform.machine(), processor_name(), os.cpu_count()],
        "threads": [loaded.n_threads, loaded.n_threads_batch],
        "kv": [start.type_k, start.type_v, start.head_major, start.flash_attn],
        "n_ubatch": loaded.n_ubatch,
        "experts_used": start.experts_used,  # 0 = the model's own number
        **_adapters(loaded),
    }


def _adapters(loaded: Loaded) -> dict[str, Any]:
    """The adapters that ticks have where no request names others."""
    sets = loaded.adapters
    used = [each for each in zip(sets.digests, sets.home, strict=True) if each[1]]
    return {"adapters": used} if used else {}


def saved_by(start: m.Start, loaded: Loaded) -> dict[str, Any]:
    """Everything that saved keys and values depend on, as JSON values."""
    return {
        "layout": LAYOUT,
        "model": loaded.identity.digest,
        "library": loaded.library.version,
        "backend": loaded.library.build.backend,
        "experts": start.experts_used,
        "kv": [start.type_k, start.type_v, start.head_major, start.flash_attn],
    }


class CostFile:
    """Reads and writes the CostModel of one identity."""

    def __init__(self, key: dict[str, Any], folder: Path | None = None) -> None:
        self.key = json.dumps(key, sort_keys=True)
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:20]
        self.folder = folder if folder is not None else cache_root() / "costs"
        self.path = self.folder / f"{digest}.npz"
        self._stored_parts = self._doubted_parts = np.zeros(0)
        self._runs = np.zeros(0)  # best ms of a lone token in each earlier run, the newest last
        self._run_ms = np.inf  # the same of this run

    def load(self, cost: CostModel) -> bool:
        """Fill ``cost`` from the file; False, with nothing changed, where none fits.

        Numbers that another user could have put there are not believed.
        """
        if why_shared(self.path):
            return False
        try:
            with open_to_read(self.path) as file, np.load(file, allow_pickle=False) as stored:
                if str(stored["key"]) != self.key:
                    return False
                arrays = {name: stored[name] for name in cost.numbers()}
                kept = CostModel.of(arrays)
                runs = stored["runs"] if "runs" in stored else np.zeros(0)
        except Exception:  # numpy, zipfile, zlib and tokenize each have their own for damage
            return False
        if not all(np.isfinite(array).all() for array in arrays.values()):
            return False
        cost.copy_from(kept)
        cost.doubt()  # the machine may have been busier then, or less
        self._stored_parts, self._doubted_parts = arrays["parts"], cost.parts.copy()
        self._runs = runs[np.isfinite(runs)][-RUNS:]
        return True

    def save(self, cost: CostModel) -> str:
        """Replace the file; returns why that failed, or an empty string."""
        arrays: dict[str, Any] = cost.numbers()
        if self._doubted_parts.size:
            # once a start is enough: what nobody used since is as it was
            unused = cost.parts == self._doubted_parts
            arrays["parts"] = np.where(unused, self._stored_parts, cost.parts)
        if cost.count[0, 1, 0] >= RUN_TICKS:
            self._run_ms = min(self._run_ms, cost.mean[0, 1, 0])
        runs = [*self._runs, self._run_ms] if np.isfinite(self._run_ms) else self._runs
        arrays["runs"] = np.array(runs[-RUNS:], np.float64)
        try:
            make_private(self.folder)
            handle, name = tempfile.mkstemp(prefix=".tmp-", suffix=".npz", dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    np.savez_compressed(file, key=self.key, **arrays)
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise
            files = sorted(self.folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
            for path in files[:-KEEP]:
                path.unlink(missing_ok=True)
        except OSError as error:
            return str(error)
        return ""
