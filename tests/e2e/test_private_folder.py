"""What is loaded as this user's code lies where nobody else can put it."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import build_llama
from tests.support.engine_driver import DrivenEngine
from tests.support.jit_copies import _COMPILE, _FOLDER, _USE, copies, run
from tests.support.patches.engine_faults import temporary_folder
from tests.support.quiet_build import quiet
from tests.support.strangers import UID, as_stranger, give_away, only_root
from umaserve.engine.model.costs.cost_file import CostFile
from umaserve.llama import builds, library
from umaserve.llama.building import toolchain
from umaserve.llama.building.locking import file_lock
from umaserve.policy.cost.model import CostModel
from umaserve.system import private_folder
from umaserve.system.private_folder import NotPrivate, make_private, why_shared, why_shared_within

__all__ = ["copies"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def shared_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group is anybody's own."""
    monkeypatch.setattr(private_folder, "_is_own_group", lambda *_: False)


# --- the rule -------------------------------------------------------------------------------------


def test_a_folder_of_our_own_is_private_below_a_sticky_one_too(folder: Path) -> None:
    assert why_shared(folder) == why_shared(folder / "not" / "there") == ""
    folder.chmod(0o1777)
    assert why_shared(folder / "mine") == ""  # only we can make it, or rename it later
    (folder / "mine").mkdir(mode=0o755)
    assert why_shared(folder / "mine") == ""
    assert f"others may write to {folder} (mode 1777)" in why_shared(folder)


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o733])
def test_a_folder_that_others_may_write_to_is_not(folder: Path, mode: int) -> None:
    (folder / "below").mkdir()
    folder.chmod(mode)
    for path in (folder, folder / "below", folder / "not there", folder / "below" / ".." / "x"):
        why = why_shared(path)
        assert f"others may write to {folder} (mode {mode:04o})" in why
        assert f"chmod go-w {folder}" in why and "UMA_CACHE_DIR" in why


def test_the_group_counts_unless_it_is_the_owner_s_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o775)
    monkeypatch.setattr(private_folder, "_is_own_group", lambda uid, gid: True)
    assert why_shared(folder) == ""
    monkeypatch.setattr(private_folder, "_is_own_group", lambda uid, gid: False)
    assert "others may write" in why_shared(folder)


def test_whose_group_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    class Entry:
        def __init__(self, **fields: object) -> None:
            self.__dict__.update(fields)

    def of(name: str, group: str, members: list[str], first: int = 7) -> bool:
        private_folder._is_own_group.cache_clear()
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: Entry(pw_name=name, pw_gid=first))
        monkeypatch.setattr(
            grp, "getgrgid", lambda gid: Entry(gr_name=group, gr_gid=gid, gr_mem=members)
        )
        return private_folder._is_own_group(1000, 7)

    try:
        assert of("ann", "ann", []) and of("ann", "ann", ["ann"])
        assert not of("ann", "ann", ["bob"])
        assert not of("ann", "staff", [])  # everybody's first group, as on macOS
        assert not of("ann", "ann", [], first=8)
    finally:
        private_folder._is_own_group.cache_clear()


def test_a_folder_of_somebody_else_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "below").mkdir()
    give_away(folder, monkeypatch)
    assert "belongs to" in why_shared(folder / "below")


def test_what_is_root_s_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation for all users, which they can read only."""
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    assert why_shared("/usr/bin") == ""


def test_links_count_with_where_they_lie_and_where_they_lead(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("cache")
    (tmp_path / "second").symlink_to(tmp_path / "link")
    assert why_shared(tmp_path / "second" / "x") == ""
    folder.chmod(0o777)
    assert f"write to {folder}" in why_shared(tmp_path / "second" / "x")
    folder.chmod(0o1777)
    (folder / "his").symlink_to(tmp_path)  # he can let it lead elsewhere at any time
    give_away(folder / "his", monkeypatch)
    assert "belongs to" in why_shared(folder / "his" / "x")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    assert why_shared(tmp_path / "one") == ""  # nothing can be loaded from there


def test_names_count_from_the_current_folder_which_may_be_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [step.path for step in private_folder.steps("cache")]
    assert found[-2:] == [str(tmp_path), str(folder)]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert why_shared(folder) == ""


def test_everything_in_a_folder_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "lib" / "x.so"
    file.parent.mkdir()
    file.touch(0o644)
    (folder / "lib" / "link.so").symlink_to("x.so")
    assert why_shared_within(folder) == ""
    file.chmod(0o666)
    assert str(file.name) in why_shared_within(folder)
    file.chmod(0o644)
    give_away(file, monkeypatch)
    assert "belongs to" in why_shared_within(folder)


def test_root_looks_like_nobody_in_a_container_of_another_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(private_folder, "_is_outside_namespace", lambda uid: uid == UID)
    monkeypatch.setattr(private_folder, "_is_trusted", lambda uid: uid != UID)
    step = private_folder.Step("/home", os.stat_result((0o40755, 0, 0, 2, UID, UID, 0, 0, 0, 0)))
    assert private_folder._problem(step, above=True, sticky=False) == ""
    assert "belongs to" in private_folder._problem(step, above=False, sticky=False)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_made_is_for_us_alone(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        make_private(tmp_path / "a" / "b" / "c")
        make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    for name in ("a", "a/b", "a/b/c"):
        assert (tmp_path / name).stat().st_mode & 0o7777 == 0o700


def test_nothing_is_made_where_others_may_write(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(NotPrivate, match=f"{folder}/x is not used: others may write to {folder} "):
        make_private(folder / "x")
    assert list(folder.iterdir()) == []


# --- compiled code --------------------------------------------------------------------------------

PLANT = """
import os, sys
folder, content = sys.argv[1], bytes.fromhex(sys.argv[2])
for place, _, names in os.walk(folder):
    for name in names:
        if name.endswith(".nbi"):
            with open(os.path.join(place, name), "wb") as file:
                file.write(content)
"""


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self):
        return open, (self.mark, "w")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that another user can get to."""
    place = Path(tempfile.mkdtemp(prefix="uma-test-", dir="/tmp"))
    place.chmod(0o711)
    yield place
    shutil.rmtree(place)


@only_root
def test_a_pickle_of_another_user_does_not_run(
    copies: list[Path], open_place: Path, tmp_path: Path
) -> None:
    cache, mark = open_place / "cache", tmp_path / "mark"
    settings = {"UMA_CACHE_DIR": str(cache), "TMPDIR": str(tmp_path)}
    assert run(copies[0], _COMPILE, **settings).split()[:2] == ["0", "1"]
    for path in [cache, *cache.rglob("*")]:
        os.chown(path, UID, UID)
    as_stranger(PLANT, cache, pickle.dumps(Evil(str(mark))).hex())
    said, where = run(copies[0], _USE, **settings).splitlines()
    assert f"{cache} belongs to" in said and "UMA_CACHE_DIR" in said
    assert where.startswith(f"{tmp_path}/umaserve-")
    # compiled anew, where it is kept
    for hits in (["0", "1"], ["1", "0"]):
        assert run(copies[0], _COMPILE, **settings).split()[:2] == hits
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "jit/*", "jit/*/umaserve.engine.prefill/*.nbi"])
def test_a_pickle_that_anybody_could_have_put_there_does_not_run(
    copies: list[Path], tmp_path: Path, where: str
) -> None:
    cache, mark = tmp_path / "open cache", tmp_path / "mark"
    settings = {"UMA_CACHE_DIR": str(cache), "TMPDIR": str(tmp_path)}
    folder = Path(run(copies[0], _FOLDER, **settings))
    run(copies[0], _COMPILE, **settings)
    for index in folder.rglob("*.nbi"):
        index.write_bytes(pickle.dumps(Evil(str(mark))))
    for path in cache.glob(where) if where else [cache]:
        path.chmod(path.stat().st_mode | 0o002)
    assert run(copies[0], _COMPILE, **settings).split()[:2] == ["0", "1"]
    assert not mark.exists()
    # the rule holds for a folder that is named to numba itself
    settings["NUMBA_CACHE_DIR"] = str(folder)
    assert run(copies[0], _COMPILE, **settings).split()[:2] == ["1", "0"]  # the temporary one
    assert not mark.exists()


def test_compiled_code_is_kept_for_us_alone(copies: list[Path], tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run(copies[0], _COMPILE, UMA_CACHE_DIR=str(tmp_path / "new" / "cache"))
    finally:
        os.umask(before)
    for name in ("new", "new/cache", "new/cache/jit"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_an_engine_without_a_private_folder_says_so(folder: Path) -> None:
    folder.chmod(0o777)
    patch = partial(temporary_folder, folder=str(folder))
    with DrivenEngine(patch=patch, fresh=True, expect_failure=True) as engine:
        assert "is not used: others may write to" in engine.failure


# --- builds ---------------------------------------------------------------------------------------


@pytest.fixture
def build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> builds.Build:
    """Passes for a build as far as nobody loads it."""
    monkeypatch.setenv("UMA_CACHE_DIR", str(folder))
    monkeypatch.delenv(builds.BUILD_VARIABLE, raising=False)
    return make_build(folder / "llama" / "one")


def make_build(path: Path) -> builds.Build:
    make_private(path / "lib")
    (path / "lib" / f"libllama.{builds.library_suffix()}").touch(0o644)
    text = (
        '{{"format": {}, "key": "one", "backend": "cpu", "version": "v", "commit": "c", '
        '"source": "s", "created": 1, "machine": "{}"}}'
    )
    (path / builds.MANIFEST).write_text(
        text.format(builds.MANIFEST_FORMAT, builds.machine_tag()), "utf-8"
    )
    found = builds.read_build(path)
    assert found is not None
    return found


def test_a_private_build_is_used(build: builds.Build, monkeypatch: pytest.MonkeyPatch) -> None:
    assert builds.installed() == [build] and builds.select() == build and builds.refused() == []
    for name in ("one", str(build.path)):
        monkeypatch.setenv(builds.BUILD_VARIABLE, name)
        assert builds.select() == build


@pytest.mark.parametrize("what", ["llama", "llama/one", "llama/one/lib/libllama.*"])
@pytest.mark.parametrize("his", [True, False])
def test_a_build_that_others_could_change_is_not(
    build: builds.Build, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str, his: bool
) -> None:
    (path,) = folder.glob(what)
    if his:
        give_away(path, monkeypatch)
    else:
        path.chmod(0o777)
    reason = "belongs to" if his else "others may write to"
    assert builds.installed() == [] and builds.select() is None
    (why,) = builds.refused()
    assert why.startswith(f"{build.path} is not used: ") and reason in why
    assert reason in library._not_built("auto")
    for name in ("one", str(build.path), "../llama/one"):
        monkeypatch.setenv(builds.BUILD_VARIABLE, name)
        assert builds.select() is None
        said = library._not_built("auto")
        assert said.startswith(f"UMA_LLAMA_BUILD names {name}, which is no build that may be used")
        assert reason in said
        with pytest.raises(NotPrivate, match=reason):
            build_llama.ensure(report=quiet())


def test_an_absolute_build_elsewhere_goes_by_the_same_rule(
    build: builds.Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_build(tmp_path / "elsewhere" / "llama" / "two")
    monkeypatch.setenv(builds.BUILD_VARIABLE, str(other.path))
    assert builds.select() == other
    (tmp_path / "elsewhere").chmod(0o777)  # somebody could rename what is in it
    assert builds.select() is None and len(builds.refused()) == 1
    monkeypatch.setenv(builds.BUILD_VARIABLE, str(tmp_path / "absent"))
    assert library._not_built("auto").endswith("which is no build")


def test_nothing_is_built_in_a_cache_of_others(folder: Path) -> None:
    folder.chmod(0o777)
    done = subprocess.run(
        [sys.executable, str(ROOT / "build_llama.py"), "--backend", "cpu"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "UMA_CACHE_DIR": str(folder / "below")},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"build_llama: {folder}/below/llama is not used: others may write to" in done.stderr
    assert list(folder.iterdir()) == []


def test_doctor_says_what_is_not_used_and_why(build: builds.Build, folder: Path) -> None:
    folder.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "umaserve", "doctor", "--socket", str(folder / "s")],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    why = f"is not used: others may write to {folder} (mode 0777)"
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for expected in (f"warn cache {folder} {why}", f"warn builds {build.path} {why}"):
        assert any(line.startswith(expected) for line in lines), done.stdout
    assert any(line.startswith("missing library") and why in line for line in lines), done.stdout


# --- the rest of the cache ------------------------------------------------------------------------


def test_locks_are_ours_alone(folder: Path, tmp_path: Path) -> None:
    with file_lock(folder / "new" / ".lock", "", print):
        assert (folder / "new" / ".lock").stat().st_mode & 0o777 == 0o600
    (folder / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError), file_lock(folder / ".lock", "", print):
        pass
    assert not (tmp_path / "victim").exists()
    folder.chmod(0o777)
    with pytest.raises(NotPrivate), file_lock(folder / ".other", "", print):
        pass


def test_build_tools_of_others_do_not_run(build: builds.Build, folder: Path) -> None:
    version, _ = toolchain.locked("cmake")
    program = folder / "tools" / f"cmake-{version}-{builds.python_abi()}" / "bin" / "cmake"
    make_private(program.parent)
    program.touch(0o755)
    program.chmod(0o777)
    with pytest.raises(NotPrivate, match="cmake"):
        toolchain.from_index("cmake", folder / "log", quiet())


def test_costs_of_others_are_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = CostModel.unknown()
    assert CostFile({"a": 1}, folder / "costs").save(cost) == ""
    assert CostFile({"a": 1}, folder / "costs").load(cost)
    (folder / "costs").chmod(0o777)
    assert not CostFile({"a": 1}, folder / "costs").load(cost)
    assert "is not used: others may write to" in CostFile({"a": 1}, folder / "costs").save(cost)
