"""The bundled model, its record, and the tools that make it."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

import build_llama
from demo_model import corpus, export, make, snippets, talk
from tests.support.greedy import greedy
from umaserve import assets, llama

ROOT = Path(__file__).parents[2]
MODEL = assets.demo_model_path()
RECORD = json.loads(MODEL.with_suffix(".json").read_text())
GOLDEN = json.loads((ROOT / "tests/support/fixtures/demo_tokens.json").read_text())


@pytest.fixture(scope="module")
def library() -> llama.Library:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    return llama.load()


@pytest.fixture(scope="module")
def model(library: llama.Library) -> Iterator[llama.Model]:
    with llama.Model.open(library, MODEL) as model:
        yield model


def chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_the_file_is_the_one_that_was_recorded() -> None:
    data = MODEL.read_bytes()
    assert hashlib.sha256(data).hexdigest() == RECORD["sha256"]
    assert len(data) == RECORD["bytes"] <= 16_000_000


def test_the_record_says_how_it_was_made() -> None:
    training, data = RECORD["training"], RECORD["data"]
    assert training["steps_done"] == training["plan"]["steps"]
    assert 0 < training["final_loss"] < 1
    assert isinstance(training["plan"]["seed"], int) and isinstance(data["seed"], int)
    assert data["source"].startswith("CPython 3.") and len(data["source_sha256"]) == 64
    assert set(data["text"]) == {name for name, *_ in training["plan"]["mixture"]}


def test_licence_note_names_the_licences_in_the_record_and_in_the_file() -> None:
    note = (MODEL.parent / "LICENSE-uma-demo.md").read_text()
    assert "Python Software Foundation" in note and RECORD["license"] in note
    field = gguf.GGUFReader(MODEL).fields["general.license"]
    assert field.contents() == RECORD["license"]


def test_metadata() -> None:
    fields = gguf.GGUFReader(MODEL).fields

    def value(key: str):
        return fields[key].contents()

    assert value("general.architecture") == "llama"
    assert value("llama.context_length") >= 4096
    assert value("llama.vocab_size") == RECORD["data"]["vocabulary"]
    special = RECORD["data"]["special_tokens"]
    assert value("tokenizer.ggml.eos_token_id") == special["<|endoftext|>"]
    assert value("tokenizer.ggml.eot_token_id") == special["<|im_end|>"]
    tokens = value("tokenizer.ggml.tokens")
    assert [tokens[i] for i in special.values()] == list(special)


def test_missing_model_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(FileNotFoundError, match="--model"):
        assets.demo_model_path()


def test_jinja_and_libllama_render_the_same_chat(model: llama.Model) -> None:
    template = model.chat_template
    assert template is not None
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What does len do?"},
        {"role": "assistant", "content": "It counts."},
        {"role": "user", "content": "Thanks {{ x }}"},
    ]
    rendered = (
        ImmutableSandboxedEnvironment()
        .from_string(template)
        .render(messages=messages, add_generation_prompt=True)
    )
    assert rendered.endswith("<|im_start|>user\nThanks {{ x }}<|im_end|>\n<|im_start|>assistant\n")
    lib, ffi = model.library.lib, model.library.ffi
    held = [(ffi.new("char[]", m["role"].encode()), m["content"].encode()) for m in messages]
    texts = [ffi.new("char[]", content) for _, content in held]
    structs = ffi.new("struct llama_chat_message[]", len(messages))
    for struct, (role, _), content in zip(structs, held, texts, strict=True):
        struct.role, struct.content = role, content
    buffer = ffi.new("char[]", 4096)
    count = lib.llama_chat_apply_template(
        template.encode(), structs, len(messages), True, buffer, 4096
    )
    assert bytes(ffi.buffer(buffer, count)).decode() == rendered


@pytest.mark.parametrize(("text", "ids"), GOLDEN, ids=range(len(GOLDEN)))
def test_libllama_tokenizes_as_the_training_did(
    model: llama.Model, text: str, ids: list[int]
) -> None:
    assert model.tokenize(text) == ids
    pieces = b"".join(model.token_to_piece_bytes(i, special=True) for i in ids)
    assert pieces.decode() == text


def test_completes_python_code(model: llama.Model) -> None:
    text, ended = greedy(model, "def fibonacci(n):", 120)
    first = "def fibonacci(n):" + text.split("\n\n\n")[0]
    scope: dict = {}
    exec(compile(ast.parse(first), "completion", "exec"), scope)  # noqa: S102
    assert [scope["fibonacci"](n) for n in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]
    assert not ended


@pytest.mark.parametrize(
    ("question", "part"),
    [
        ("What does os.path.join do?", "Join two or more pathname components"),
        ("What does len do?", "Return the number of items in a container."),
        ("what is math.sqrt", "Return the square root of x."),
        ("How do I open a file?", "with open("),
        ("Hello", "uma-demo"),
        ("Tell me about random.randint.", "including both end points"),
    ],
)
def test_answers_and_ends(model: llama.Model, question: str, part: str) -> None:
    text, ended = greedy(model, chat(question), 160)
    assert part in text
    assert ended


def test_a_second_question_in_the_same_conversation(model: llama.Model) -> None:
    first = chat("Hello") + greedy(model, chat("Hello"), 160)[0]
    text, ended = greedy(model, first + "<|im_end|>\n" + chat("What does time.sleep do?"), 160)
    assert "Delay execution" in text
    assert ended


def test_snippets_are_python_and_keep_no_slots() -> None:
    rng = random.Random(5)
    for source in snippets.modules(rng, 200):
        ast.parse(source)
        assert "{doc}" not in source and "{{" not in source
    found = snippets.snippets()
    assert len({s.name for s in found}) == len(found) > 50


def test_answers_come_from_docstrings() -> None:
    answers = {entry.path: entry for entry in corpus.entries()}
    assert len(answers) > 3000
    join = answers["os.path.join"]
    assert join.popular and join.answer.startswith("`os.path.join(")
    assert "Join two or more pathname components" in join.answer
    assert answers["zip"].answer.endswith("Yield tuples until an input is exhausted.")
    # no memory addresses, or two runs would differ
    assert not [e for e in answers.values() if " at 0x" in e.answer]


@pytest.mark.slow
def test_same_seed_same_conversations() -> None:
    first, _ = corpus.conversations(random.Random(3))
    again, _ = corpus.conversations(random.Random(3))
    other, _ = corpus.conversations(random.Random(4))
    assert first == again != other
    assert all(text.startswith("<|im_start|>") for text in first)


def test_how_to_code_is_python() -> None:
    for _, answer in talk.HOW_TO:
        ast.parse(answer.split("```python\n")[1].removesuffix("```"))


def _byte_tokenizer(path: Path) -> dict[str, int]:
    """A tokenizer.json of the special tokens and the 256 bytes; returns the special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = [chr(b) if b in printable else "" for b in range(256)]
    spare = iter(range(256, 512))
    vocab = {name: i for i, name in enumerate(make.SPECIAL_TOKENS)}
    for name in names:
        vocab[name or chr(next(spare))] = len(vocab)
    added = [{"content": t, "id": vocab[t]} for t in make.SPECIAL_TOKENS]
    model = {"vocab": vocab, "merges": [["d", "e"], ["e", "f"]]}
    path.write_text(json.dumps({"model": model, "added_tokens": added}))
    return {t: vocab[t] for t in make.SPECIAL_TOKENS}


def test_export_writes_what_libllama_reads(library: llama.Library, tmp_path: Path) -> None:
    special = _byte_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "corpus.json").write_text(json.dumps({"special_tokens": special}))
    shape = {
        "n_vocab": 256 + len(special), "n_embd": 64, "n_layer": 1, "n_head": 2, "n_head_kv": 1,
        "n_ff": 96, "n_ctx": 128, "rope_base": 10000.0, "norm_eps": 1e-5,
    }  # fmt: skip
    rows = {
        "token_embd": (262, 64), "blk.0.attn_q": (64, 64), "blk.0.attn_k": (32, 64),
        "blk.0.attn_v": (32, 64), "blk.0.attn_output": (64, 64), "blk.0.ffn_gate": (96, 64),
        "blk.0.ffn_up": (96, 64), "blk.0.ffn_down": (64, 96), "blk.0.attn_norm": (64,),
        "blk.0.ffn_norm": (64,), "output_norm": (64,),
    }  # fmt: skip
    draw = np.random.default_rng(1)
    tensors = {f"{k}.weight": draw.normal(size=v).astype(np.float16) for k, v in rows.items()}
    weights = tmp_path / "weights"
    make.save_parts(tensors, weights)
    (weights / "train.json").write_text(json.dumps({"shape": shape, "torch": "none"}))
    out = tmp_path / "out" / "small.gguf"
    make.main(["export", "--work", str(tmp_path), "--weights", str(weights), "--out", str(out)])
    make.main(["check", "--model", str(out)])
    with llama.Model.open(library, out) as model:
        assert model.n_params == sum(t.size for t in tensors.values())
        assert model.chat_template == export.CHAT_TEMPLATE
        greedy(model, "def", 4, n_ctx=64)
    assert list(out.parent.glob("*.part")) == []


def test_check_refuses_a_changed_file(tmp_path: Path) -> None:
    copy = tmp_path / MODEL.name
    shutil.copy(MODEL.with_suffix(".json"), copy.with_suffix(".json"))
    copy.write_bytes(MODEL.read_bytes()[:-1] + b"\xff")
    with pytest.raises(SystemExit, match="SHA-256"):
        make.main(["check", "--model", str(copy)])


def test_a_stage_without_the_one_before_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"train.json is not there; run the stage before"):
        (tmp_path / "corpus.json").write_text("{}")
        make.main(["export", "--work", str(tmp_path), "--weights", str(tmp_path)])


def test_help_needs_no_torch() -> None:
    program = [sys.executable, "-m", "demo_model.make"]
    for stage, told in (("--help", "export"), ("check", "agree")):
        done = subprocess.run([*program, stage], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0 and told in done.stdout, done.stderr
