"""Files that travel with the package: the demonstration model and what is recorded about it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["demo_model_path"]


def demo_model_path() -> Path:
    """The bundled GGUF, the model that is served when none is named.

    Raises :class:`FileNotFoundError`, saying how to make it, where the package was
    copied without its data.
    """
    path = Path(__file__).resolve().parent / "uma-demo.gguf"
    if not path.is_file():
        raise FileNotFoundError(
            f"the bundled model {path} is missing; reinstall umaserve, make it as "
            "demo_model/README.md says, or name another GGUF with --model"
        )
    return path
