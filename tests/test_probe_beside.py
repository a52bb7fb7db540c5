"""Before the first prompt beside the ticks: what one costs, and memory to copy it through."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from tests.prefill_rig import N_SEQ, Rig
from umaserve import llama
from umaserve.engine.probe_beside import probe_beside
from umaserve.llama.host_memory import HostMemory
from umaserve.policy.cost import BESIDE_SIZES, CHUNK_MS, FACTOR, SEEN, CostModel


@pytest.fixture
def rig(model: llama.Model) -> Iterator[Rig]:
    rig = Rig(model)
    yield rig
    rig.close()


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


def test_the_probe_learns_small_chunks_and_leaves_no_cells(rig: Rig) -> None:
    loaded = SimpleNamespace(**vars(rig.loaded), n_threads=1, n_vocab=rig.model.n_vocab)
    for _ in range(5):  # on a busy machine too few ticks may run beside a chunk
        cost = CostModel.unknown()
        probe_beside(loaded, rig.start, cost, 0.1)
        assert all(rig.context.seq_pos_max(seq) == -1 for seq in range(N_SEQ + 1))
        if cost.beside[0, SEEN]:
            break
    seen = np.flatnonzero(cost.beside[:, SEEN])
    assert seen.tolist() == list(range(seen.size)) and seen.size >= 1
    assert (cost.beside[seen, FACTOR] >= 1.0).all()
    assert (cost.beside[seen, CHUNK_MS] > 0.0).all()
    assert not any(array.any() for array in cost[:-1])
    # too little room for the largest chunks: not tried
    cost = CostModel.unknown()
    few = SimpleNamespace(**{**vars(loaded), "n_ctx": 2 * int(BESIDE_SIZES[-1]) - 1})
    probe_beside(few, rig.start, cost)
    assert not cost.beside.any()
