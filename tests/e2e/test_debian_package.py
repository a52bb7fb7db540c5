"""The Debian package: made, looked at by lintian, installed on a layer over this machine, removed.

Nothing serves here: the machine's Python is another than that of the tests, so the samplers would
be compiled anew, for minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.installed import some_build
from tests.support.made_packages import make_packages
from tests.support.package_index import no_index_reachable
from tests.support.waiting import until
from tools import deb
from umaserve import __version__

MAINTAINER = {"DEBFULLNAME": "A Maintainer", "DEBEMAIL": "maintainer@debian.org"}
LAYERED_S = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# What is written lands in memory, and is gone with the last program in there.
LAYER = """
set -e
mount -t tmpfs -o size=4g tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" root
mount --rbind /proc root/proc
mount --rbind /dev root/dev
cp "$2" root/root/umaserve.deb
mkdir -p root/home/someone/.cache/umaserve/llama
cp -a "$3" root/home/someone/.cache/umaserve/llama
chmod -R go= root/home/someone/.cache
exec chroot root env -i HOME=/home/someone PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -ec "$4"
"""
USE = """
dpkg -i /root/umaserve.deb
find /usr/lib/umaserve/umaserve -name "cli.*.pyc" -o -name "command.*.pyc" | grep -q .
umaserve --version
umaserve doctor --socket ~/uma.sock
man -w umaserve uma-cli >/dev/null || [ ! -x /usr/bin/man ]
dpkg -r umaserve
if [ -e /usr/lib/umaserve ] || [ -e /usr/bin/umaserve ]; then exit 1; fi
echo "all of it is gone"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("dpkg-deb") is None or not Path(deb.PYTHON).exists():
        pytest.skip("this is no Debian with a Python of its own")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in MAINTAINER.items():
            patch.setenv(name, value)
        try:
            return deb.make(make_packages(tmp_path_factory.mktemp("package"))["wheel"])
        except deb.CannotMake as error:
            if no_index_reachable(str(error)):
                pytest.skip("no package index can be reached, so nothing can be installed")
            raise


def test_it_runs_for_the_machines_python(package: Path, tmp_path: Path) -> None:
    fields = subprocess.run(
        ["dpkg-deb", "--field", package], capture_output=True, text=True, check=True
    ).stdout
    assert "Package: umaserve\n" in fields and "g++" in fields
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "tree"], check=True)
    library = tmp_path / "tree/usr/lib/umaserve"
    for name in ("umaserve", "uma-cli"):
        command = tmp_path / "tree/usr/bin" / name
        moved = command.read_text("utf-8").replace("/usr/lib/umaserve", str(library))
        script = tmp_path / name
        script.write_text(moved, "utf-8")
        done = subprocess.run(
            [deb.PYTHON, "-I", script, "--help"], capture_output=True, text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0 and f"usage: {name} " in done.stdout, done.stderr


def test_lintian_has_nothing_to_say(package: Path) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("no lintian here: apt-get install lintian")
    done = subprocess.run(
        ["lintian", "--fail-on", "error,warning", package], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_installed_it_is_ready_and_goes_again(package: Path, tmp_path: Path) -> None:
    build = some_build()
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    needed = subprocess.run(["dpkg", "--status", "python3-dev", "g++"], capture_output=True)
    if needed.returncode != 0:
        pytest.skip("what the package needs is not here: apt-get install python3-dev g++")
    layer, log = tmp_path / "layer", tmp_path / "log"
    layer.mkdir()
    with log.open("wb") as out:
        run = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", LAYER, "layer",
             layer, package, build.path, USE],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        until(lambda: run.poll() is not None, LAYERED_S, 0.1)
    finally:
        run.kill()
        run.wait()
    said = log.read_text("utf-8")
    if "unshare: " in said or "mount: " in said:
        pytest.skip(f"this machine lets nobody lay files over its own: {said.splitlines()[-1]}")
    assert run.returncode == 0, said
    assert f"\numaserve {__version__}\n" in said and "\nReady to serve.\n" in said
    assert said.rstrip().endswith("all of it is gone")
