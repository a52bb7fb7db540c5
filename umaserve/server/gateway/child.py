"""The gateway's process: started, followed, and replaced when it ends or hangs.

The gateway's loop sends a sign of life every second.  The front keeps the sockets that listen.
While no gateway runs, clients wait in their line.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import trio

from umaserve.config import Config
from umaserve.server.engines.descriptors import RESERVE
from umaserve.server.gateway.listener import HttpListeners
from umaserve.system.own_key import make_own_key
from umaserve.system.own_process import signals_left_to_front
from umaserve.system.own_python import run_module

COMMAND = run_module("umaserve.gateway")
STEADY_S = 5.0  # one that lived so long is replaced at once when it ends
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # before the next one, where they end early
END_S = 4.0  # for the answers that are under way
REAP_S = 1.0
START_S = 60.0  # until it takes requests
SILENT_S = 6.0  # a gateway that takes requests and says nothing for so long hangs
LINE_BYTES = 64 * 1024


class GatewayChild:
    """``run`` is its whole life.  ``on_ready`` is called each time a gateway takes requests."""

    def __init__(
        self,
        config: Config,
        http: HttpListeners,
        log: Callable[..., None],
        on_ready: Callable[[], None],
    ) -> None:
        self._log, self._on_ready = log, on_ready
        self._fds = [listener.socket.fileno() for listener in http.listeners]
        own_key = "" if config.api_key_file or not http.host else self._own_key()
        self._settings = settings_of(config, http, own_key)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._was_ready = False  # any of them
        self._is_ready = False  # the one that runs
        self._turn = False  # the one that runs is to end for another one

    async def run(self) -> None:
        """Have a gateway until cancelled.

        Returns where the first one says that it cannot serve; the log has the reason.
        """
        pause_s = 0.0
        try:
            while True:
                began_s = trio.current_time()
                try:
                    self._start()
                    is_silent = await self._follow()
                    status = await self._end(0.0 if is_silent else REAP_S)
                    how = f"signal {-status}" if status < 0 else f"exit status {status}"
                    how = "it did not answer" if is_silent else how
                except OSError as error:
                    status, how = 0, f"it cannot be started: {error.strerror}"
                if not self._was_ready and status == 1:
                    return
                if self._turn:
                    self._turn, pause_s = False, 0.0
                    continue
                self._log("warn", f"the HTTP gateway ended ({how}); another one takes its place")
                if trio.current_time() - began_s > STEADY_S:
                    pause_s = 0.0
                await trio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s or PAUSE_S)
        finally:
            with trio.CancelScope(shield=True):
                await self._end(END_S)

    def _own_key(self) -> str:
        try:
            return make_own_key()
        except OSError as error:
            self._log("warn", f"no key is made for this user's apps: {error}")
            return ""

    def kill(self) -> None:
        """End the gateway at once, with the answers that are under way."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def serve(self, bound: socket.socket) -> None:
        """Listen at this socket instead: the file of the other one was gone."""
        self._fds, self._turn = [bound.fileno()], True
        if self._control is not None:
            self._control.shutdown(socket.SHUT_RDWR)

    def _start(self) -> None:
        """Raises ``OSError``."""
        with RESERVE.lent():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with theirs, signals_left_to_front():
                    argument = json.dumps([self._settings, theirs.fileno(), self._fds])
                    self._process = subprocess.Popen(
                        [*COMMAND, argument],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno(), *self._fds],
                    )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control, self._is_ready = ours, False

    async def _follow(self) -> bool:
        """Hear what the gateway says, until its end, or until it has said nothing for too long.

        Returns whether it is silent.
        """
        assert self._control is not None
        data = b""
        while True:
            with trio.move_on_after(SILENT_S if self._is_ready else START_S) as scope:
                await trio.lowlevel.wait_readable(self._control)
            try:  # in any case: the front itself may have been asleep
                part = self._control.recv(LINE_BYTES)
            except BlockingIOError:
                if scope.cancelled_caught:
                    return True
                continue
            except OSError:
                part = b""
            if not part:
                return False
            *lines, data = (data + part).split(b"\n")
            for line in lines:
                self._heard(json.loads(line))
            if len(data) > LINE_BYTES:
                return False

    def _heard(self, words: dict[str, Any]) -> None:
        if words.get("ready"):
            if self._was_ready:
                self._log("info", "the HTTP gateway is there again")
            self._was_ready = self._is_ready = True
            self._on_ready()
        elif words:
            self._log(str(words["level"]), str(words["text"]))

    async def _end(self, within_s: float) -> int:
        """Have no gateway any more; its exit status, 0 without one."""
        control, self._control = self._control, None
        if control is not None:
            control.close()
        process, self._process = self._process, None
        if process is None:
            return 0
        with trio.move_on_after(within_s):
            while process.poll() is None:
                await trio.sleep(0.01)
        if process.poll() is None:
            process.kill()
            await trio.to_thread.run_sync(process.wait)
        return process.returncode


def settings_of(config: Config, http: HttpListeners, own_key_file: str) -> dict[str, Any]:
    """Return the gateway's settings, with paths of secrets and no secret."""
    return {
        "socket": os.path.abspath(config.socket),
        "hosts": [http.host, *listed(config.allow_host)] if http.host else [],
        "any_host": not http.host,
        "origins": listed(config.allow_origin),
        "api_key_file": config.api_key_file,
        "own_key_file": own_key_file,
        "tls_cert": config.tls_cert and os.path.abspath(config.tls_cert),
        "tls_key": config.tls_key and os.path.abspath(config.tls_key),
        "model_dirs": [os.path.abspath(folder) for folder in listed(config.model_dir)],
        "max_connections": config.max_connections,
        "idle_timeout_s": config.idle_timeout_s,
        "owner": os.geteuid(),
        "core_dumps": config.core_dumps,
        "image_urls": config.allow_image_urls,
    }


def listed(text: str) -> list[str]:
    """The values of a setting that takes several."""
    return [part for part in text.split(",") if part]
