"""How libllama gets built; `build_llama` is the command over it. Nothing here runs at serving."""

from __future__ import annotations


class BuildError(Exception):
    """A build cannot go on. The message says what happened and what to do next."""
