"""Facts in a model's file by which a person chooses a model."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from .gguf.faults import check_gguf
from .gguf.header import GGUFError, GGUFInfo
from .identity import model_files
from .kv_shape import is_size
from .needs import size_of
from .purpose import role_of, why_no_model

# llama_ftype, without "MOSTLY_"
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
# ggml_type, for files that do not say: what most bytes of their tensors are
_TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip


@dataclass(frozen=True)
class About:
    """``problem``: why it cannot be served; then the rest may be empty.

    ``bytes`` of all files of the model, ``n_ctx_train`` positions that it was trained for,
    ``parameters`` weights.  0 and empty: the file does not say.
    """

    bytes: int
    architecture: str = ""
    n_ctx_train: int = 0
    quantization: str = ""
    parameters: int = 0
    embeds: bool = False  # it makes vectors or scores of texts, and generates nothing
    ranks: bool = False  # scores alone
    is_base: bool = False  # it has no chat template: it continues text
    problem: str = ""


def about(path: str) -> tuple[About, GGUFInfo | None]:
    """The facts, and the header where it can be read.  Reads all of it; never raises."""
    try:
        info = check_gguf(path)
    except GGUFError as error:
        # the list names the file already
        problem = str(error).removeprefix(f"{path} ").removeprefix("is not a usable GGUF file: ")
        return About(sum(map(size_of, model_files(path))), problem=problem), None
    role = role_of(info.architecture, info.metadata)
    trained = info.metadata.get(f"{info.architecture}.context_length")
    found = About(
        bytes=info.file_bytes,
        architecture=info.architecture,
        n_ctx_train=trained if is_size(trained) else 0,
        quantization=_quantization(info),
        parameters=sum(math.prod(tensor.shape) for tensor in info.tensors),
        embeds=role != "",
        ranks=role == "rerank",
        is_base=not (role or info.metadata.get("tokenizer.chat_template")),
        problem=why_no_model(info) or _no_vocabulary(info),
    )
    return found, info


def _quantization(info: GGUFInfo) -> str:
    kind = info.metadata.get("general.file_type")
    named = _FILE_TYPES.get(kind, "") if is_size(kind) else ""
    if named or not info.tensors:
        return named
    sizes: Counter[int] = Counter()
    for tensor in info.tensors:
        sizes[tensor.kind] += tensor.n_bytes
    return _TENSOR_TYPES.get(sizes.most_common(1)[0][0], "")


def _no_vocabulary(info: GGUFInfo) -> str:
    """Models of pictures and sound are GGUF files too."""
    if "tokenizer.ggml.model" in info.metadata or "tokenizer.ggml.tokens" in info.array_lengths:
        return ""
    return f"it has no vocabulary, so it is no model of texts ({info.architecture})"


def billions(parameters: int) -> str:
    """``7.6B``, ``494M``; empty for 0."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{letter}"
    return str(parameters or "")
