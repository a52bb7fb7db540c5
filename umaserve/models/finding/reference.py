"""References that ``--model`` takes: a path, or the name of a model that another tool keeps.

``demo`` is the bundled model.  The short names of ``models.suggested`` stand for their references.
``hf:OWNER/REPO[:QUANT or FILE]`` is a file of a hub that was fetched before, ``ollama:NAME`` a
model of Ollama.  Any other text is a path, or a name that ``umaserve models`` shows.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import NamedTuple

from umaserve.models.gguf.reader import TAKES_GGUF
from umaserve.models.suggested import SUGGESTED, short_name_of, suggested
from umaserve.texts import path_of

from . import hugging_face, llama_cpp, ollama
from .places import Places, find_all
from .repository import choose

DEMO = "demo"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_SCHEMES = (hugging_face.SCHEME, "ollama:", "lmstudio:", "llama.cpp:")
FORM = "hf:OWNER/REPO, with :QUANT or :FILE.gguf behind it for one of several models"


class BadReference(ValueError):
    """A reference that can mean nothing; the message says how to write it."""


class NotHere(LookupError):
    """Nothing on this machine has that name; the message says what to do.

    ``fetch`` is what ``umaserve pull`` takes, empty where nothing can be fetched.
    """

    def __init__(self, message: str, fetch: str = "") -> None:
        super().__init__(message)
        self.fetch = fetch


class HubReference(NamedTuple):
    """``wanted``: a quantisation, a file, or empty."""

    repository: str
    wanted: str

    def __str__(self) -> str:
        return hugging_face.SCHEME + self.repository + (f":{self.wanted}" if self.wanted else "")


def hub_reference(text: str) -> HubReference:
    """The parts of ``hf:OWNER/REPO[:QUANT or FILE]``, or of what a short name stands for.

    Raises ``BadReference``.
    """
    named = suggested(text)
    text = named.reference if named else text
    bare = re.sub(r"^(https?://)?(huggingface\.co|hf\.co)/", "", text)
    repository, _, wanted = bare.removeprefix(hugging_face.SCHEME).partition(":")
    good = _REPOSITORY.fullmatch(repository) and ".." not in wanted.split("/")
    if good and text.startswith(hugging_face.SCHEME):
        return HubReference(repository, wanted)
    near = difflib.get_close_matches(text.lower(), [each.name for each in SUGGESTED], n=1)
    meant = HubReference(repository, wanted) if good else next(iter(near), "")
    hint = f"; did you mean {meant}?" if meant else ""
    raise BadReference(f"{text!r} names no repository of a hub: write {FORM}{hint}")


def lasting(text: str, path: str) -> str:
    """Return a reference that leads to ``path`` in a form that is valid in any folder."""
    named = suggested(text)
    if named and path != text:  # not a file of that name
        return named.reference
    return text if text == DEMO or text.startswith(_SCHEMES) else os.path.abspath(path)


def locate(text: str, where: Places) -> str:
    """The path of the model that ``text`` means; empty for the bundled one.

    Raises ``NotHere`` or ``BadReference``.  A path that leads nowhere is no error here: it comes
    back as it is, so that whoever opens it says what is wrong.
    """
    if text == DEMO:
        return ""
    if text.startswith(hugging_face.SCHEME):
        return _of_hub(hub_reference(text), where)
    if not text.startswith(_SCHEMES) and os.path.exists(path_of(os.path.expanduser(text))):
        return text
    wanted = ollama.full_name(text) if text.startswith(ollama.SCHEME) else text
    everything = find_all(where)
    for found in everything:
        if wanted in (found.name, *found.also):
            if found.problem:
                raise NotHere(f"{found.name} cannot be served: {found.problem}")
            return found.path
    if not text.startswith(_SCHEMES) and (os.sep in text or text.lower().endswith(".gguf")):
        return text
    if suggested(text):
        return _of_hub(hub_reference(text), where)
    names = [found.name for found in everything] + [each.name for each in SUGGESTED]
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "`umaserve models` lists what is there"
    raise NotHere(f"no model here is called {text}; {hint}")


def _of_hub(reference: HubReference, where: Places) -> str:
    for cache in where.hubs:
        files = hugging_face.files_of(cache, reference.repository)
        # a link whose blob has gone is as good as no file
        there = {name: path for name, path in files.items() if os.path.exists(path)}
        chosen = choose(there, reference.wanted)
        if chosen is not None:
            return there[chosen]
    prefix = f"{hugging_face.SCHEME}{reference.repository}:"
    for found in (found for folder in where.llama_cpp for found in llama_cpp.find(folder)):
        if found.name.startswith(prefix):
            tag = found.name[len(prefix) :]
            if reference.wanted.lower() in ("", tag.lower()):
                return found.path
    if any(hugging_face.has_checkpoint(cache, reference.repository) for cache in where.hubs):
        raise NotHere(
            f"{reference.repository} is here as a Hugging Face checkpoint (safetensors) and not "
            f"as GGUF; {TAKES_GGUF}"
        )
    name = short_name_of(str(reference))
    raise NotHere(f"{name} is not on this machine; fetch it with: umaserve pull {name}", name)
