"""``umaserve build``: the builder of libllama, under the same roof."""

from __future__ import annotations


def build(arguments: list[str]) -> int:
    """Hand everything to ``build_llama.main``."""
    import build_llama

    return build_llama.main(arguments)
