"""From the daemon's settings to what an engine is told, and whether that can fit this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from umaserve.config import Config
from umaserve.models import needs as memory
from umaserve.models.adapter import adapter_bytes
from umaserve.models.draft_model import draft_bytes, head_bytes
from umaserve.models.kv_shape import KvKind
from umaserve.models.projector import projector_bytes, projector_of
from umaserve.models.states import RESERVED, TEXTS_AT_ONCE
from umaserve.wire import messages as m

if TYPE_CHECKING:
    from umaserve.server.engines.handle import EngineHandle

ENCODERS = "embed", "rerank"  # roles of models that generate nothing
# settings that the engine gets as they are
SAME_IN_START = (
    "n_ctx", "n_seq", "n_batch", "n_ubatch", "backend", "gpu_layers", "use_mmap", "use_mlock",
    "pretouch", "head_major", "max_merge", "tick_budget_ms", "latency_cap", "reading_ms",
    "bmt_budget", "cache_disk", "policy", "speculate", "draft_model", "prefill_threads",
    "log_level", "core_dumps",
)  # fmt: skip
MOST_POSITIONS = 1 << 20  # of a session where --n-ctx is auto, whatever a header says


class Need(NamedTuple):
    """Predicted memory of a model: all its bytes, and how many earlier states of a sequence.

    ``earlier_bytes``: bytes of these states, which serve drafts alone.
    """

    n_bytes: int
    earlier_states: int = 0
    earlier_bytes: int = 0

    @property
    def least(self) -> Need:
        """Predicted memory without earlier states."""
        return Need(self.n_bytes - self.earlier_bytes)


def start_message(
    config: Config, model: memory.ModelFile, role: str = "", need: Need | None = None
) -> m.Start:
    """Return the start message for an engine, from the daemon's settings and the model's role.

    The engine knows what memory bears, but not ``--models-memory``, so ``need`` bounds its states.
    """
    positions = model.n_ctx_train or config.n_ctx or memory.LEAST_CELLS
    return m.Start(
        model_path=model.path,
        n_slots=config.max_sessions,
        n_positions=positions if config.n_ctx else min(positions, MOST_POSITIONS),
        earlier_states=need.earlier_states if need and config.models_memory > 0 else -1,
        n_threads=config.threads,
        experts_used=max(config.experts_used, 0),
        type_k=config.kv_type_k,
        type_v=config.kv_type_v,
        cache_bytes=config.cache_ram,
        cache_dir=config.cache_dir if config.cache_dir != "off" else "",
        without=tuple(config.without.split(",")) if config.without else (),
        mmproj=projector_of(config.mmproj, model.path),
        adapters=tuple(
            m.Adapter(each.name, os.path.abspath(each.path), each.scale) for each in config.lora
        ),
        encodes=role in ENCODERS,
        **{name: getattr(config, name) for name in SAME_IN_START},
    )


def why_not_served(file: memory.ModelFile, config: Config) -> str:
    """Why a model cannot be served with these settings, as far as the front can tell; else empty.

    The engine looks at what only its devices tell.
    """
    why = file.cells.why_not(kv_kind(config))
    return f"{file.path} cannot be served: {why}" if why else too_big(file, config)


def kv_kind(config: Config) -> KvKind:
    """Return the kind of KV cells that the daemon's settings ask for."""
    return KvKind(config.kv_type_k, config.kv_type_v, config.head_major)


def memory_of(file: memory.ModelFile, config: Config, role: str = "") -> Need:
    """Return the memory that serving a model takes, roughly.

    Of earlier states it counts as many as an engine alone keeps in ``--models-memory``, else in the
    main memory that is free now.
    """
    encodes = role in ENCODERS or bool(file.role)
    sequences = _sequences(config, encodes)
    eyes = projector_bytes(projector_of(config.mmproj, file.path))
    adapters = adapter_bytes(each.path for each in config.lora)
    cells = _cells(file, config, encodes)
    n_bytes = file.needs(cells, kv_kind(config), sequences) + eyes + adapters
    if not encodes:
        n_bytes += _drafter_bytes(file, config)
    if encodes or config.speculate == "off" or not file.states.goes_back:
        return Need(n_bytes)
    most = config.models_memory if config.models_memory > 0 else memory.available_bytes()
    earlier = file.states.earlier(sequences, most - n_bytes)
    taken = earlier * file.states.total(sequences)
    return Need(n_bytes + taken, earlier, taken)


def _drafter_bytes(file: memory.ModelFile, config: Config) -> int:
    """Bytes of a draft model, or of the cells and buffers of the model's own heads."""
    if draft := draft_bytes(config.draft_model, config.speculate, config.n_ctx):
        return draft
    asked = config.speculate == "mtp" or config.speculate == "auto" and not config.draft_model
    return head_bytes(file.cells, config.n_ctx) if asked and file.may_have_heads else 0


def _sequences(config: Config, encodes: bool) -> int:
    """Sequences that have a recurrent state each."""
    return TEXTS_AT_ONCE if encodes else config.n_seq + RESERVED


def _cells(file: memory.ModelFile, config: Config, encodes: bool) -> int:
    """KV cells at least; the engine takes more where nobody chose and there is room."""
    if not encodes:
        return config.n_ctx or memory.LEAST_CELLS
    return min(n for n in (file.n_ctx_train, config.n_ctx, memory.MOST_CAUSAL) if n > 0)


def fits_beside(need: int, engines: Iterable[EngineHandle], most: int) -> bool:
    """Whether so many bytes are free beside ``engines``.

    ``most``: bytes that all models may take together; 0 = what the machine has.
    """
    there = [each for each in engines if each.exit is None]
    seeing = [each for each in there if each.ready is not None and not each.ready.why_no_eyes]
    # one uma-eyes is for all models, with one projector at a time
    eyes = max((projector_bytes(each.start.mmproj) for each in seeing), default=0)
    if most > 0:
        return sum(map(bytes_of, there)) + eyes + need <= most
    free, on_device = memory.available_bytes() - eyes, []
    for each in there:
        # mapped weights count as available, and cells that nobody used yet are not in memory
        if each.ready is None or each.ready.backend == "cpu":
            free -= bytes_of(each)
        if each.ready is not None and each.ready.device_free >= 0:
            later = [other for other in there if other.spawned_ns > each.spawned_ns]
            on_device.append(each.ready.device_free - sum(map(bytes_of, later)))
    return need <= min(free, max(on_device, default=free))


def bytes_of(engine: EngineHandle) -> int:
    """Memory that an engine takes, by its report; as was predicted, while it loads."""
    ready = engine.ready
    if ready is None:
        return engine.need_bytes
    return ready.memory_bytes + memory.ENGINE_BYTES


def too_big(file: memory.ModelFile, config: Config) -> str:
    """Why a model cannot fit this machine at all; empty where it can, or where nobody knows.

    Only for layers in main memory: what a graphics card holds is the engine's to judge.
    """
    if config.backend not in ("auto", "cpu", "metal"):
        return ""
    encodes = bool(file.role)
    cells = _cells(file, config, encodes)
    need = file.needs(cells, kv_kind(config), _sequences(config, encodes))
    total = memory.total_bytes()
    if need <= total:
        return ""
    kv = file.kv_bytes(cells, kv_kind(config))
    states = file.states.total(_sequences(config, encodes))
    and_states = f", {memory.gib(states)} recurrent states" if states else ""
    return (
        f"{file.path} needs about {memory.gib(need)} ({memory.gib(file.size)} weights, "
        f"{memory.gib(kv)} KV cache for --n-ctx {cells}{and_states}) and this machine has "
        f"{memory.gib(total)}; use a smaller model or context"
    )
