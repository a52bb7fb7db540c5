"""GGUF files broken on purpose: no hang, no memory beyond the file's, no death that reaches us.

The mutants are those of `tests.support.gguf_mutants`, each made again from its number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import build_llama
from tests.support.gguf_mutants import fields as gguf_fields
from tests.support.gguf_mutants import tiny as gguf_tiny
from tests.support.gguf_mutants import trial as gguf_trial
from tests.support.gguf_mutants.__main__ import Mutants
from tests.support.gguf_mutants.model_mutations import put, scalar
from tests.support.real_daemon import real, steering
from tests.support.server_harness import DaemonProcess
from umaserve import llama
from umaserve.engine.model import boot
from umaserve.engine.model.loaded import CannotLoad
from umaserve.llama import purpose
from umaserve.models.gguf.faults import check_gguf
from umaserve.wire import messages as m
from umaserve.wire import table

ROOT = Path(__file__).parents[2]

UINT32, STRING = 4, 8


@pytest.fixture(scope="module")
def library() -> llama.Library:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    return llama.load()


@pytest.fixture(scope="module")
def mutants(library: llama.Library) -> Mutants:
    return Mutants(11, library.build.vocab_dir)


def test_pieces_make_the_same_file_again(mutants: Mutants) -> None:
    for family, whole in mutants.whole.items():
        assert gguf_fields.parse(whole).write() == whole, family


def test_a_mutant_is_the_same_each_time(mutants: Mutants) -> None:
    again = Mutants(11, mutants.vocab_dir)
    made = [mutants.make(number) for number in range(60)]
    assert made == [again.make(number) for number in reversed(range(60))][::-1]
    assert len({data for data, _ in made}) == 60
    other = Mutants(12, mutants.vocab_dir)
    assert all(other.make(number) != made[number] for number in range(60))


def test_headers_are_refused_in_time_and_within_memory(
    mutants: Mutants, tmp_path: Path
) -> None:
    """What the front and the engine do before libllama has the file; anything else raises."""
    found: Counter[str] = Counter()
    path = tmp_path / "mutant.gguf"
    for number in range(1200):
        data, done = mutants.make(number)
        path.write_bytes(data)
        outcome = gguf_trial.look_and_check(path)
        assert outcome is None or outcome.what not in gguf_trial.BAD, (number, done, outcome)
        found[outcome.what if outcome else "passed"] += 1
    assert min(found.values()) > 40 and len(found) == 3  # they are no mere noise


def tried(tmp_path: Path, count: int, seed: int) -> Counter[str]:
    """Outcomes of so many mutants, in a process that holds no threads of other tests."""
    record = tmp_path / "record.jsonl"
    command = [sys.executable, "-m", "tests.support.gguf_mutants", "--record", str(record)]
    run = subprocess.run(
        [*command, "--count", str(count), "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    outcomes = [json.loads(line) for line in record.read_text().splitlines()]
    assert [each["n"] for each in outcomes] == list(range(count))
    return Counter(each["what"] for each in outcomes)


def few_ended(found: Counter[str]) -> bool:
    """One in two hundred may still end its engine; before `umaserve.models.gguf.shape` 2.5 did."""
    return found[gguf_trial.CRASHED] * 200 <= found.total()


def test_mutants_of_all_families_through_load_and_token(tmp_path: Path) -> None:
    found = tried(tmp_path, 200, seed=3)
    assert few_ended(found), found
    passed = found[gguf_trial.TOKEN] + found[gguf_trial.PASSED]
    assert passed > 25  # not all are refused


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_mutants_through_load_and_token(tmp_path: Path) -> None:
    assert few_ended(tried(tmp_path, 8000, seed=4))


def tiny(library: llama.Library, family: str) -> gguf_fields.Pieces:
    return gguf_fields.parse(gguf_tiny.tiny_model(family, library.build.vocab_dir))


def renamed(pieces: gguf_fields.Pieces, old: bytes, new: bytes) -> gguf_fields.Pieces:
    """As another architecture, with the keys that its loader looks for."""
    put(pieces, b"general.architecture", STRING, [new])
    for entry in pieces.entries:
        if entry.key.startswith(old + b"."):
            entry.key = new + entry.key[len(old) :]
    return pieces


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, 0, ""),
        (b"gemma3.rope.dimension_count", 0, "rotate 0 values"),
        (b"gemma3.rope.dimension_count_swa", 0, "rotate 0 values"),
    ],
)
def test_a_rotation_of_nothing_is_refused_before_it_never_ends(
    library: llama.Library, tmp_path: Path, key: bytes | None, value: int, why: str
) -> None:
    pieces = tiny(library, "gemma3")
    if key:
        put(pieces, key, UINT32, [scalar(UINT32, value)])
    path = tmp_path / "model.gguf"
    path.write_bytes(pieces.write())
    with llama.Model.open(library, path, n_gpu_layers=0) as model:
        found = purpose.why_no_positions(model, check_gguf(path))
    assert why in found and bool(why) == bool(found)


@pytest.mark.parametrize(
    ("rope_type", "metadata", "refused"),
    [
        (0, {"dimension_count": 0}, True),
        (-1, {"dimension_count": 0}, False),  # LLAMA_ROPE_TYPE_NONE: nothing is rotated
        (0, {"dimension_count": 0, "dimension_count_swa": 32}, False),  # windows alone are
        (0, {"dimension_count": 0, "scaling.finetuned": False}, False),
        (0, {"dimension_count": 32}, False),
        (0, {}, False),
    ],
)
def test_models_that_do_not_rotate_pass(rope_type: int, metadata: dict, refused: bool) -> None:
    lib = SimpleNamespace(llama_model_rope_type=lambda _: rope_type, LLAMA_ROPE_TYPE_NONE=-1)
    model = SimpleNamespace(library=SimpleNamespace(lib=lib), pointer=None)
    info = SimpleNamespace(
        architecture="x", metadata={f"x.rope.{name}": value for name, value in metadata.items()}
    )
    assert bool(purpose.why_no_positions(model, info)) == refused  # type: ignore[arg-type]


def test_a_vocabulary_with_more_text_than_fits_is_refused(
    library: llama.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "PIECE_BYTES", 2048)
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny(library, "llama").write())
    start = m.Start(model_path=str(path), n_slots=1, n_ctx=64, n_seq=1, n_threads=1, gpu_layers=0)
    control = SimpleNamespace(send=lambda _: None, closed=False)
    with tempfile.TemporaryFile() as file:
        file.truncate(table.PIECE_BYTES)
        with pytest.raises(CannotLoad, match="cannot be served: the vocabulary's text"):
            boot.load(start, file.fileno(), control, lambda: None)  # type: ignore[arg-type]


def test_a_front_outlives_files_that_end_its_engine(library: llama.Library, tmp_path: Path) -> None:
    """Two that libllama does not survive, two that are refused: a sentence, and it serves on."""
    broken = {
        # no experts, where these loaders assert that there are some
        "asserts.gguf": (renamed(tiny(library, "gemma3"), b"gemma3", b"smallthinker"), "ASSERT"),
        "too.gguf": (renamed(tiny(library, "mamba"), b"mamba", b"llada-moe"), "ASSERT"),
        "hangs.gguf": (tiny(library, "gemma3"), "rotate 0 values"),
        "fills.gguf": (tiny(library, "mamba2"), "which is no token"),
    }
    put(broken["hangs.gguf"][0], b"gemma3.rope.dimension_count", UINT32, [scalar(UINT32, 0)])
    put(broken["fills.gguf"][0], b"tokenizer.ggml.model", STRING, [b"rwkv"])
    with real(tmp_path) as daemon, daemon.client() as client, daemon.client() as admin:
        engine = daemon.engine_pid()
        expected = client.generate("before", "before", **steering(1)).tokens
        for name, (pieces, why) in broken.items():
            path = tmp_path / name
            path.write_bytes(pieces.write())
            client.ask(name, "before", **steering(1))
            error = refusal(daemon, admin, path)
            assert error["code"] == "E_MODEL_002" and why in error["message"], error
            assert client.finish(name)[0].tokens == expected
        assert daemon.engine_pid() == engine
        assert daemon.info()["state"] == "serving"


def refusal(daemon: DaemonProcess, admin, path: Path) -> dict:  # type: ignore[no-untyped-def]
    admin.send(type="load", model=str(path))
    while True:
        event = admin.receive()
        daemon.children()
        if event["event"] != "progress":
            return event
