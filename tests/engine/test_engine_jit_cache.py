"""Compiled code: shared by copies of the same sources, kept apart for sources that differ."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import __version__ as numba_version

from tests.support.jit_copies import _COMPILE, _FOLDER, _USE, ROOT, copies, run
from umaserve.jit import cache as jit_cache
from umaserve.system.private_folder import NotPrivate

__all__ = ["copies"]  # a fixture


def test_copies_of_the_same_sources_share_what_is_compiled(copies: list[Path]) -> None:
    cache = str(copies[0].parent / "cache")
    first, second, third = (
        run(copy, _COMPILE, UMA_CACHE_DIR=cache).split() for copy in (*copies, copies[0])
    )
    assert first[:2] == ["0", "1"]  # nobody had compiled it
    assert second[:2] == third[:2] == ["1", "0"]
    assert first[2] == second[2] == third[2]
    assert first[2].startswith(cache)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".nbi", b"cut"), (".nbc", b""),
        # an index that names a class which nobody has any more
        (".nbi", pickle.dumps(numba_version) + b"cgone\nGone\n."),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_compiled_again(
    copies: list[Path], suffix: str, content: bytes
) -> None:
    first = run(copies[0], _COMPILE).split()
    assert first[:2] == ["0", "1"]
    files = [f for f in Path(first[2]).rglob("*") if f.suffix == suffix]
    assert files
    for file in files:
        file.write_bytes(content)
    assert run(copies[0], _COMPILE).split()[:2] == ["0", "1"]
    assert run(copies[0], _COMPILE).split()[:2] == ["1", "0"]


def test_no_class_of_a_test_is_in_the_engines_cache() -> None:
    """An engine that starts where the tests are not would have to compile again."""
    folders = Path(os.environ["NUMBA_CACHE_DIR"]).glob("umaserve.*")
    indexes = [file for folder in folders for file in folder.rglob("*.nbi")]
    assert indexes
    assert not [file.name for file in indexes if b"tests." in file.read_bytes()]


def test_sources_that_differ_are_kept_apart(copies: list[Path]) -> None:
    def folder() -> str:
        return run(copies[0], _FOLDER)

    before = folder()
    assert before == folder()
    gate, front = (
        copies[0] / "umaserve" / name
        for name in ("engine/prefill/gate.py", "server/requests/tokens/text.py")
    )
    front.write_text(front.read_text() + "\n# the front compiles nothing\n")
    assert folder() == before
    gate.write_text(gate.read_text() + "\n# as good as any other change\n")
    assert folder() != before


def test_a_complete_folder_is_found_without_its_sources(copies: list[Path]) -> None:
    cache = str(copies[0].parent / "cache")
    mark = "from umaserve.jit import cache\ncache.use_jit_cache()\ncache.mark_complete()\n"
    known = (
        "from umaserve.jit import cache\n"
        "cache.compiled_sources = lambda package: [package / '__init__.py']\n"
        "print(cache.jit_cache_dir())"
    )

    def is_known(copy: Path) -> bool:
        return run(copy, known, UMA_CACHE_DIR=cache) == whole

    whole = run(copies[0], _FOLDER)
    assert not is_known(copies[0])  # nothing is complete
    run(copies[0], mark)
    assert is_known(copies[0]) and is_known(copies[1])
    front = copies[0] / "umaserve" / "server/requests/tokens/text.py"
    front.write_text(front.read_text() + "\n# another package\n")
    assert not is_known(copies[0]) and run(copies[0], _FOLDER) == whole
    run(copies[0], mark)
    assert is_known(copies[0]) and not is_known(copies[1])


def test_where_numba_goes_by_path_so_does_the_folder(copies: list[Path]) -> None:
    cache = str(copies[0].parent / "cache")
    chosen = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "UMA_CACHE_DIR": cache}
    assert run(copies[0], _FOLDER, **chosen) != run(copies[1], _FOLDER, **chosen)
    assert run(copies[0], _FOLDER, UMA_CACHE_DIR=cache) == run(
        copies[1], _FOLDER, UMA_CACHE_DIR=cache
    )


def test_no_two_folders_share_a_place() -> None:
    from umaserve.jit.locator import PackageCacheLocator

    folders = ("engine", "engine/loop", "engine_loop", "loop/engine", "loop")
    places = {
        PackageCacheLocator.get_suitable_cache_subpath(str(ROOT / "umaserve" / folder / "rows.py"))
        for folder in folders
    }
    assert len(places) == len(folders)


def test_files_of_others_lie_where_numba_puts_them() -> None:
    from numba.core.caching import UserProvidedCacheLocator

    from umaserve.jit.locator import PackageCacheLocator

    gate = ROOT / "umaserve/engine/prefill/gate.py"
    ours = PackageCacheLocator.get_suitable_cache_subpath(str(gate))
    assert ours == "umaserve.engine.prefill"
    assert jit_cache.LOCATORS.split(",")[0].endswith(PackageCacheLocator.__name__)
    for other in (ROOT / "tests/engine/test_gate.py", Path("/somewhere/else.py")):
        theirs = UserProvidedCacheLocator.get_suitable_cache_subpath(str(other))
        assert PackageCacheLocator.get_suitable_cache_subpath(str(other)) == theirs


READ_ONLY = "mount --bind {0} {0} && mount -o remount,bind,ro {0} && "


def read_only(folder: Path) -> list[str]:
    """What to begin a command with, so that it finds the folder read-only."""
    tried = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = READ_ONLY.format(folder)
    for begin in (["unshare", "--mount", "sh", "-c"], tried):
        found = shutil.which("unshare") and subprocess.run(
            [*begin, f"{mount} ! touch {folder}/x"], capture_output=True
        )
        if found and found.returncode == 0:
            return [*begin, f'{mount} exec "$@"', "sh"]
    pytest.skip("no file system can be mounted read-only here")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts are Linux's")
@pytest.mark.parametrize("built", [True, False])
def test_a_cache_that_cannot_be_written_is_used_all_the_same(
    copies: list[Path], tmp_path: Path, built: bool
) -> None:
    cache, temporary = copies[0].parent / "cache", tmp_path / "temporary"
    temporary.mkdir()
    folder = Path(run(copies[0], _FOLDER))
    folder.mkdir(parents=True)
    if built:
        run(copies[0], _COMPILE)
        (folder / jit_cache.COMPLETE).touch()
    begin = read_only(cache)

    def there(script: str) -> list[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
        done = subprocess.run(
            [*begin, sys.executable, "-c", script], cwd=copies[0], capture_output=True, text=True,
            env={**kept, "PYTHONPATH": str(copies[0]), "UMA_CACHE_DIR": str(cache),
                 "TMPDIR": str(temporary)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    said, where = there(_USE)
    if built:
        assert not said and where.endswith("True")
    else:
        assert "cannot be written" in said and str(temporary) in said and where.endswith("False")
    assert Path(where.split()[0]).parent.parent.stat().st_mode & 0o777 == 0o700
    # what is there is used, what is not is compiled once
    assert there(_COMPILE)[0].split()[:2] == (["1", "0"] if built else ["0", "1"])
    assert there(_COMPILE)[0].split()[:2] == ["1", "0"]


def test_a_temporary_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(jit_cache.tempfile, "tempdir", str(tmp_path))
    owner = tmp_path / f"umaserve-{os.geteuid()}"
    owner.mkdir()
    owner.chmod(0o777)  # anybody may have put something there
    found = jit_cache._temporary_folder("absent", None)
    assert not found.is_relative_to(owner) and found.is_dir()
    owner.chmod(0o700)
    assert jit_cache._temporary_folder("absent", None).is_relative_to(owner)
    tmp_path.chmod(0o777)  # nothing in it is safe: anybody may rename it
    with pytest.raises(NotPrivate, match="others may write"):
        jit_cache._temporary_folder("absent", None)
