"""Models from a hub, into the cache that ``huggingface_hub`` and llama.cpp share.

``huggingface_hub`` knows the hub: its API, tokens, redirects, and the layout of its cache.  Since
its version 1 it throws away what an interrupted download had, and believes what came.  So the bytes
are fetched here.  A file grows as ``blobs/DIGEST.incomplete``, and a later pull goes on behind its
end.  It becomes a blob once its digest is right; the package then finds the blob, and links it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from umaserve.models.finding.reference import HubReference
from umaserve.models.finding.repository import choose, models_among, parts_of, short_name
from umaserve.models.gguf.reader import TAKES_GGUF

from .problems import PullError, told_plainly

BRANCH = "main"
TRIES = 5  # in a row that brought nothing
_HASHED_BYTES = 1 << 20
_DIGEST = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")  # it becomes a file's name


@dataclass(frozen=True)
class HubFile:
    """``digest``: sha256, or git's sha1 of a file that is kept in git itself."""

    name: str
    bytes: int
    digest: str


@dataclass(frozen=True)
class Plan:
    """The files of one model at one commit, the first of a split model first."""

    repository: str
    commit: str
    files: tuple[HubFile, ...]


# a file, "fetching" or "checking", and how many of its bytes are done
Progress = Callable[[HubFile, str, int], None]


def plan(reference: HubReference) -> Plan:
    """Asks the hub which files the reference means.  Raises ``PullError``."""
    from huggingface_hub import HfApi

    with told_plainly(reference.repository):
        about = HfApi().model_info(reference.repository, files_metadata=True)
    files: dict[str, HubFile] = {}
    for sibling in about.siblings or ():
        digest = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id or ""
        files[sibling.rfilename] = HubFile(sibling.rfilename, sibling.size or 0, digest)
    first = choose(files, reference.wanted)
    if first is None:
        raise PullError(_nothing(reference, files))
    names = parts_of(first)
    absent = [name for name in names if name not in files]
    if absent:
        raise PullError(f"{reference.repository} lacks {absent[0]}, a part of {first}")
    if about.sha is None or not all(_DIGEST.fullmatch(files[name].digest) for name in names):
        raise PullError(f"the hub does not say what {first} holds; try again later")
    return Plan(reference.repository, about.sha, tuple(files[name] for name in names))


def _nothing(reference: HubReference, files: dict[str, HubFile]) -> str:
    there = [short_name(files, path) for path in models_among(files)]
    if not there:
        is_other = any(name.endswith(".safetensors") for name in files)
        what = ": it is a Hugging Face checkpoint (safetensors)" if is_other else ""
        return f"{reference.repository} has no GGUF file{what}; {TAKES_GGUF}"
    return f"{reference.repository} has no {reference.wanted}; it has {', '.join(there)}"


def fetch(wanted: Plan, told: Progress) -> str:
    """Fetches what is not there yet; returns the path of the first file.

    Raises ``PullError``.  What came before an error or an interrupt stays, for the next time.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # there is one already
    blobs = _blobs(wanted)
    with told_plainly(wanted.repository):
        blobs.mkdir(parents=True, exist_ok=True)
        _require_space(blobs, wanted)
        for file in wanted.files:
            _blob(blobs, wanted, file, told)
        paths = [
            hf_hub_download(wanted.repository, file.name, revision=BRANCH) for file in wanted.files
        ]
    return paths[0]


def is_here(wanted: Plan) -> bool:
    """Whether nothing has to be fetched."""
    return all(_is_whole(_blobs(wanted), file) for file in wanted.files)


def _blobs(wanted: Plan) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=wanted.repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / folder / "blobs"


def to_come(wanted: Plan) -> tuple[int, Path, int]:
    """Bytes that a fetch would bring, the folder that they go to, and the bytes free there."""
    blobs = _blobs(wanted)
    there = next(folder for folder in (blobs, *blobs.parents) if folder.is_dir())
    return _missing(blobs, wanted), blobs.parents[1], shutil.disk_usage(there).free


def _missing(blobs: Path, wanted: Plan) -> int:
    return sum(
        file.bytes - max(_size(_partial(blobs, file)), _size(blobs / file.digest))
        for file in wanted.files
        if not _is_whole(blobs, file)
    )


def _require_space(blobs: Path, wanted: Plan) -> None:
    missing, free = _missing(blobs, wanted), shutil.disk_usage(blobs).free
    if missing > free:
        raise PullError(
            f"{missing / 1e9:.1f} GB are to come and {blobs} has room for {free / 1e9:.1f} GB; "
            "make room, or set HF_HOME to a folder on another disk"
        )


def _blob(blobs: Path, wanted: Plan, file: HubFile, told: Progress) -> None:
    """Makes the blob of one file, unless it is there."""
    blob, partial = blobs / file.digest, _partial(blobs, file)
    if _is_whole(blobs, file):
        return
    if not partial.exists() and blob.exists():  # it was cut later: a full disk, a broken copy
        os.replace(blob, partial)
    with _locked(partial) as grown:
        if _is_whole(blobs, file):  # somebody else was quicker
            partial.unlink(missing_ok=True)
            return
        _grow(grown, wanted, file, told)
        if _digest(grown, file, told) != file.digest:
            partial.unlink()
            raise PullError(
                f"{file.name} came with other bytes than the hub describes, and was thrown away; "
                "pull it again"
            )
        os.fsync(grown.fileno())
        os.replace(partial, blob)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file, to be read and written by this process alone."""
    # in a cache that several users share, somebody may have put a link there
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o644), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullError("another pull fetches the same file; wait for it") from None
        try:
            yield file
        finally:
            if not file.seek(0, os.SEEK_END):  # nothing came
                path.unlink(missing_ok=True)


def _grow(file: BinaryIO, wanted: Plan, of: HubFile, told: Progress) -> None:
    """Adds what is missing, over as many connections as that takes."""
    import httpx2

    have, tries = file.seek(0, os.SEEK_END), 0
    if have > of.bytes:
        have = file.truncate(file.seek(0))
    told(of, "fetching", have)
    while have < of.bytes:
        before, failure = have, None
        try:
            have = _add(file, wanted, of, lambda done: told(of, "fetching", done))
        except httpx2.TransportError as error:
            have, failure = file.seek(0, os.SEEK_END), error
        tries = 0 if have > before else tries + 1
        if tries >= TRIES:
            raise failure or PullError(
                f"{of.name} ends before its end, each time; does a proxy stand between?"
            )
        time.sleep(min(tries, 4))
    if have > of.bytes:
        raise PullError(f"{of.name} is longer than the hub says; pull it again")


def _add(file: BinaryIO, wanted: Plan, of: HubFile, told: Callable[[int], None]) -> int:
    """Asks once for what is behind the end of ``file``, and writes what comes; its new size."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

    have = file.seek(0, os.SEEK_END)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={have}-"}
    url = hf_hub_url(wanted.repository, of.name, revision=wanted.commit)
    # an error once bytes have come is for `_grow`, which knows how many
    with http_stream_backoff("GET", url, headers=headers, retry_on_exceptions=()) as response:
        hf_raise_for_status(response)
        if response.status_code != 206:  # all of it from its beginning
            have = file.truncate(file.seek(0))
        for piece in response.iter_bytes():
            file.write(piece)
            have += len(piece)
            told(have)
    return have


def _digest(file: BinaryIO, of: HubFile, told: Progress) -> str:
    if len(of.digest) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % of.bytes, usedforsecurity=False)
    file.seek(0)
    done = 0
    while piece := file.read(_HASHED_BYTES):
        digest.update(piece)
        done += len(piece)
        told(of, "checking", done)
    return digest.hexdigest()


def _partial(blobs: Path, file: HubFile) -> Path:
    return blobs / f"{file.digest}.incomplete"


def _is_whole(blobs: Path, file: HubFile) -> bool:
    return _size(blobs / file.digest) == file.bytes and (blobs / file.digest).exists()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
