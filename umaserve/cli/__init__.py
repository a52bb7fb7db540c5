"""The commands.  Each is a module that is imported when it is the one that runs.

Client commands (generate, chat, metrics, ...) reach the socket without numpy, trio, numba or the
configuration table.  So they start in a blink.  Only ``serve`` pulls the daemon in.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# command: (module, function, what it does)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("serve", "serve", "run the daemon (the default; also `umaserve MODEL.gguf`)"),
    "generate": ("generate", "generate", "one prompt, one answer (also `uma-cli`)"),
    "chat": ("chat.command", "chat", "an interactive conversation"),
    "top": ("top", "top", "the live dashboard of a running daemon"),
    "bench": ("bench", "bench", "measure interactive work alone, then beside long jobs"),
    "connect": ("connect.command", "connect", "set an editor or agent up for this daemon"),
    "gateway": ("gateway", "gateway", "speak HTTP in front of a running daemon"),
    "run": ("run", "run", "serve a model if no daemon runs, then chat with it"),
    "ps": ("loaded", "ps", "the models that are loaded: state, memory, users"),
    "stop": ("loaded", "stop", "end the daemon after its running requests"),
    "models": ("models.command", "models", "the models that this machine has; which one to serve"),
    "list": ("models.command", "models", "the same as `models`"),
    "pull": ("models.pull", "pull", "fetch a model: hf:OWNER/REPO[:QUANT]"),
    "metrics": ("admin", "metrics", "print a running daemon's metrics"),
    "cache": (
        "cache", "cache", "what the prefix cache holds, and why the last prompts missed it",
    ),
    "load": ("admin", "load", "serve another model, without a restart"),
    "unload": ("admin", "unload", "free the model's memory; the daemon stays"),
    "priority": ("admin", "priority", "move a running request to another lane"),
    "doctor": (
        "doctor.command", "doctor", "check this machine, and say how to get what is missing",
    ),
    "router": (
        "router.command", "router", "write a load balancer's configuration for several daemons",
    ),
    "service": (
        "service.command", "service", "start the daemon at login: install, uninstall, status, logs",
    ),
    "build": ("build", "build", "build libllama for this machine"),
}  # fmt: skip


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {text}" for name, (_, _, text) in COMMANDS.items())
    return (
        "usage: umaserve [COMMAND] [OPTIONS]\n\n"
        "One daemon that shares one loaded language model with many local applications.\n\n"
        f"commands:\n{rows}\n\n"
        "`umaserve COMMAND --help` explains a command; without a command, `serve` runs\n"
        "and takes its options. --version prints the version.\n\n"
        "A first try: `umaserve` here, then in a second terminal\n"
        '  uma-cli -p "def fibonacci(n):"'
    )


# of GGUF, and of files that are often taken for models; the daemon says what is wrong with these
_MODELS = (".gguf", ".safetensors", ".bin", ".pt", ".pth")


def is_model(word: str) -> bool:
    """Whether somebody names a model's file without a flag."""
    return word.lower().endswith(_MODELS) and not word.startswith("-")


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments and arguments[0] in ("-V", "--version"):
        from umaserve import __version__

        print(f"umaserve {__version__}")
        return 0
    name = "serve"
    if arguments and not arguments[0].startswith("-") and not is_model(arguments[0]):
        name, arguments = arguments[0], arguments[1:]
    if name not in COMMANDS:
        from umaserve.cli.parts.common import in_a_line, say
        from umaserve.cli.parts.foreign import hint

        say(in_a_line(f"umaserve has no `{name}`; {hint(name, list(COMMANDS))}"))
        return 2
    module, function, _ = COMMANDS[name]
    return getattr(import_module(f"umaserve.cli.{module}"), function)(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.  ``arguments`` defaults to ``sys.argv[1:]``."""
    from umaserve.cli.parts.common import guarded

    return guarded(_dispatch, list(sys.argv[1:] if arguments is None else arguments))


def generate_main(arguments: Sequence[str] | None = None) -> int:
    """``uma-cli``: ``umaserve generate`` under a name of its own."""
    from umaserve.cli.generate import generate
    from umaserve.cli.parts.common import guarded

    given = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda words: generate(words, "uma-cli"), given)
