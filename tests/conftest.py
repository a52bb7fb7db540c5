"""Compiled code of the tests lies where the engine's does, under the hash of all its sources."""

from __future__ import annotations

from umaserve.engine.jit_cache import use_jit_cache

use_jit_cache()
