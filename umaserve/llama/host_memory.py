"""Memory that an accelerator copies to and from without a detour (pinned host memory)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .library import Library


class HostMemory:
    """Arrays in host memory as ``ggml_backend_dev_host_buffer_type`` of an accelerator has it.

    Owns what `array` hands out until `close`.  Where there is no accelerator, or it has no such
    memory, or none is left, arrays are ordinary ones.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._buffers: list[Any] = []
        self._type = None
        lib, ffi = library.lib, library.ffi
        for kind in (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU):
            device = lib.ggml_backend_dev_by_type(kind)
            if device == ffi.NULL:
                continue
            found = lib.ggml_backend_dev_host_buffer_type(device)
            if found != ffi.NULL:
                self._type = found
                break

    def array(self, size: int) -> np.ndarray:
        """uint8[size], not initialised; no longer to be used after `close`."""
        lib, ffi = self._library.lib, self._library.ffi
        if self._type is not None:
            buffer = lib.ggml_backend_buft_alloc_buffer(self._type, size)
            if buffer != ffi.NULL:
                self._buffers.append(buffer)
                base = lib.ggml_backend_buffer_get_base(buffer)
                return np.frombuffer(ffi.buffer(base, size), np.uint8)
        return np.empty(size, np.uint8)

    def close(self) -> None:
        """Give the memory back.  Closing twice is harmless."""
        for buffer in self._buffers:
            self._library.lib.ggml_backend_buffer_free(buffer)
        self._buffers.clear()
