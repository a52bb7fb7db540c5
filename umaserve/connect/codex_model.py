"""The model's entry in Codex's catalogue, without which Codex guesses what the model can do."""

from __future__ import annotations

from typing import Any

from umaserve.connect.apps import MODEL, NAME, Target

OUTPUT_BYTES = 10_000  # of a command, as for models that Codex does not know
INSTRUCTIONS = """\
You are a coding agent. You work in the user's terminal, on the files of the current folder, by
calling tools.

- Look before you change: read the files that matter, and search with `rg` where it is there.
- Do what was asked, completely, and nothing else. Mend causes, and keep the style of the code.
- Work in small steps. Run the tests or the program after a change, and read what they print.
- Files named AGENTS.md hold instructions for the folder that they lie in. Follow them.
- Never throw away changes that are not yours. Destroy no data unless the user asks for it.
- Go on until the task is done. Ask only where a choice is the user's.

At the end say in a few lines what you did, what you found, and what is left. Name files with
their paths.
"""


def codex_model(target: Target) -> dict[str, Any]:
    """The entry, with all fields that versions of Codex have asked for."""
    return {
        "slug": MODEL,
        "display_name": NAME,
        "description": "The loaded model",
        "supported_reasoning_levels": [],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "upgrade": None,
        "base_instructions": INSTRUCTIONS,
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "truncation_policy": {"mode": "bytes", "limit": OUTPUT_BYTES},
        "supports_parallel_tool_calls": True,
        "context_window": target.context,
        "experimental_supported_tools": [],
        "input_modalities": ["text", *(["image"] if target.images else [])],
    }
