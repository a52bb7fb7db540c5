"""``umaserve service`` with a real user manager of systemd, a real daemon and real clients."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_harness import eventually
from tests.support.user_manager import Absent, UserManager, user_manager
from umaserve.assets import demo_model_path
from umaserve.client import Client
from umaserve.llama import builds

UMASERVE = [sys.executable, "-m", "umaserve"]
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserManager]:
    if builds.select() is None:
        pytest.skip("no build of libllama is in the cache: run `make llama` first")
    try:
        with user_manager(tmp_path_factory.mktemp("manager")) as made:
            made.environment |= {
                "UMA_CACHE_DIR": str(builds.cache_root()), "PYTHONPATH": str(ROOT)
            }  # fmt: skip
            yield made
    except Absent as error:
        pytest.skip(str(error))


@pytest.fixture
def service(manager: UserManager) -> Iterator[UserManager]:
    yield manager
    done = manager.run(*UMASERVE, "service", "uninstall")
    assert done.returncode == 0, done.stderr
    assert not socket_of(manager).exists() and not units(manager)


def socket_of(manager: UserManager) -> Path:
    return manager.runtime / "uma.sock"


def units(manager: UserManager) -> list[str]:
    return sorted(path.name for path in manager.home.rglob("umaserve.*"))


def umaserve(manager: UserManager, *words: str) -> subprocess.CompletedProcess[str]:
    return manager.run(*UMASERVE, *words)


def install(manager: UserManager, *words: str) -> str:
    done = umaserve(manager, "service", "install", "--threads", "1", "--n-ctx", "512", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers(manager: UserManager) -> bool:
    """As a program that is told no path."""
    done = umaserve(manager, "generate", "--raw", "-p", "import", "--max-tokens", "3", "--json")
    return done.stdout.count('"event":"token"') == 3


def daemon(manager: UserManager) -> dict[str, Any]:
    with Client(str(socket_of(manager))) as client:
        return client.info()


def sequences(manager: UserManager) -> int:
    return int(daemon(manager)["model"]["n_seq"])


def test_from_install_to_uninstall(service: UserManager) -> None:
    shown = install(service)
    for name in ("umaserve.service", "umaserve.socket"):
        assert f"{service.home}/.config/systemd/user/{name}" in shown
    assert f"The service runs: {socket_of(service)}" in shown
    assert answers(service)
    first = daemon(service)["pid"]
    again = install(service)
    assert "Installed already" in again and daemon(service)["pid"] == first
    status = umaserve(service, "service", "status")
    assert status.returncode == 0 and "active (running)" in status.stdout
    logs = umaserve(service, "service", "logs")
    assert f"serving UMA Serve demo on {socket_of(service)}" in logs.stdout
    assert umaserve(service, "service", "uninstall").returncode == 0
    assert units(service) == [] and not socket_of(service).exists()
    assert service.state("umaserve.service") == "inactive"
    assert "nothing to do" in umaserve(service, "service", "uninstall").stdout
    assert umaserve(service, "service", "status").returncode == 1


def test_a_killed_daemon_is_started_again_and_clients_wait(service: UserManager) -> None:
    install(service)
    first = daemon(service)["pid"]
    os.kill(first, signal.SIGKILL)
    assert answers(service), "connected before the next daemon ran"
    assert daemon(service)["pid"] != first
    eventually(lambda: service.state("umaserve.service") == "active")


def test_on_demand_the_first_client_starts_it(service: UserManager) -> None:
    shown = install(service, "--on-demand")
    assert "starts with the first client" in shown
    assert service.state("umaserve.service") == "inactive"
    assert answers(service)
    eventually(lambda: service.state("umaserve.service") == "active")


def test_other_settings_replace_those_before(service: UserManager) -> None:
    install(service)
    shown = install(service, "--parallel", "3")
    assert "+ExecStart=" in shown and "--parallel=3" in shown
    assert answers(service) and sequences(service) == 3


def test_odd_names_reach_the_daemon(service: UserManager) -> None:
    folder = service.home / "a \"b\" %h $HOME ;'c' \\n é"
    folder.mkdir()
    model = folder / "m.gguf"
    shutil.copyfile(demo_model_path(), model)
    # as a person names it, from a folder that the service does not start in
    install(service, f"--model={os.path.relpath(model, service.home)}")
    assert answers(service)
    command = Path(f"/proc/{daemon(service)['pid']}/cmdline").read_bytes().split(b"\0")
    assert f"--model={model}".encode() in command


def test_the_settings_of_this_shell_are_the_services(service: UserManager) -> None:
    service.environment["UMA_N_SEQ"] = "2"
    try:
        install(service)
    finally:
        del service.environment["UMA_N_SEQ"]
    assert answers(service) and sequences(service) == 2


def test_a_daemon_by_hand_is_not_pushed_aside(service: UserManager) -> None:
    by_hand = subprocess.Popen(
        [*UMASERVE, "serve", "--threads", "1", "--n-ctx", "512", "--dashboard", "off",
         "--socket", str(socket_of(service))],
        env=service.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(socket_of(service).exists)
        done = umaserve(service, "service", "install")
        assert done.returncode == 1 and units(service) == []
        assert f"(process {by_hand.pid}); stop it first" in done.stderr
    finally:
        by_hand.terminate()
        assert by_hand.wait(60) == 0


def test_somebody_elses_unit_is_left_alone(service: UserManager) -> None:
    path = service.home / ".config/systemd/user/umaserve.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[Service]\nExecStart=/bin/true\n")
    for action in ("install", "uninstall"):
        done = umaserve(service, "service", action)
        assert done.returncode == 1
        assert f"{path} is not from `umaserve service install`" in done.stderr
    assert path.read_text() == "[Service]\nExecStart=/bin/true\n"
    path.unlink()


def test_a_daemon_that_cannot_start_is_told_of(service: UserManager, tmp_path: Path) -> None:
    absent = umaserve(service, "service", "install", "--model", str(tmp_path / "none.gguf"))
    assert absent.returncode == 2 and f"{tmp_path}/none.gguf does not exist" in absent.stderr
    assert units(service) == []
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(demo_model_path().read_bytes()[:100_000])
    done = umaserve(service, "service", "install", "--model", str(broken))
    assert done.returncode == 1 and "see `umaserve service logs`" in done.stderr
    eventually(lambda: str(broken) in umaserve(service, "service", "logs").stdout)


def test_nobody_hears_of_a_session_that_has_no_manager(manager: UserManager) -> None:
    environment = {**manager.environment, "XDG_RUNTIME_DIR": str(manager.home)}
    done = subprocess.run(
        [*UMASERVE, "service", "install"],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "loginctl enable-linger" in done.stderr
    assert units(manager) == []


def test_a_dry_run_changes_nothing(manager: UserManager) -> None:
    done = umaserve(manager, "service", "install", "--dry-run", "--http", "127.0.0.1:8080")
    assert done.returncode == 0 and "--http=127.0.0.1:8080" in done.stdout
    assert units(manager) == []
    assert done.stderr == ""
