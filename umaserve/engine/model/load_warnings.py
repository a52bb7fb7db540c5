"""Messages of a load that a person should read: warnings that matter, settings without effect.

libllama warns at nearly every load, of a tokenizer's oddities and of sizes that are meant to be so.
Such lines are for the debug log.  All other lines are passed on, reworded where they are not meant
for people who serve a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from umaserve.llama import Model
from umaserve.llama.library import without_prefix
from umaserve.models.gguf.header import GGUFInfo
from umaserve.wire import messages as m
from umaserve.wire.control import Control

from .loaded import PROCESSOR

# Lines of libllama on a file or a context that is as it should be, or on facts nobody can change.
_EVERYDAY = re.compile(
    "possible training context overflow|using full-size SWA cache|control-looking token"
    "|setting token|dummy tokens|empty token|newline token|special_\\w+_id is not in"
    "|special_eog_ids contains|is a normal token here|^override |unused tensor|yarn_attn_factor"
    "|sharing with layer|padding V cache|does not match expectation|posix_[fm]advise"
    "|GENERATION QUALITY|CONSIDER REGENERATING|^Try increasing RLIMIT_MEMLOCK"
)


def tell(
    control: Control, model: Model, mark: int, start: m.Start, info: GGUFInfo, device: str
) -> None:
    """Send the messages of a load; ``mark``: where libllama's log of the context begins."""
    lines = [*model.warnings, *model.library.warnings(mark)]
    for message in (*of_library(lines), *of_settings(start, info, device)):
        control.send(message)


def of_library(lines: Iterable[str]) -> list[m.Log]:
    """Log messages for what libllama warned of; each once, however often it was said."""
    found: dict[str, str] = {}
    for line in lines:
        text = without_prefix(line).removeprefix("load:").removeprefix("warning: ").strip()
        if text.strip("*"):
            found[_mended(text)] = "debug" if _EVERYDAY.search(text) else "warn"
    return [m.Log(level, text) for text, level in found.items()]


def _mended(text: str) -> str:
    """The words of libllama, or better ones where a person can do something."""
    if text.startswith("failed to mlock"):  # a line for each buffer
        return (
            "--mlock: the weights are not all locked in memory and may be paged out "
            f"({text.rpartition(': ')[2]}){_memlock_limit()}"
        )
    if text.startswith("missing pre-tokenizer type"):
        return (
            "the model's file names no pre-tokenizer (tokenizer.ggml.pre): its texts are split in "
            "a default way, and answers may be worse; convert the model anew"
        )
    return f"libllama warns: {text}"


def _memlock_limit() -> str:
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (ImportError, AttributeError, OSError):
        return ""
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; the limit `ulimit -l` is {limit // 1024} KiB: raise it to the model's size"


def of_settings(start: m.Start, info: GGUFInfo, device: str) -> list[m.Log]:
    """Log messages for what was asked for and has no effect, or not the one expected."""
    texts = []
    if start.gpu_layers > 0 and device == PROCESSOR:
        texts.append(
            f"--gpu-layers {start.gpu_layers}: there is no accelerator for this build of the "
            "library, so all layers are on the processor"
        )
    trained = info.metadata.get(f"{info.architecture}.context_length")
    most = trained * start.n_seq if isinstance(trained, int) else 0
    if 0 < most < start.n_ctx:
        texts.append(
            f"--n-ctx {start.n_ctx}: the model was trained for {trained} positions of a session, "
            f"so {start.n_seq} at once (--parallel) use {most} of the KV cells at most"
        )
    pooling = info.metadata.get(f"{info.architecture}.pooling_type")
    if isinstance(pooling, int) and pooling > 0:
        texts.append(
            "the model was made for embeddings or ranking (its file names a pooling type); what it "
            "generates may mean little"
        )
    return [m.Log("warn", text) for text in texts]
