"""The address of ``--http``: had, refused, announced and given back."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.fake_engine import answer
from tests.support.http_client import Reply, ask, port_of, raw, replies
from tests.support.server_harness import DaemonProcess, eventually
from umaserve.server.gateway.child import SILENT_S


def refused(tmp_path: Path, **settings: object) -> str:
    """Log of a daemon that does not start."""
    daemon = DaemonProcess(tmp_path, wait=False, **settings)
    assert daemon.wait() == 1, daemon.log
    assert "Traceback" not in daemon.log
    assert not os.path.lexists(daemon.path), "the main socket is left behind"
    return daemon.log


def by_unix(path: str | Path, target: str = "/health") -> Reply:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(path))
        # whoever may open the socket is trusted, whatever name it uses
        sock.sendall(b"GET %s HTTP/1.1\r\nHost: any.example\r\n\r\n" % target.encode())
        return replies(sock, 1)[0]


# --- TCP -----------------------------------------------------------------------------------------


def test_line_names_the_real_port(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        port = port_of(daemon)
        assert port > 0
        eventually(lambda: f"on {daemon.path} and http://127.0.0.1:{port} (" in daemon.log)
        assert ask(daemon, "/health").status == 200
        assert daemon.info()["http"] == f"http://127.0.0.1:{port}"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_port_in_use(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        log = refused(tmp_path, http=f"127.0.0.1:{port}")
    assert f"--http 127.0.0.1:{port}: port {port} is in use" in log and "choose another" in log


def test_port_is_free_again_at_once(tmp_path: Path) -> None:
    """Connections that the last daemon closed do not keep the port."""
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        port = port_of(daemon)
        with raw(daemon) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x.y\r\nConnection: close\r\n\r\n")
            assert replies(sock, 1)[0].status == 421
            assert sock.recv(1) == b""
    with DaemonProcess(tmp_path, http=f"127.0.0.1:{port}") as daemon:
        assert port_of(daemon) == port and ask(daemon, "/health").status == 200


@pytest.mark.parametrize(
    ("http", "why"),
    [
        ("192.0.2.1:8080", "192.0.2.1 is no address of this machine"),
        ("no-such-host.invalid:8080", "no-such-host.invalid cannot be found"),
        (f"{'x' * 70}.example:1", "cannot be found"),
    ],
)
def test_host_that_is_not_here(tmp_path: Path, http: str, why: str) -> None:
    assert f"--http {http}" in (log := refused(tmp_path, http=http)) and why in log


def test_localhost_is_one_port_on_every_address_of_it(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="localhost:0") as daemon:
        port = port_of(daemon)
        found = {info[4][0] for info in socket.getaddrinfo("localhost", port)}
        reached = set()
        for ip in found:
            try:
                sock = socket.create_connection((ip, port), 60)
            except OSError:  # named in the hosts file, and not there
                continue
            with sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert replies(sock, 1)[0].status == 200
                reached.add(ip)
        assert "127.0.0.1" in reached and f"http://localhost:{port}" in daemon.log


def has_ipv6() -> bool:
    try:
        with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="[::1]:0") as daemon:
        port = port_of(daemon)
        assert f"http://[::1]:{port} answers" in daemon.log
        with socket.create_connection(("::1", port), 60) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n" % port)
            assert replies(sock, 1)[0].status == 200


def test_address_that_others_reach_needs_keys(tmp_path: Path) -> None:
    log = refused(tmp_path, http="0.0.0.0:0")
    assert "is open to other machines" in log and "--api-key-file" in log
    keys = tmp_path / "keys"
    keys.write_text("# who asks\neditor a-key-of-the-editor\n\nanother-key-alone\n")
    keys.chmod(0o600)
    log = refused(tmp_path, http="0.0.0.0:0", api_key_file=str(keys))
    assert "--tls-cert FILE" in log and "--insecure-http" in log
    told = {"http": "0.0.0.0:0", "api_key_file": str(keys), "insecure_http": True}
    with DaemonProcess(tmp_path, **told) as daemon:
        for path in ("/requests", "/metrics", "/none", "/openapi.json", "/"):
            reply = ask(daemon, path, Host="0.0.0.0")
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        for key in ("a-key-of-the-edito", "a-key-of-the-editor2", "another", ""):
            reply = ask(daemon, "/requests", Authorization=f"Bearer {key}")
            assert reply.status == 401 and (not key or key.encode() not in reply.body)
        assert ask(daemon, "/requests", Authorization="Bearer a-key-of-the-editor").status == 200
        assert ask(daemon, "/requests", X_Api_Key="another-key-alone").status == 200
        assert "a-key" not in daemon.log and "another-key" not in daemon.log


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "holds no key"),
        ("a-key-of-the-editor", 0o644, "chmod 600"),
        ("short", 0o600, "fewer than 16"),
        ("editor a-key-of-the-editor more", 0o600, "line 1: it takes KEY, NAME KEY or NAME KEY"),
        (None, 0o600, "No such file"),
    ],
)
def test_key_files_that_cannot_be(tmp_path: Path, text: str | None, mode: int, why: str) -> None:
    keys = tmp_path / "keys"
    if text is not None:
        keys.write_text(text)
        keys.chmod(mode)
    log = refused(tmp_path, http="127.0.0.1:0", api_key_file=str(keys))
    assert why in log and "a-key" not in log


# --- the process ---------------------------------------------------------------------------------


def gateway_of(daemon: DaemonProcess) -> psutil.Process:
    """The process that answers HTTP."""
    found = [p for p in daemon.children() if "umaserve.gateway" in " ".join(p.cmdline())]
    (process,) = found
    return process


def test_gateway_that_is_killed_is_replaced_and_socket_clients_notice_nothing(
    tmp_path: Path,
) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon, daemon.client() as client:
        assert ask(daemon, "/health").status == 200
        client.ask("a", "meanwhile", max_tokens=200)
        client.wait_tokens("a", 2)
        for _ in range(3):
            gateway = gateway_of(daemon)
            gateway.kill()
            gateway.wait(60)
            # who asks meanwhile waits in the line of the sockets, which the front keeps
            assert ask(daemon, "/health").status == 200
        assert bytes(client.finish("a")[0].tokens) == answer("meanwhile", 200)
        assert "HTTP gateway ended (signal 9); another one takes its place" in daemon.log
        assert "the HTTP gateway is there again" in daemon.log


def test_gateway_that_hangs_is_replaced_and_socket_clients_notice_nothing(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon, daemon.client() as client:
        assert ask(daemon, "/health").status == 200
        client.ask("a", "meanwhile", max_tokens=200)
        client.wait_tokens("a", 2)
        gateway = gateway_of(daemon)
        gateway.suspend()
        with raw(daemon) as sock:  # taken by the one that hangs, or by the next
            assert ask(daemon, "/health").status == 200
            assert not gateway.is_running() and gateway_of(daemon).pid != gateway.pid
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert replies(sock, 1)[0].status == 200
        assert bytes(client.finish("a")[0].tokens) == answer("meanwhile", 200)
        assert "HTTP gateway ended (it did not answer); another one takes" in daemon.log


def test_gateway_is_not_blamed_for_a_front_that_was_asleep(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        assert ask(daemon, "/health").status == 200
        gateway = gateway_of(daemon)
        front = psutil.Process(daemon.process.pid)
        front.suspend()
        time.sleep(SILENT_S + 2)
        front.resume()
        assert ask(daemon, "/health").status == 200
        assert gateway_of(daemon).pid == gateway.pid and "did not answer" not in daemon.log


def test_nothing_is_blamed_for_a_machine_that_was_asleep(tmp_path: Path) -> None:
    """All processes are stopped for longer than any of them may say nothing."""
    settings = {"http": "127.0.0.1:0", "hang_timeout_s": 2.0, "idle_timeout_s": 5.0}
    with (
        DaemonProcess(tmp_path, environment={"FAKE_TICK_MS": "5"}, **settings) as daemon,
        daemon.client() as client,
    ):
        assert ask(daemon, "/health").status == 200
        client.ask("a", "meanwhile", max_tokens=400)
        client.wait_tokens("a", 2)
        with daemon.client() as idle:
            processes = [psutil.Process(daemon.process.pid), *daemon.children()]
            for process in processes:
                process.suspend()
            time.sleep(SILENT_S + 2)
            for process in processes:
                process.resume()
            assert bytes(client.finish("a")[0].tokens) == answer("meanwhile", 400)
            idle.send(type="ping")
            assert idle.answer("pong")["event"] == "pong"
        assert ask(daemon, "/health").status == 200
        assert {p.pid for p in processes} == {daemon.process.pid} | {
            child.pid for child in daemon.children()
        }
        assert daemon.metrics()["engine_restarts_total"] == 0


def test_gateway_ends_with_the_daemon(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon:
        ask(daemon, "/health")
        gateway = gateway_of(daemon)
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        psutil.wait_procs([gateway], timeout=60)
        assert not gateway.is_running()
        daemon.expected = -signal.SIGKILL
        os.unlink(daemon.path)
        os.unlink(daemon.path + ".lock")


def test_signals_to_all_processes_end_the_gateway_last(tmp_path: Path) -> None:
    """As a terminal and a service manager send them."""
    with DaemonProcess(tmp_path, http="127.0.0.1:0") as daemon, daemon.client() as client:
        client.ask("a", "x", max_tokens=300)
        client.wait_tokens("a", 2)
        assert ask(daemon, "/health").status == 200
        gateway = gateway_of(daemon)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            gateway.send_signal(number)
        daemon.process.send_signal(signal.SIGTERM)
        eventually(lambda: "shutting down" in daemon.log)
        assert json.loads(ask(daemon, "/health").body)["status"] == "stopping"
        assert len(client.finish()[0].tokens) == 300
        assert daemon.wait() == 0 and not gateway.is_running()
        assert "gateway ended" not in daemon.log


# --- Unix socket ---------------------------------------------------------------------------------


def test_unix_socket_is_private_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with DaemonProcess(tmp_path, http=f"unix:{path}") as daemon:
        mode = os.stat(path).st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        eventually(lambda: f"serving model on {daemon.path} and unix:{path} (" in daemon.log)
        reply = by_unix(path)
        assert (reply.status, json.loads(reply.body)["status"]) == (200, "ok")
        assert by_unix(path, "/v1/models").status == 200
    assert os.listdir(tmp_path) and not list(tmp_path.glob("http.sock*"))


def test_kill_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with DaemonProcess(tmp_path, http=f"unix:{path}") as first:
        first.children()
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        assert stat.S_ISSOCK(os.lstat(path).st_mode)
        with DaemonProcess(tmp_path, http=f"unix:{path}"):
            assert by_unix(path).status == 200
        first.expected = -signal.SIGKILL
    assert not path.exists()


def test_unix_socket_of_another_daemon_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with DaemonProcess(tmp_path, http=f"unix:{path}") as daemon:
        other = tmp_path / "other"
        other.mkdir()
        log = refused(other, http=f"unix:{path}")
        assert f"{path} is in use by process {daemon.process.pid}" in log and "--http" in log
        assert by_unix(path).status == 200


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    path.write_text("precious")
    assert "is not a socket" in (log := refused(tmp_path, http=f"unix:{path}")) and "--http" in log
    assert path.read_text() == "precious"


def test_one_path_cannot_be_both_sockets(tmp_path: Path) -> None:
    assert "--http and --socket both name" in refused(tmp_path, http=f"unix:{tmp_path}/uma.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to try it")
def test_another_user_is_refused_whatever_the_mode() -> None:
    code = (
        "import os, socket, sys; os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(10)\n"
        "try: s.sendall(b'GET /health HTTP/1.0\\r\\n\\r\\n'); print(s.recv(1))\n"
        "except OSError: print(b'')"
    )
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        path = f"{name}/http.sock"
        with DaemonProcess(Path(name), http=f"unix:{path}"):
            os.chmod(path, 0o666)
            command = [sys.executable, "-S", "-c", code, path]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert done.stdout == "b''\n"


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_open_connections_do_not_delay_the_end(tmp_path: Path, number: int) -> None:
    """Neither idle ones nor one in the middle of a request: with an idle time longer than a test
    may take, waiting for them would not end."""
    with DaemonProcess(tmp_path, http="127.0.0.1:0", idle_timeout_s=0) as daemon:
        kept, begun, silent = raw(daemon), raw(daemon), raw(daemon)
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert replies(kept, 1)[0].status == 200
        begun.sendall(b"GET /health HT")
        daemon.children()
        daemon.process.send_signal(number)
        assert daemon.wait() == 0
        for sock in (kept, begun, silent):
            sock.close()
        assert daemon.log.count("stopped") == 1


def test_front_and_gateway_do_not_hold_each_other() -> None:
    """The front has no HTTP in it, the gateway no model, no numpy and no trio."""
    front = (
        "import sys, umaserve.server.main\nassert not {'uvicorn', 'starlette'} & {*sys.modules}"
    )
    gateway = (
        "import sys, umaserve.gateway.process\n"
        "assert not {'numpy', 'numba', 'trio', 'umaserve.server'} & {*sys.modules}"
    )
    for code in (front, gateway):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# --- by itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_gateway_by_itself(tmp_path: Path, number: int) -> None:
    with DaemonProcess(tmp_path) as daemon:
        words = ["gateway", "--socket", daemon.path, "--listen", f"unix:{tmp_path}/http.sock"]
        command = [sys.executable, "-m", "umaserve", *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert f"answers for the daemon at {daemon.path}" in process.stderr.readline()
            assert json.loads(by_unix(tmp_path / "http.sock").body)["status"] == "ok"
            daemon.stop()
            reply = by_unix(tmp_path / "http.sock")
            assert (reply.status, json.loads(reply.body)["status"]) == (503, "unreachable")
            process.send_signal(number)
            assert process.wait(60) == 0
        assert not (tmp_path / "http.sock").exists()


def test_gateway_by_itself_that_cannot_be(tmp_path: Path) -> None:
    for words, why in (
        (["--listen", "0.0.0.0:0"], "needs --api-key-file"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--api-key-file", "/none"], "No such file"),
    ):
        command = [sys.executable, "-m", "umaserve", "gateway", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2) and why in done.stderr, done.stderr
