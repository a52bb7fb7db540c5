"""What ``doctor`` looks at in a child process: libllama may abort, or hang in a driver.

    python -m umaserve.cli.doctor.probe BACKEND MODEL

prints one JSON object per line, each as soon as it is known, so that what came before a crash is
not lost.  ``error`` in one of them is a sentence for the user.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from umaserve.models.gguf import check_gguf
from umaserve.models.header import GGUFError


def _tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main(backend: str, model: str) -> None:
    from umaserve.llama import builds

    found = [build.key for build in builds.installed()]
    _tell(what="builds", cache=str(builds.cache_root()), found=found, refused=builds.refused())
    import umaserve.llama as llama
    from umaserve.llama.purpose import why_no_model

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
    _tell(what="devices", devices=llama.devices(library))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
