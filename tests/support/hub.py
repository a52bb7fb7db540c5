"""A hub of models on this machine, for ``huggingface_hub``'s API, and the server of its files.

Two servers, as the real hub has them: what is kept as a large file is redirected from the first to
the second, which must not be told the token.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
TOKEN = "hf_" + "a" * 34
_PIECE = 1 << 16


@dataclass
class Repository:
    """``gated``: asks for ``TOKEN``.  ``in_git``: names of files that are no large ones.

    ``digest`` is told instead of that of a large file.
    """

    files: dict[str, bytes]
    gated: bool = False
    in_git: frozenset[str] = frozenset()
    digest: str = ""


@dataclass
class Hub:
    """What is there, how it behaves, and what it was asked.

    ``stops`` says how many bytes of each answer with a file go out, in order; then the connection
    is cut.  An answer that finds the list empty goes out whole.  ``wait`` is called instead of the
    cut, where there is one.  ``ranges``: files are sent from any byte on.  ``changed`` is what is
    sent instead of a file, ``page`` instead of what a repository has.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    stops: list[int] = field(default_factory=list)
    wait: Callable[[], None] | None = None
    ranges: bool = True
    changed: bytes | None = None
    page: bytes | None = None
    url: str = ""
    files_url: str = ""
    began_at: list[int] = field(default_factory=list)  # first byte of each answer with a file
    tokens_told: list[str] = field(default_factory=list)  # to the server of files


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def running(**settings: object) -> Iterator[Hub]:
    hub = Hub(**settings)  # type: ignore[arg-type]
    servers = [_server(hub, _Api), _server(hub, _Files)]
    hub.url = f"http://127.0.0.1:{servers[0].server_port}"
    hub.files_url = f"http://localhost:{servers[1].server_port}"
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    hub: Hub

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed in the middle are what it is for."""


def _server(hub: Hub, handler: type[BaseHTTPRequestHandler]) -> _Server:
    server = _Server(("127.0.0.1", 0), handler)
    server.hub = hub
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, data: bytes) -> None:
        """All of it, or what is behind the first byte that was asked for."""
        hub = self.server.hub
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = int(asked[1]) if asked and hub.ranges else 0
        if begin >= len(data) and begin:
            self.answer(416, Content_Range=f"bytes */{len(data)}")
            return
        hub.began_at.append(begin)
        sent = hub.changed if hub.changed is not None else data
        self.send_response(206 if asked and hub.ranges else 200)
        if asked and hub.ranges:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(sent) - begin))
        self.end_headers()
        stop = hub.stops.pop(0) if hub.stops else len(data)
        for at in range(begin, min(begin + stop, len(data)), _PIECE):
            self.wfile.write(sent[at : min(at + _PIECE, begin + stop, len(data))])
        if begin + stop < len(data):
            self.wfile.flush()
            if hub.wait is not None:
                hub.wait()
            self.close_connection = True
            self.connection.close()


class _Api(_Handler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        repository = self.server.hub.repositories.get(found[1]) if found else None
        if found is None:
            self.answer(404)
        elif repository is None:
            self.answer(401, X_Error_Code="RepoNotFound")
        elif repository.gated and not self._may_read(api is not None):
            pass
        elif api:
            body = self.server.hub.page or json.dumps(_about(api[1], repository)).encode()
            self.answer(200, body, Content_Type="application/json")
        elif file is not None:
            self._file(repository, file[1], file[3])

    def _may_read(self, is_api: bool) -> bool:
        """A gated repository shows what it has to everybody, and files to those who may."""
        told = self.headers.get("Authorization", "")
        if told and told != f"Bearer {TOKEN}":
            self.answer(401, X_Error_Message="Invalid credentials in Authorization header")
            return False
        if is_api or told:
            return True
        self.answer(401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        return False

    def _file(self, repository: Repository, name: str, path: str) -> None:
        data = repository.files.get(path)
        if data is None:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        elif path in repository.in_git:
            if self.command == "HEAD":
                self.send_response(200)
                self.send_header("ETag", f'"{git_digest(data)}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
            else:
                self.send_file(data)
        else:
            self.answer(
                302,
                Location=f"{self.server.hub.files_url}/{name}/{quote(path)}",
                X_Repo_Commit=COMMIT,
                X_Linked_ETag=f'"{sha256(data)}"',
                X_Linked_Size=str(len(data)),
            )


class _Files(_Handler):
    def do_GET(self) -> None:
        hub = self.server.hub
        if self.headers.get("Authorization"):
            hub.tokens_told.append(self.headers["Authorization"])
        owner, repository, path = unquote(urlsplit(self.path).path).strip("/").split("/", 2)
        self.send_file(hub.repositories[f"{owner}/{repository}"].files[path])


def _about(name: str, repository: Repository) -> dict[str, object]:
    siblings = []
    for path, data in sorted(repository.files.items()):
        of = {"rfilename": path, "size": len(data), "blobId": git_digest(data)}
        if path not in repository.in_git:
            told = repository.digest or sha256(data)
            of["lfs"] = {"sha256": told, "size": len(data), "pointerSize": 134}
        siblings.append(of)
    gated = "manual" if repository.gated else False
    return {
        "_id": "1", "id": name, "modelId": name, "sha": COMMIT, "private": False, "gated": gated,
        "siblings": siblings,
    }  # fmt: skip
