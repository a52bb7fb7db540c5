"""A model that is loaded, with what everybody asks about it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from umaserve.llama import Context, Library, Model
from umaserve.llama.adapters import Adapters
from umaserve.llama.heads import HiddenStates
from umaserve.models.identity import ModelIdentity
from umaserve.system.processor import sysctl
from umaserve.wire import messages as m
from umaserve.wire import table as t
from umaserve.wire.control import Control

from .pooling import way_of

if TYPE_CHECKING:
    from umaserve.engine.native.batch import Batch

    from .thread_places import Places

PROCESSOR = "CPU"  # the device's name where there is no other


class CannotLoad(Exception):
    """The model cannot be served; the text says why and what to do."""


@dataclass
class DraftModel:
    """A smaller model, which drafts; owns it, its context, and the batch that these are fed by.

    Or a model's own heads: ``model`` is None then, and ``hidden`` gives their inputs.
    """

    model: Model | None
    context: Context
    batch: Batch
    n_vocab: int  # tokens that both models have
    n_positions: int  # of one text at most
    hidden: HiddenStates | None = None
    n_bytes: int = 0  # memory that its own weights and its KV cells take

    def close(self) -> None:
        self.context.close()
        if self.model is not None:
            self.model.close()


@dataclass
class Loaded:
    """A model ready to decode, with what the loop asks about it all the time."""

    library: Library
    model: Model
    context: Context
    identity: ModelIdentity
    n_vocab: int
    n_ctx: int  # KV cells shared by all sessions
    n_positions: int  # of one session at most
    n_seq: int
    n_batch: int
    n_ubatch: int
    n_threads: int  # of ticks with one token
    n_threads_batch: int  # of all others
    n_cores: int  # physical cores of this process
    device: str  # where the layers are, as libllama names it
    eog_ids: np.ndarray  # int32: tokens that end a generation
    is_eog: np.ndarray  # uint8[n_vocab]
    load_ms: float
    kv_bytes: int
    state_bytes: int  # recurrent states of all sequences, with earlier ones
    unused_bytes: int  # of the KV cells, not resident until cells are used
    on_processor: bool  # no layer lies on another device
    places: Places  # of the loop's threads
    draft: DraftModel | None = None  # what drafts tokens for it
    generates: bool = True  # else it encodes whole texts, and nothing more
    adapters: Adapters = field(default_factory=Adapters)
    no_way_back: str = ""  # why a recurrent state cannot go back; empty where it can
    heads: str = ""  # whether the model's own heads draft; empty where nobody asked

    @property
    def draft_model(self) -> Model | None:
        """The smaller model that drafts; None where none does."""
        return self.draft.model if self.draft is not None else None

    @property
    def snapshots(self) -> int:
        """Earlier states that a recurrent memory keeps of each sequence."""
        return int(self.library.lib.llama_n_rs_seq(self.context.pointer))

    @property
    def pooling(self) -> str:
        """How a text's tokens become one vector."""
        return way_of(self.context)

    def threads(self, aside: int) -> tuple[int, int]:
        """Threads for ticks of one token and of more, while ``aside`` cores compute prompts."""
        if not aside:
            return self.n_threads, self.n_threads_batch
        left = max(self.n_cores - aside, 1)
        return min(self.n_threads, left), left

    def library_log_tail(self) -> str:
        """The last line that libllama logged as a warning or an error, or an empty string."""
        return self.library.last_error()

    def close(self) -> None:
        if self.draft is not None:
            self.draft.close()
        self.context.close()
        self.model.close()


@dataclass(frozen=True)
class Setup:
    """The front's order, the model that it names, and the two ways to the front."""

    start: m.Start
    loaded: Loaded
    table: t.SessionTable
    control: Control


def usable_cores() -> int:
    """Physical cores this process may run on.

    One decoding thread per physical core is what llama.cpp recommends: a second one on the same
    core shares its vector units.
    """
    if sys.platform == "darwin":
        # those of the fast kind come first, where there are two
        for line in sysctl("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
            value = line.partition(":")[2].strip()
            if value.isdigit():
                return max(int(value), 1)
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    siblings = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(path.read_text() if path.exists() else str(cpu))
    return max(len(siblings), 1)
