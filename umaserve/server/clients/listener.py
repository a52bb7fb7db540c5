"""The daemon's Unix socket: one owner at a time, nothing stale in the way, nothing left behind.

Two daemons that start at once are kept apart by a lock on ``SOCKET.lock``.  The kernel drops that
lock with the process that held it, so a file left by a kill stands in nobody's way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import trio

from umaserve.config import SOCKET_PATH_BYTES
from umaserve.server.engines.slow_files import ask_file
from umaserve.system.peer import Peer, is_own, peer_of, user_name

BACKLOG = 512
EVERY_S = 4.0  # between two looks at the socket's file
AGAIN_S = 3.0  # where it cannot be bound now


class SocketError(Exception):
    """The socket cannot be had; the message says why and what to do."""


class ClaimedSocket:
    """The listening socket and the lock that goes with it; a context manager that removes both."""

    def __init__(
        self, path: str, option: str = "--socket", handed: socket.socket | None = None
    ) -> None:
        """Raises ``SocketError``: a live owner, a path that is no socket, too long or not writable.

        The socket has mode 0600 from its first moment.  ``option`` is what sets the path, for
        messages.  ``handed`` is a socket that listens there already.  Whoever made it removes its
        file.
        """
        self._option = option
        self.path = os.path.abspath(os.path.expanduser(path))
        self._lock_path = self.path + ".lock"
        size = len(os.fsencode(self.path))
        if size >= SOCKET_PATH_BYTES:
            raise SocketError(
                f"the socket path {self.path} is {size} bytes long; this system allows "
                f"{SOCKET_PATH_BYTES - 1}. Choose a shorter one with {option}"
            )
        parent = Path(self.path).parent
        if not parent.is_dir():
            raise SocketError(f"the socket's directory {parent} does not exist; create it")
        self._lock_fd = self._lock()
        try:
            if handed is None:
                self._clear_the_way()
                self.socket = self._bind()
            else:
                self.socket = self._take_over(handed)
        except BaseException:
            self._unlock()
            raise

    def _lock(self) -> int:
        while True:
            fd = self._open_lock()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(fd, 32)
                os.close(fd)
                raise self._in_use(Peer(int(owner) if owner.isdigit() else 0)) from None
            with contextlib.suppress(FileNotFoundError):
                # the last owner may have removed the file between our open and our lock
                if os.path.samestat(os.fstat(fd), os.stat(self._lock_path)):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, str(os.getpid()).encode(), 0)
                    return fd
            os.close(fd)

    def _open_lock(self) -> int:
        """The lock's file.  In ``/tmp`` anybody may have put it there."""
        # O_NONBLOCK: a named pipe in its place must not make us wait
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            fd = os.open(self._lock_path, flags, 0o600)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._check_lock(os.lstat(self._lock_path))
            raise self._unusable(self._lock_path, error) from None
        try:
            self._check_lock(os.fstat(fd))
        except SocketError:
            os.close(fd)
            raise
        return fd

    def _check_lock(self, found: os.stat_result) -> None:
        if not is_own(found.st_uid):
            # whatever he wrote there, and whether he holds it, says nothing
            why = f"belongs to {user_name(found.st_uid)}, who is not this user"
        elif not stat.S_ISREG(found.st_mode):
            why = "is not a regular file"
        elif found.st_nlink > 1:
            why = "is a file that has another name too"  # it would be emptied
        else:
            return
        raise self._in_the_way(self._lock_path, why)

    def _clear_the_way(self) -> None:
        try:
            mode = os.lstat(self.path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise SocketError(
                f"{self.path} exists and is not a socket; it is left alone. "
                f"Choose another path with {self._option}"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self.path)
            except ConnectionRefusedError:
                pass  # nobody listens: stale
            except (BlockingIOError, TimeoutError):
                raise self._in_use(Peer()) from None
            except OSError as error:
                raise self._unusable(self.path, error) from None
            else:
                raise self._in_use(peer_of(probe))
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(self.path, error) from None

    def _bind(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            sock.bind(self.path)
        except OSError as error:
            sock.close()
            raise self._unusable(self.path, error) from None
        finally:
            os.umask(mask)
        self._identity = os.lstat(self.path)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._is_handed = False
        return sock

    def _take_over(self, handed: socket.socket) -> socket.socket:
        self._is_handed = True
        self._identity = os.lstat(self.path)
        handed.setblocking(False)
        return handed

    def is_there(self) -> bool:
        """Whether the socket's file and its lock are still ours; may be asked in another thread."""
        return self._socket_is_there() and self._lock_is_there()

    def renew(self) -> str:
        """Take the path and its lock again, where they are not ours any more; says what was gone.

        A socket that is new is in ``socket``; the old one is the caller's to close.  Raises
        ``SocketError`` where that is impossible now.
        """
        gone = []
        if not self._lock_is_there():
            old, self._lock_fd = self._lock_fd, self._lock()
            os.close(old)
            gone.append(self._lock_path)
        if not self._socket_is_there():
            self._clear_the_way()
            self.socket = self._bind()
            gone.append(self.path)
        return " and ".join(gone)

    async def keep(self, log: Callable[..., None], serve: Callable[[socket.socket], None]) -> None:
        """Look after the socket's file until cancelled: somebody may delete or replace it.

        Open connections notice nothing of that; nobody else would come in any more.  Where the
        file is not ours, bind again and ``serve`` the new socket.  Where that is impossible it is
        said once, and tried again.
        """
        said = ""
        while True:
            await trio.sleep(AGAIN_S if said else EVERY_S)
            try:
                if await ask_file(lambda _: self.is_there(), self.path):
                    continue
                old = self.socket
                what = self.renew()
            except SocketError as error:
                if said != str(error):
                    said = str(error)
                    log("error", f"nobody can connect any more: {said}")
                continue
            except Exception as error:  # its folder does not answer, say
                log("debug", f"{self.path} cannot be looked at: {error}")
                continue
            said = ""
            log("warn", f"{what} was gone; it is there again")
            if self.socket is not old:
                serve(self.socket)
                trio.lowlevel.notify_closing(old)
                old.close()

    def _socket_is_there(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.lstat(self.path), self._identity)
        return False

    def _lock_is_there(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.stat(self._lock_path), os.fstat(self._lock_fd))
        return False

    def _in_use(self, owner: Peer) -> SocketError:
        who = f"process {owner.pid}" if owner.pid else "another process"
        if is_own(owner.uid):
            what = f"by {who}; stop that daemon, or choose another path"
        else:
            what = f"by {who} of {user_name(owner.uid)}; choose another path"
        return SocketError(f"{self.path} is in use {what} with {self._option}")

    def _in_the_way(self, path: str, why: str) -> SocketError:
        return SocketError(
            f"{path} {why}; it is left alone. Remove it, or choose another path with {self._option}"
        )

    def _unusable(self, path: str, error: OSError) -> SocketError:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "it cannot be written by this user"
            with contextlib.suppress(OSError):
                owner = os.lstat(path).st_uid
                if not is_own(owner):
                    reason = f"it belongs to {user_name(owner)}, who is not this user"
        else:
            reason = error.strerror or str(error)
        return SocketError(
            f"{path} cannot be used: {reason}. Choose another path with {self._option}"
        )

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):
                if self._lock_is_there():
                    os.unlink(self._lock_path)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def close(self) -> None:
        """Stop listening and remove the socket, if the path is still ours.

        A socket that was handed over goes on listening: the next daemon gets who comes until then.
        """
        self.socket.close()
        with contextlib.suppress(OSError):
            if not self._is_handed and self._socket_is_there():
                os.unlink(self.path)
        self._unlock()

    def __enter__(self) -> ClaimedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
