"""Pictures of every dialect as the socket's parts: their data, or why there is none."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.link import IMAGES
from umaserve.gateway.daemon.refusal import Refusal, wrong
from umaserve.picture_size import Size, size_of_base64
from umaserve.protocol.history import PICTURE

ADDRESS = "addresses are not fetched; send its data"
MARKER = "<__media__>"  # of llama-server, for a picture in a prompt
IN_PROMPT = "pictures are read in conversations alone"
NOT_BASE64 = "its data is not in base64"
Part = dict[str, Any]


def picture_part(kind: str, block: dict[str, Any]) -> Part:
    """Return a part of the socket for a picture as OpenAI or Anthropic write it."""
    if kind == "image" and "source" in block:  # Anthropic's
        source = block["source"]
        is_data = isinstance(source, dict) and source.get("type") == "base64"
        return with_data(kind, source.get("data") if is_data else None)
    if kind == "image" and "data" in block:  # the socket's own
        return with_data(kind, block["data"])
    url = block.get("image_url")  # the chat's is an object, that of Responses a string
    return with_data(kind, url.get("url") if isinstance(url, dict) else url)


def with_data(kind: str, given: Any) -> Part:
    """Return the part for data in base64, or for a ``data:`` URL with such data."""
    if not isinstance(given, str) or not given:
        return {"type": kind, "why": ADDRESS}
    if given[:5].lower() == "data:":
        head, comma, given = given.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            return {"type": kind, "why": NOT_BASE64}
    elif "://" in given[:16]:
        return {"type": kind, "why": ADDRESS}
    return {"type": kind, "data": given}


def without_pictures(prompt: Any, pictures: Any) -> Any:
    """Return llama-server's ``prompt_string`` with sentences in place of its markers.

    Raises ``Refusal`` where ``multimodal_data`` does not belong to it.
    """
    if not pictures or not isinstance(prompt, str):
        return prompt
    if not isinstance(pictures, list) or not all(isinstance(each, str) for each in pictures):
        raise wrong("multimodal_data", "be a list of strings in base64")
    if prompt.count(MARKER) != len(pictures):
        raise wrong("multimodal_data", f"have an entry for each {MARKER} of the prompt")
    for each in pictures:
        prompt = prompt.replace(MARKER, in_words(each), 1)
    return prompt


def in_words(data: Any) -> str:
    """The sentence for a picture, in base64, of a prompt.  Raises ``Refusal``."""
    if IMAGES.get() == "refuse":
        raise Refusal(400, "text_only", f"a picture: {IN_PROMPT}")
    size: Size | None = size_of_base64(data) if isinstance(data, str) else None
    return PICTURE.format(f"{size} " if size else "", IN_PROMPT)
