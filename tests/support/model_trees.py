"""Folders of models as four tools lay them out, for whoever looks for models."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path

from tests.support.small_models import container

OLLAMA_MODEL = "application/vnd.ollama.image.model"
_LAYERS, _WIDTH, _HEADS, _KV_HEADS, _WORDS = 4, 64, 4, 2, 96


def tiny_model(
    seed: int = 0, file_type: int = 7, experts: int = 0, **keys: str | bool | int | float
) -> bytes:
    """A GGUF whose header is a small model's: 4 layers, 2 KV heads of 16, 2048 positions.

    It has a chat template.  ``keys`` (``__`` for a dot) go over its own.
    """
    values = {
        "general.architecture": "llama", "general.file_type": file_type,
        "llama.block_count": _LAYERS, "llama.embedding_length": _WIDTH,
        "llama.context_length": 2048, "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KV_HEADS, "tokenizer.ggml.model": "gpt2",
        "tokenizer.chat_template": "{{ messages }}",
        **{name.replace("__", "."): value for name, value in keys.items()},
    }  # fmt: skip
    tensors: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (_WIDTH, _WORDS)), ("output.weight", (_WIDTH, _WORDS)),
    ]  # fmt: skip
    tensors += [(f"blk.{n}.ffn_up.weight", (_WIDTH, _WIDTH)) for n in range(_LAYERS)]
    if experts:
        shape = (_WIDTH, _WIDTH, experts)
        tensors += [(f"blk.{n}.ffn_up_exps.weight", shape) for n in range(_LAYERS)]
    made = {name: container.Value.of(value) for name, value in values.items()}
    data = {name: (shape, 0, bytes([seed]) * 4 * math.prod(shape)) for name, shape in tensors}
    return container.whole(made, data)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def in_hub(cache: Path, repository: str, files: dict[str, bytes], commit: str = "a" * 40) -> Path:
    """A snapshot of a repository, as ``huggingface_hub`` keeps it; the newest."""
    folder = cache / ("models--" + repository.replace("/", "--"))
    for name, data in files.items():
        blob = write(folder / "blobs" / digest(data), data)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    write(folder / "refs" / "main", commit.encode())
    return folder / "snapshots" / commit


def in_llama_cpp(cache: Path, repository: str, tag: str, name: str, data: bytes) -> Path:
    """As ``llama-server -hf`` kept it before it took the layout of the hub."""
    owner, _, rest = repository.partition("/")
    manifest = {"ggufFile": {"rfilename": name, "size": len(data)}}
    write(cache / f"manifest={owner}={rest}={tag}.json", json.dumps(manifest).encode())
    return write(cache / f"{owner}_{rest}_{name}".replace("/", "_"), data)


def in_ollama(folder: Path, name: str, data: bytes | None, **more: bytes) -> Path:
    """``name``: ``HOST/NAMESPACE/MODEL/TAG``; ``more``: layers by the ends of their types."""
    layers = []
    kinds = {} if data is None else {OLLAMA_MODEL: data}
    kinds |= {f"application/vnd.ollama.image.{kind}": body for kind, body in more.items()}
    blob = folder / "blobs"
    for kind, body in kinds.items():
        blob = write(folder / "blobs" / f"sha256-{digest(body)}", body)
        layers.append({"mediaType": kind, "digest": f"sha256:{digest(body)}", "size": len(body)})
    manifest = {"schemaVersion": 2, "config": {"digest": "sha256:0"}, "layers": layers}
    write(folder / "manifests" / name, json.dumps(manifest).encode())
    return folder / "blobs" / f"sha256-{digest(data)}" if data is not None else blob


def in_lm_studio(home: Path, name: str, data: bytes) -> Path:
    """``name``: ``PUBLISHER/REPO/FILE``."""
    return write(home / "models" / name, data)
