"""Compiled code of the tests lies where the engine's does; the bundled model for tests of parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import build_llama
from umaserve import llama
from umaserve.assets import demo_model_path
from umaserve.engine.jit_cache import use_jit_cache

use_jit_cache()  # under the hash of all sources


@pytest.fixture(scope="module")
def model() -> Iterator[llama.Model]:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    with llama.Model.open(llama.load(), demo_model_path(), n_gpu_layers=0) as model:
        yield model
