"""Write the demo model's weights and tokenizer as a GGUF (Q8_0), and the record beside it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

# ChatML, written so that llama.cpp recognises it and jinja2 renders it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LICENSE_NAME = "PSF-2.0 AND MIT"
DESCRIPTION = (
    "A small demonstration model trained from scratch on the CPython standard library. "
    "It completes short Python code and says what a standard function does; "
    "it shows that the machine works, and no more."
)


def load_weights(folder: Path) -> dict[str, np.ndarray]:
    """The float16 arrays of every ``weights-N.npz`` in *folder*, by parameter name."""
    paths = sorted(folder.glob("weights-*.npz"))
    if not paths:
        raise FileNotFoundError(2, "no weights", str(folder / "weights-0.npz"))
    tensors: dict[str, np.ndarray] = {}
    for path in paths:
        with np.load(path) as part:
            tensors.update({name: part[name] for name in part.files})
    return tensors


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer_path: Path) -> None:
    """The byte-level BPE of *tokenizer_path* under llama.cpp's names for it."""
    model = json.loads(tokenizer_path.read_text(encoding="utf-8"))
    vocabulary = model["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {item["content"]: item["id"] for item in model["added_tokens"]}
    kinds = [
        gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens
    ]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("starcoder")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    # The template's own end of turn and the end of a document both end a generation.
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_eos_token_id(special["<|endoftext|>"])
    writer.add_eot_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|endoftext|>"])
    writer.add_uint32("tokenizer.ggml.fim_pre_token_id", special["<|fim_prefix|>"])
    writer.add_uint32("tokenizer.ggml.fim_suf_token_id", special["<|fim_suffix|>"])
    writer.add_uint32("tokenizer.ggml.fim_mid_token_id", special["<|fim_middle|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def export(work: Path, weights: Path, out: Path) -> None:
    """Write *out* and, beside it, its record as JSON. The file appears whole or not at all."""
    corpus = json.loads((work / "corpus.json").read_text())
    training = json.loads((weights / "train.json").read_text())
    shape = training["shape"]
    tensors = load_weights(weights)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(aside, "llama")
    writer.add_name("UMA Serve demo")
    writer.add_description(DESCRIPTION)
    writer.add_license(LICENSE_NAME)
    writer.add_context_length(shape["n_ctx"])
    writer.add_embedding_length(shape["n_embd"])
    writer.add_block_count(shape["n_layer"])
    writer.add_feed_forward_length(shape["n_ff"])
    writer.add_head_count(shape["n_head"])
    writer.add_head_count_kv(shape["n_head_kv"])
    writer.add_rope_dimension_count(shape["n_embd"] // shape["n_head"])
    writer.add_rope_freq_base(shape["rope_base"])
    writer.add_layer_norm_rms_eps(shape["norm_eps"])
    writer.add_vocab_size(shape["n_vocab"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, work / "tokenizer.json")
    for name, array in tensors.items():
        array = array.astype(np.float32)
        if array.ndim == 1:
            writer.add_tensor(name, array)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    aside.replace(out)
    record = {
        "file": out.name,
        "bytes": out.stat().st_size,
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "quantization": "Q8_0",
        "license": LICENSE_NAME,
        "versions": {
            "torch": training.pop("torch"),
            "gguf": _version("gguf"),
            "numpy": np.__version__,
        },
        "data": corpus,
        "training": training,
    }
    out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
