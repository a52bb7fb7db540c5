"""The models that benchmarks run on: random weights in published shapes, made on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from umaserve.assets import demo_model_path
from umaserve.llama import builds

_MAKER = Path(__file__).resolve().parent.parent / "tools" / "make_model.py"


def model_path(name: str, quant: str = "q8_0", chain: bool = False, wrong: int = 0) -> Path:
    """A GGUF: ``demo`` (the bundled model), a shape of ``tools/make_model.py``, or a path.

    A shape is written into the cache directory once, with seed 1, so that every machine has the
    same bytes.  ``chain``: a shape whose token t + 1 follows token t, ``wrong``: but for two of so
    many tokens.
    """
    if name == "demo":
        return demo_model_path()
    if name.endswith(".gguf"):
        return Path(name)
    folder = builds.cache_root() / "bench-models"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{'-chain' * chain}{f'-wrong{wrong}' if wrong else ''}-{quant}.gguf"
    if not path.exists():
        subprocess.run(
            [sys.executable, str(_MAKER), "--shape", name, "--quant", quant, "--out", str(path),
             *["--chain"] * chain, *(["--chain-wrong", str(wrong)] if wrong else [])],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
    return path
