"""Checks that ``doctor`` makes in a child process: libllama may abort, or hang in a driver.

    python -m umaserve.cli.doctor.probe START

START is the message that starts an engine, as JSON.  The output is one JSON object per line, each
as soon as it is known: so all objects before a crash arrive.  ``error`` in an object is a sentence
for the user.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFError
from umaserve.models.needs import available_bytes
from umaserve.models.purpose import why_no_model
from umaserve.texts import path_of
from umaserve.wire import messages as m


def _tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main(start: m.Start) -> None:
    backend, model = start.backend, path_of(start.model_path)
    from umaserve.llama import builds

    found = [build.key for build in builds.installed()]
    _tell(what="builds", cache=str(builds.cache_root()), found=found, refused=builds.refused())
    import umaserve.llama as llama

    try:
        info = check_gguf(model)
        why = why_no_model(info)
        why = why and f"{model} cannot be served: {why}"
    except (GGUFError, OSError) as error:
        why = str(error)
    if why:
        _tell(what="model", error=why)
    else:
        _tell(what="model", architecture=info.architecture, bytes=info.file_bytes)
    try:
        library = llama.load(backend)
    except llama.LlamaError as error:
        _tell(what="library", error=str(error))
        return
    build = library.build
    _tell(
        what="library",
        key=build.key,
        backend=build.backend,
        version=library.version,
        why_no_chat=build.why_no_chat,
    )
    devices = llama.devices(library)
    _tell(what="devices", devices=devices)
    if not why:
        from umaserve.engine.model import capacity, heads

        also = heads.bytes_needed(start)
        fits = capacity.find_fits(start, info, devices, available_bytes(), also)
        _, fits = capacity.leave_snapshots(start, info, fits)
        cells = start.n_ctx or capacity.auto_cells(start, fits)
        need = llama.memory_needed(model, n_ctx=cells, kind=capacity.kv_kind(start))
        _tell(what="context", cells=cells, bytes=need.kv_bytes, positions=start.positions)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=m.Start))
