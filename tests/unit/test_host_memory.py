"""Memory to copy KV cells through, between an accelerator and the host."""

from __future__ import annotations

from types import SimpleNamespace

from umaserve import llama
from umaserve.llama.host_memory import HostMemory


def test_host_memory_is_ordinary_where_there_is_no_accelerator(model: llama.Model) -> None:
    lib = model.library.lib
    kinds = (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU)
    null = model.library.ffi.NULL
    # put in its mouth, so that this is so on every machine
    bare = SimpleNamespace(
        ffi=model.library.ffi,
        lib=SimpleNamespace(
            ggml_backend_dev_by_type=lambda kind: null,
            GGML_BACKEND_DEVICE_TYPE_GPU=kinds[0], GGML_BACKEND_DEVICE_TYPE_IGPU=kinds[1],
        ),
    )  # fmt: skip
    for library in (bare, model.library):
        memory = HostMemory(library)
        arrays = [memory.array(size) for size in (1, 4096, 1 << 20)]
        for i, array in enumerate(arrays):
            array[:] = i + 1
        assert [array.size for array in arrays] == [1, 4096, 1 << 20]
        assert all((array == i + 1).all() for i, array in enumerate(arrays))
        memory.close()
        memory.close()
    assert all(array.flags.owndata for array in arrays) or any(
        lib.ggml_backend_dev_by_type(kind) != null for kind in kinds
    )
