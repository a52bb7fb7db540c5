"""Pictures of every dialect as the socket's parts: their data, or why there is none."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.pictures import ADDRESS
from umaserve.gateway.daemon.refusal import wrong

MARKER = "<__media__>"  # of llama-server, for a picture in a prompt
NOT_BASE64 = "its data is not in base64"
Part = dict[str, Any]


def picture_part(kind: str, block: dict[str, Any]) -> Part:
    """Return a part of the socket for a picture as OpenAI or Anthropic write it."""
    if kind == "image" and "source" in block:  # Anthropic's
        source = block["source"]
        if not isinstance(source, dict):
            return with_data(kind, None)
        of = {"base64": "data", "url": "url"}
        return with_data(kind, source.get(of.get(str(source.get("type")), "")))
    if kind == "image" and "data" in block:  # the socket's own
        return with_data(kind, block["data"])
    url = block.get("image_url")  # the chat's is an object, that of Responses a string
    return with_data(kind, url.get("url") if isinstance(url, dict) else url)


def with_data(kind: str, given: Any) -> Part:
    """Return the part for data in base64, for a ``data:`` URL with such data, or for an address."""
    if not isinstance(given, str) or not given:
        return {"type": kind, "why": ADDRESS}
    if given[:5].lower() == "data:":
        head, comma, given = given.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            return {"type": kind, "why": NOT_BASE64}
    elif given[:8].lower().startswith(("http://", "https://")):
        return {"type": kind, "url": given}
    elif "://" in given[:16]:
        return {"type": kind, "why": ADDRESS}
    return {"type": kind, "data": given}


def prompt_parts(prompt: Any, pictures: Any) -> list[Part]:
    """Return llama-server's ``prompt_string`` in parts, with a picture for each marker.

    Raises ``Refusal`` where ``multimodal_data`` does not belong to it.
    """
    if not isinstance(prompt, str):
        raise wrong("prompt_string", "be a string where there is multimodal_data")
    if not isinstance(pictures, list) or not all(isinstance(each, str) for each in pictures):
        raise wrong("multimodal_data", "be a list of strings in base64")
    texts = prompt.split(MARKER)
    if len(texts) != len(pictures) + 1:
        raise wrong("multimodal_data", f"have an entry for each {MARKER} of the prompt: "
                    f"{len(texts) - 1}, not {len(pictures)}")  # fmt: skip
    parts = [text_part(texts[0])]
    for each, text in zip(pictures, texts[1:], strict=True):
        parts += [with_data("image", each), text_part(text)]
    return [part for part in parts if part.get("text") != ""]


def text_part(text: str) -> Part:
    """Return the part for a text, which the model reads."""
    return {"type": "text", "text": text}
