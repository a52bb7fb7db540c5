"""LoRA adapters of a loaded model (``llama_adapter_lora``)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from .context import Context
from .errors import ModelLoadError
from .library import Library
from .model import Model


class Adapters:
    """Adapters that were loaded with a model, by number; the model frees them.

    A set of scales has a number for each; a scale of 0 leaves the adapter out.  ``home`` are the
    scales where a request names no others.  ``digests`` tell what the files hold.
    """

    def __init__(
        self, model: Model | None = None, paths: Iterable[str] = (),
        home: tuple[float, ...] = (), digests: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """``llama_adapter_lora_init`` for each path.  Raises `ModelLoadError`."""
        self.home, self.digests = home, digests
        self._pointers = [_open(model, path) for path in paths] if model is not None else []

    def __len__(self) -> int:
        return len(self.home)

    def scales(self, named: Iterable[tuple[int, float]]) -> tuple[float, ...]:
        """Return the scales of all adapters where a request names those of some.

        An adapter that is not named has none, unless no adapter is named.
        """
        found = dict(named)
        return tuple(found.get(i, 0.0) for i in range(len(self))) if found else self.home

    def set(self, context: Context, scales: Sequence[float] | None = None) -> None:
        """Have a context compute with these scales, or with ``home`` (``llama_set_adapters_lora``).

        Nothing is done where the context has the same ones.  Else libllama reserves its compute
        buffers anew at the next decode.
        """
        if not self._pointers:
            return
        lib, ffi = context.library.lib, context.library.ffi
        scales = self.home if scales is None else scales
        used = [(each, scale) for each, scale in zip(self._pointers, scales, strict=True) if scale]
        pointers = ffi.new("struct llama_adapter_lora *[]", [each for each, _ in used])
        lib.llama_set_adapters_lora(
            context.pointer, pointers, len(used), ffi.new("float[]", [scale for _, scale in used])
        )

    def text(self, library: Library, number: int, key: str) -> str:
        """A value of an adapter's metadata as text; empty where there is none."""
        lib, ffi = library.lib, library.ffi
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
