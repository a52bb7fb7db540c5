"""llama.cpp from its git repository: what a tag stands for, and a checkout of just that commit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from umaserve.llama import builds

from . import BuildError
from .process import run_logged
from .progress import Reporter

URL = "https://github.com/ggml-org/llama.cpp"


@dataclass(frozen=True)
class Revision:
    """A whole commit id, and the tag that stood for it (None: it was asked for by its id)."""

    commit: str
    tag: str | None = None

    @property
    def ident(self) -> str:
        """Its part of a build's key. The commit is in it, so a tag that moves is another build."""
        name = "" if self.tag is None else self.tag.replace("/", "-") + "-"
        return f"git-{name}{self.commit[:12]}"

    @property
    def description(self) -> str:
        if self.tag is None:
            return f"git commit {self.commit}"
        return f"git tag {self.tag}, which is commit {self.commit}"


def resolve(name: str) -> Revision:
    """Return the revision that `name` stands for now.

    A tag is looked up in the repository, a whole commit id is not. An annotated tag is an object
    of its own, and stands for the commit that it points at.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", name):
        raise BuildError(f"{name!r} is no git tag.")
    if re.fullmatch("[0-9a-f]{40}", name):
        return Revision(name)
    _need_git()
    ref = f"refs/tags/{name}"
    done = subprocess.run(
        ["git", "ls-remote", URL, ref, f"{ref}^{{}}"],
        capture_output=True, text=True, errors="replace", check=False,
        stdin=subprocess.DEVNULL, env=_environment(),
    )  # fmt: skip
    if done.returncode != 0:
        raise BuildError(
            f"looking up the tag {name} in {URL} failed:\n{done.stderr.strip()[-600:]}\n"
            "A whole commit id (40 digits) needs no looking up; without --git-tag the pinned\n"
            "source comes from the package index."
        )
    # git matches the end of a name, so that other references may be in the answer
    found = {ref: commit for commit, ref in (line.split("\t") for line in done.stdout.splitlines())}
    commit = found.get(f"{ref}^{{}}", found.get(ref))
    if commit is None:
        raise BuildError(
            f"there is no tag {name} in {URL}.\n"
            "Give a tag that is there, or a whole commit id (40 digits)."
        )
    return Revision(commit, name)


def warn_if_moved(revision: Revision, report: Reporter) -> None:
    """Says so where the newest build of the same tag is of another commit."""
    if revision.tag is None:
        return
    same = [one for one in builds.installed() if one.details.get("git_tag") == revision.tag]
    newest = max(same, key=lambda one: one.created, default=None)
    before = newest.details.get("git_commit") if newest is not None else revision.commit
    if before != revision.commit:
        report.say(
            f"The tag {revision.tag} has moved: it was commit {before} when it was last built,\n"
            f"and is commit {revision.commit} now.  For the earlier one: --git-tag {before}"
        )


def check_out(revision: Revision, folder: Path, log: Path, report: Reporter) -> Path:
    """A checkout of `revision` below `folder`.

    It is fetched by its commit id, so a tag that moves meanwhile changes nothing.
    """
    _need_git()
    tree = folder / "llama.cpp"
    tree.mkdir(parents=True)
    # A shallow fetch, unlike a shallow clone, takes a commit id.
    commands = (
        ["git", "init", "--quiet"],
        ["git", "fetch", "--depth", "1", URL, revision.commit],
        ["git", "-c", "advice.detachedHead=false", "checkout", "--quiet", revision.commit],
    )
    with report.step(f"Fetching llama.cpp {revision.commit} with git") as step:
        for command in commands:
            run_logged(
                command,
                log,
                what=f"fetching llama.cpp {revision.commit}",
                hint="Leave --git-tag out to build the pinned source from the package index.",
                env=_environment(),
                cwd=tree,
                on_line=lambda line: step.update(None, None, line.strip()),
            )
    return tree


def _need_git() -> None:
    if shutil.which("git") is None:
        raise BuildError("--git-tag needs git, which is not installed.")


def _environment() -> dict[str, str]:
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
