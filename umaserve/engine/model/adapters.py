"""The LoRA adapters of a model: loaded with it, and the sets of them that requests name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from umaserve import llama
from umaserve.llama import Model
from umaserve.llama.adapters import Adapters
from umaserve.models.adapter import adapter_bytes
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFError
from umaserve.models.gguf.reader import FLOAT32, HeaderReader, open_model
from umaserve.models.identity import identify
from umaserve.wire import messages as m

from .loaded import CannotLoad, Loaded

KIND, TYPE, ALPHA = "general.type", "adapter.type", "adapter.lora.alpha"
INVOCATION = "adapter.alora.invocation_tokens"


def open_adapters(start: m.Start, model: Model, architecture: str) -> Adapters:
    """Load the adapters of ``start``.  Raises CannotLoad; the model is closed then."""
    try:
        paths = [each.path for each in start.adapters]
        for path in paths:
            _check(path, architecture)
        before = [identify(path) for path in paths]
        scales = tuple(each.scale for each in start.adapters)
        adapters = Adapters(model, paths, scales, tuple(each.digest for each in before))
        if before != [identify(path) for path in paths]:
            model.close()
            raise CannotLoad("--lora: a file was changed while it was loaded")
    except (llama.LlamaError, GGUFError, OSError) as error:
        model.close()
        raise CannotLoad(f"--lora: {error}") from error
    return adapters


def facts(start: m.Start, loaded: Loaded) -> tuple[m.Adapter, ...]:
    """Return the adapters with what their files say of themselves."""
    return tuple(
        m.Adapter(
            each.name, each.path, each.scale,
            loaded.adapters.text(loaded.library, number, "adapter.lora.task_name"),
            loaded.adapters.text(loaded.library, number, "adapter.lora.prompt_prefix"),
            adapter_bytes([each.path]),
        )
        for number, each in enumerate(start.adapters)
    )  # fmt: skip


def _check(path: str, architecture: str) -> None:
    """Raise GGUFError where a file is no adapter of such a model, as far as its header tells.

    libllama ends the process where a key is not of the type that it expects.
    """
    found = check_gguf(path)
    is_adapter = found.metadata.get(KIND) == "adapter" and found.metadata.get(TYPE) == "lora"
    if not is_adapter or _kind(path, ALPHA) != FLOAT32:
        raise GGUFError(f"{path} is no LoRA adapter")
    if found.architecture != architecture:
        text = f"is an adapter of a {found.architecture} model, and this model is {architecture}"
        raise GGUFError(f"{path} {text}")
    if INVOCATION in found.metadata or INVOCATION in found.array_lengths:
        raise GGUFError(f"{path} works from a word in the text on (aLoRA), which is not done here")


def _kind(path: str, key: str) -> int:
    """Return the type id of a key in a file's header; -1 where it is not there."""
    with open_model(Path(path)) as file:
        reader = HeaderReader(Path(path), file)
        reader.metadata(reader.counts()[1], brief=True)
    return reader.kinds.get(key, -1)


def domain_of(domain: str | None, digests: Sequence[str], scales: Sequence[float]) -> str | None:
    """Return the trust domain of texts that were computed with these adapters.

    Keys and values depend on the adapters.  So texts are shared by requests with equal ones alone.
    """
    if domain is None or not any(scales):
        return domain
    named = repr([pair for pair in zip(digests, scales, strict=True) if pair[1]])
    return f"{domain}{m.ADAPTED}{hashlib.sha256(named.encode()).hexdigest()[:20]}"
