"""The models that a newcomer is told of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from umaserve.models.finding.places import places
from umaserve.models.finding.reference import NotHere, hub_reference, lasting, locate
from umaserve.models.finding.repository import choose, tag_of
from umaserve.models.suggested import SUGGESTED, for_memory, gb, short_name_of, suggested

from ..support import model_trees as trees

GIB = 2**30
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/MODELS.md"


@pytest.mark.parametrize("model", SUGGESTED, ids=lambda model: model.name)
def test_a_reference_parses(model) -> None:
    meant = hub_reference(model.reference)
    assert str(meant) == model.reference == str(hub_reference(model.name))
    assert short_name_of(model.reference) == model.name
    # the quantisation is a form that a file's name has
    assert tag_of(f"m-{meant.wanted}.gguf") == meant.wanted
    assert choose([f"m-{meant.wanted.lower()}.gguf"], meant.wanted)
    assert 0.1e9 < model.size < 50e9  # larger files need a protocol that is not spoken here
    assert model.licence and model.template and model.good_for


def test_names_differ_and_sizes_rise() -> None:
    assert len({model.name for model in SUGGESTED}) == len(SUGGESTED)
    assert sorted(SUGGESTED, key=lambda model: model.size) == list(SUGGESTED)


@pytest.mark.parametrize("memory", [1, 4, 6, 8, 16, 24, 32, 64, 512])
def test_three_to_six_fit_a_machine(memory: int) -> None:
    named = for_memory(memory * GIB)
    assert 3 <= len(named) <= 6
    if memory >= 4:
        assert all(model.size < 0.7 * memory * GIB for model in named)
    if memory == 16:
        assert suggested("qwen3-8b") in named and suggested("gpt-oss-20b") not in named
        assert suggested("gpt-oss-20b") in for_memory(memory * GIB, graphics=True)


def test_a_short_name_is_found_where_a_hub_s_reference_is(tmp_path: Path) -> None:
    where = places({}, tmp_path)
    for name in ("qwen3-4b", "Qwen3-4B", "qwen3:4b"):
        with pytest.raises(NotHere, match="fetch it with: umaserve pull qwen3-4b") as refused:
            locate(name, where)
        assert refused.value.fetch == "qwen3-4b"
    snapshot = trees.in_hub(
        tmp_path / ".cache/huggingface/hub", "Qwen/Qwen3-4B-GGUF",
        {"Qwen3-4B-Q4_K_M.gguf": trees.tiny_model(), "Qwen3-4B-Q8_0.gguf": trees.tiny_model(1)},
    )  # fmt: skip
    path = str(snapshot / "Qwen3-4B-Q4_K_M.gguf")
    assert locate("qwen3:4b", where) == path
    assert lasting("qwen3-4b", path) == "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"
    with pytest.raises(NotHere, match="did you mean qwen3-8b"):
        locate("qwen3-8bb", where)


def test_a_file_of_that_name_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trees.write(tmp_path / "qwen3-4b", trees.tiny_model())
    assert locate("qwen3-4b", places({}, tmp_path)) == "qwen3-4b"
    assert lasting("qwen3-4b", "qwen3-4b") == str(tmp_path / "qwen3-4b")


def test_the_page_has_them_all() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    wanted = [
        (
            model.name,
            f"`{model.reference}` | {gb(model.size)} | {model.licence} | {model.template} | "
            f"{'yes' if model.tools else 'no'} | {model.good_for}",
        )
        for model in SUGGESTED
    ]
    assert [row for row in rows if row[1].startswith("`hf:")] == wanted


def test_the_readme_names_them_by_memory() -> None:
    rows = re.findall(
        r"^\| (\d+) GB \| `umaserve pull (\S+)` \| (.*) \| (.*) \|$",
        (ROOT / "README.md").read_text(), re.MULTILINE,
    )  # fmt: skip
    assert len(rows) == 5
    for memory, name, size, good_for in rows:
        model = suggested(name)
        assert model in for_memory(int(memory) * GIB)
        assert (gb(model.size), model.good_for) == (size, good_for)
