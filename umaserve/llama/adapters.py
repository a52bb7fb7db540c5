"""LoRA adapters of a loaded model (``llama_adapter_lora``)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from .context import Context
from .errors import ModelLoadError
from .model import Model


class Adapters:
    """Adapters that were loaded with a model, by number; the model frees them.

    An adapter's set of scales has a number for each; a scale of 0 leaves the adapter out.
    """

    def __init__(self, model: Model, paths: Iterable[str] = ()) -> None:
        """``llama_adapter_lora_init`` for each path.  Raises `ModelLoadError`."""
        self._model = model
        self._pointers = [_open(model, path) for path in paths]

    def __len__(self) -> int:
        return len(self._pointers)

    def set(self, context: Context, scales: Sequence[float]) -> None:
        """``llama_set_adapters_lora``: have a context compute with the adapters of these scales.

        Nothing is done where the context has the same ones.  Else libllama reserves its compute
        buffers anew at the next decode.
        """
        lib, ffi = context.library.lib, context.library.ffi
        used = [(each, scale) for each, scale in zip(self._pointers, scales, strict=True) if scale]
        pointers = ffi.new("struct llama_adapter_lora *[]", [each for each, _ in used])
        lib.llama_set_adapters_lora(
            context.pointer, pointers, len(used), ffi.new("float[]", [scale for _, scale in used])
        )

    def text(self, number: int, key: str) -> str:
        """A value of an adapter's metadata as text; empty where there is none."""
        lib, ffi = self._model.library.lib, self._model.library.ffi
        room = ffi.new("char[]", 1024)
        count = lib.llama_adapter_meta_val_str(self._pointers[number], key.encode(), room, 1024)
        return ffi.string(room).decode("utf-8", "replace") if count > 0 else ""


def _open(model: Model, path: str) -> Any:
    library, mark = model.library, model.library.log_position()
    pointer = library.lib.llama_adapter_lora_init(model.pointer, os.fsencode(path))
    if pointer == library.ffi.NULL:
        why = library.first_error(mark).removeprefix("failed to apply lora adapter: ")
        raise ModelLoadError(f"the adapter {path} cannot be used: {why or 'no reason was given'}")
    return pointer
