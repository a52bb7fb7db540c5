"""Names of commands in other tools, for people who type them here."""

from __future__ import annotations

# of Ollama, LM Studio, llama.cpp, vLLM and service managers
COMMANDS = {
    "ls": "umaserve list", "status": "umaserve ps", "info": "umaserve ps",
    "show": "umaserve models", "inspect": "umaserve models", "search": "umaserve pull",
    "get": "umaserve pull", "download": "umaserve pull", "fetch": "umaserve pull",
    "install": "umaserve pull` or `umaserve service install",
    "start": "umaserve", "server": "umaserve serve", "daemon": "umaserve serve",
    "up": "umaserve", "down": "umaserve stop", "kill": "umaserve stop", "quit": "umaserve stop",
    "shutdown": "umaserve stop", "restart": "umaserve stop` and then `umaserve",
    "log": "umaserve service logs", "logs": "umaserve service logs",
    "ask": "umaserve generate", "prompt": "umaserve generate", "complete": "umaserve generate",
    "completion": "umaserve generate", "cli": "umaserve generate",
    "dashboard": "umaserve top", "monitor": "umaserve top", "stats": "umaserve metrics",
    "config": "umaserve serve --print-config", "settings": "umaserve serve --print-config",
    "launch": "umaserve connect", "setup": "umaserve connect", "version": "umaserve --version",
    "benchmark": "umaserve bench",
}  # fmt: skip
# of what is not done here
REASONS = {
    **dict.fromkeys(
        ("rm", "remove", "delete", "cp", "copy"),
        "a model is a file of yours, and `umaserve models --json` says where it lies",
    ),
    **dict.fromkeys(
        ("create", "push", "quantize", "convert", "import"),
        "it takes GGUF files as they are: `umaserve pull`, or --model FILE",
    ),
}


def hint(word: str, known: list[str]) -> str:
    """Return what to type instead of a command that does not exist."""
    if word in REASONS:
        return REASONS[word]
    if word in COMMANDS:
        return f"did you mean `{COMMANDS[word]}`?"
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1)
    if near:
        return f"did you mean `umaserve {near[0]}`?"
    # it looks like a model's name: ``qwen3-4b``, ``llama3:8b``, ``hf:OWNER/REPO``
    if any(letter.isdigit() or letter in ":/" for letter in word):
        return f"did you mean `umaserve run {word}`?"
    return "see `umaserve --help`"
