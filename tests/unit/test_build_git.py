"""--git-tag: the commit that a tag stands for is what gets built, shown and written down."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest

import build_llama
from tests.support.fixtures.tiny_llama import write_tree
from umaserve.llama import builds
from umaserve.llama.building import BuildError, git, source
from umaserve.llama.building.progress import Reporter


class Repository:
    """A llama.cpp of our own, which `umaserve.llama.building.git` takes for the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_tree(folder)
        self.git("init", "--quiet")
        self.first = self.commit("0.0.1-tiny")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
        return subprocess.run(
            ["git", "-C", str(self.folder), *identity, *words],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    def commit(self, version: str) -> str:
        write_tree(self.folder, version=version)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", version)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(builds.BUILD_VARIABLE, raising=False)
    made = Repository(tmp_path / "llama.cpp")
    monkeypatch.setattr(git, "URL", made.folder.as_uri())
    return made


def build(name: str) -> tuple[builds.Build, str]:
    """The build of a tag or commit, and what was said."""
    out = io.StringIO()
    return build_llama.ensure("cpu", git_tag=name, report=Reporter(out)), out.getvalue()


def test_a_tag_is_its_commit(repository: Repository) -> None:
    repository.git("tag", "v1")
    made, said = build("v1")
    assert f"git tag v1, which is commit {repository.first}" in said
    assert made.commit == repository.first[:9]
    assert made.key.startswith(f"git-v1-{repository.first[:12]}-")
    manifest = json.loads((made.path / builds.MANIFEST).read_text())
    assert manifest["git_tag"] == "v1" and manifest["git_commit"] == repository.first
    assert manifest["source"] == f"git-v1-{repository.first[:12]}"
    assert build("v1") == (made, "")


def test_a_whole_commit_id_is_looked_up_nowhere(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = build(repository.first)
    assert f"git commit {repository.first}" in said
    assert made.key.startswith(f"git-{repository.first[:12]}-")
    assert made.details["git_tag"] is None and made.details["git_commit"] == repository.first
    monkeypatch.setattr(git, "URL", "file:///nowhere")
    assert build(repository.first) == (made, "")


def test_an_annotated_tag_is_the_commit_that_it_points_at(repository: Repository) -> None:
    repository.git("tag", "-a", "-m", "one", "once")
    repository.git("tag", "-a", "-m", "two", "of/a-tag", "once")
    assert repository.git("rev-parse", "of/a-tag") != repository.first
    revision = git.resolve("of/a-tag")
    assert (revision.commit, revision.tag) == (repository.first, "of/a-tag")
    assert revision.ident == f"git-of-a-tag-{repository.first[:12]}"


def test_a_tag_that_moved_is_another_build_and_said(repository: Repository) -> None:
    repository.git("tag", "v1")
    before, _ = build("v1")
    second = repository.commit("0.0.2-tiny")
    repository.git("tag", "--force", "v1")
    after, said = build("v1")
    assert f"The tag v1 has moved: it was commit {repository.first}" in said
    assert f"is commit {second} now" in said and f"--git-tag {repository.first}" in said
    assert before.key != after.key
    assert [before.version, after.version] == ["0.0.1-tiny", "0.0.2-tiny"]
    assert [before.commit, after.commit] == [repository.first[:9], second[:9]]
    assert build("v1") == (after, "")


def test_a_tag_that_moves_after_it_was_looked_up(repository: Repository, tmp_path: Path) -> None:
    """What was shown, and is in the key, is what is checked out."""
    repository.git("tag", "v1")
    chosen = source.choose(None, "v1")
    repository.commit("0.0.2-tiny")
    repository.git("tag", "--force", "v1")
    tree = source.unpack(chosen, tmp_path / "out", tmp_path / "log", Reporter(io.StringIO()))
    assert "0.0.1-tiny" in (tree / "src" / "llama.c").read_text()
    assert source.commit_of(chosen, tree) == repository.first[:9]


def test_names_that_are_no_tag(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    branch = repository.git("rev-parse", "--abbrev-ref", "HEAD")
    # the end of its whole name is that of a tag
    repository.git("branch", "refs/tags/v2")
    for name in ("v2", branch, repository.first[:9]):
        with pytest.raises(BuildError, match=f"there is no tag {name} in file:.*\n.*40 digits"):
            source.choose(None, name)
    with pytest.raises(BuildError, match="is no git tag"):
        source.choose(None, "--upload-pack=evil")
    with pytest.raises(BuildError, match="fetching llama.cpp 0{40} failed"):
        build("0" * 40)
    monkeypatch.setattr(git, "URL", "file:///nowhere")
    with pytest.raises(BuildError, match=r"(?s)looking up the tag v1 in file:///nowhere failed.*"):
        source.choose(None, "v1")
    assert not list((builds.builds_root()).glob(".tmp-*"))
