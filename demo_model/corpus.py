"""The demo model's training text, gathered from the running CPython's standard library.

What comes out: source files, small classic functions (``snippets``), the language reference as
prose, and conversations whose answers are the docstrings of public functions, classes and methods.
The same Python version with the same seed gives the same bytes.
"""

# Long: text that the model is trained on.

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import io
import pkgutil
import random
import re
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from demo_model import snippets, talk

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

# Vendored, generated or table-like text: it teaches nothing, and some has another licence.
_SKIP_DIRS = {
    "test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "encodings", "ensurepip",
    "turtledemo", "__pycache__", "tkinter", "msilib", "pydoc_data", "_distutils_hack", "distutils",
}  # fmt: skip
_SKIP_FILES = {
    "turtle.py",
    "this.py",
    "antigravity.py",
    "entities.py",
    "stringprep.py",
    "LICENSE.py",
}
# Importing these opens windows, prints, or starts a browser.
_SKIP_MODULES = {
    "antigravity", "this", "idlelib", "turtle", "turtledemo", "tkinter", "lib2to3", "msilib",
    "distutils", "ensurepip", "encodings", "test", "__main__", "pydoc_data", "builtins", "posix",
    "nturl2path",
}  # fmt: skip
# What people ask about first: more phrasings, and the winners where several share a bare name.
POPULAR = (
    "builtins", "os.path", "os", "sys", "re", "json", "math", "random", "itertools", "functools",
    "collections", "str", "list", "dict", "set", "int", "float", "tuple", "bytes", "time",
    "datetime", "pathlib", "subprocess", "shutil", "glob", "statistics", "operator", "string",
    "heapq", "bisect", "copy", "threading", "asyncio", "socket", "argparse", "logging", "csv",
    "hashlib", "base64", "struct",
    "tempfile", "urllib.parse", "textwrap", "contextlib", "inspect", "pickle", "queue",
)  # fmt: skip
_BUILTIN_TYPES = (
    str,
    list,
    dict,
    set,
    int,
    float,
    tuple,
    bytes,
    frozenset,
    complex,
    bytearray,
    object,
    type,
)

_FORMS = (
    "What does {n} do?",
    "What does {n}() do?",
    "What does the {k} {n} do?",
    "What is {n}?",
    "How do I use {n}?",
    "Explain {n}.",
    "Tell me about {n}.",
    "What is {n} for?",
    "Describe {n}.",
    "what does {n} do",
    "In Python, what does {n} do?",
    "Can you explain what {n} does?",
    "Please explain what {n} does.",
    "Explain the {k} {n}.",
    "What is the purpose of {n}?",
    "What does the {n} {k} do?",
    "What does Python's {n} do?",
    "How does {n} work?",
    "When should I use {n}?",
    "Give me the documentation of {n}.",
    "Document {n}",
    "{n}",
    "What is {n} in Python?",
    "I want to know what {n} does.",
)
_SYSTEM = (
    "You are a helpful assistant.",
    "You answer questions about Python.",
    "You are a concise assistant.",
)


_STATEMENT_FORMS = (
    "What does the {n} statement do?",
    "What is the {n} statement?",
    "Explain {n}.",
    "What does {n} do?",
    "How do I use {n}?",
    "What is {n} in Python?",
)


class Entry(NamedTuple):
    """A documented public name: dotted path, kind ("function", "class", ...), and the answer."""

    path: str
    kind: str
    answer: str
    popular: bool


def stdlib_root() -> Path:
    """The directory of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files() -> list[Path]:
    """The standard library's source files that are trained on, sorted by path."""
    root = stdlib_root()
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        skipped = parts[-1] in _SKIP_FILES or parts[-1].startswith("_sysconfigdata")
        if not skipped and not _SKIP_DIRS.intersection(parts):
            found.append(path)
    return found


def read_sources(paths: list[Path]) -> tuple[list[str], str]:
    """The text of *paths*, and one SHA-256 over their names and bytes."""
    digest = hashlib.sha256()
    texts = []
    root = stdlib_root()
    for path in paths:
        data = path.read_bytes()
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + data + b"\0")
        texts.append(data.decode("utf-8", errors="replace"))
    return texts, digest.hexdigest()


def _answer(path: str, obj: object, doc: str) -> str | None:
    """A sentence or two about *path*: its call signature, then the docstring's first paragraphs."""
    doc = inspect.cleandoc(doc)
    lines = doc.splitlines()
    name = path.rsplit(".", 1)[-1]
    signature = ""
    try:
        spelt = str(inspect.signature(obj))  # type: ignore[arg-type]
        signature = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "...", spelt)
    except (ValueError, TypeError, AttributeError):
        # C functions without a text signature often spell it in the docstring's first line.
        if lines and re.match(rf"(\w+\.)*{re.escape(name)}\(.*\)", lines[0]):
            signature = "(" + lines[0].split("(", 1)[1].split(" -> ")[0].split(" --")[0].rstrip(
                ": "
            )
    # Leading call lines are not prose: "chain(*iterables) --> chain object", "len(x) -- the size".
    while lines and re.match(rf"(\w+\.)*{re.escape(name)}\(|\w+\(.*\)\s*-+>", lines[0]):
        tail = re.split(r"\s--\s+|-->\s+(?=[A-Z])", lines.pop(0), maxsplit=1)
        if len(tail) == 2:
            lines.insert(0, tail[1])
            break
    signature = re.sub(r"^\((?:self|cls|type|\$self)(?:, /)?(?:, )?", "(", signature)
    signature = re.sub(r"^\(/, ", "(", signature)
    text = ""
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip()):
        if re.match(r"\s*(>>>|\||[-=]{3}|\.\. )", paragraph):
            break
        paragraph = " ".join(paragraph.split())
        if text and len(text) + len(paragraph) > 420:
            break
        text = f"{text} {paragraph}".strip()
        if len(text) > 260:
            break
    if len(text) > 640:
        text = text[:640].rsplit(". ", 1)[0]
    if len(text) < 12 or not text[0].isascii():
        return None
    if not text.endswith((".", "!", "?", ":", ".)", '."')):
        text += "."
    call = f"{path}{signature}" if 0 < len(signature) <= 160 else path
    return f"`{call}`: {text}"


def _modules() -> Iterator[types.ModuleType]:
    """The standard library's importable public modules."""
    names = sorted(n for n in sys.stdlib_module_names if not n.startswith("_"))
    pending = [n for n in names if n not in _SKIP_MODULES]
    for name in pending:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                module = importlib.import_module(name)
            except ImportError:  # of another platform, or built without its C library
                continue
        yield module
        for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
            if info.name.startswith("_") or info.name in {"test", "tests", "__main__"}:
                continue
            if name in {"asyncio", "ctypes", "multiprocessing"} and info.name.startswith(
                ("win", "wintypes", "popen")
            ):
                continue
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    yield importlib.import_module(f"{name}.{info.name}")
                except ImportError:
                    continue


def _members(obj: object) -> list[tuple[str, object]]:
    out = []
    for name in sorted(vars(obj)):
        if name.startswith("_"):
            continue
        raw = vars(obj)[name]
        out.append((name, raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw))
    return out


def entries() -> list[Entry]:
    """Every documented public name of the standard library, in a stable order."""
    found: dict[str, Entry] = {}

    def add(path: str, kind: str, obj: object, popular: bool) -> None:
        doc = getattr(obj, "__doc__", None)
        if path in found or not isinstance(doc, str) or not doc.strip():
            return
        answer = _answer(path, obj, doc)
        if answer is not None:
            found[path] = Entry(path, kind, answer, popular)

    def add_class(path: str, cls: type, popular: bool) -> None:
        add(path, "class", cls, popular)
        for name, member in _members(cls):
            if callable(member) or isinstance(member, property):
                kind = "property" if isinstance(member, property) else "method"
                add(f"{path}.{name}", kind, member, popular)

    import builtins
    import os.path

    for name, obj in _members(builtins):
        if isinstance(obj, type):
            if obj in _BUILTIN_TYPES:
                add_class(name, obj, True)
            else:
                add(name, "exception" if issubclass(obj, BaseException) else "class", obj, True)
        elif callable(obj):
            add(name, "function", obj, True)
    mods = [("os.path", os.path)] + [(m.__name__, m) for m in _modules()]
    for mod_name, module in mods:
        popular = mod_name in POPULAR
        add(mod_name, "module", module, popular)
        listed = getattr(module, "__all__", None)
        for name, obj in _members(module):
            if isinstance(obj, types.ModuleType) or not callable(obj):
                continue
            home = getattr(obj, "__module__", None) or mod_name
            # Names that only pass through (``from x import y``) belong to their own module.
            if listed is not None:
                if name not in listed:
                    continue
            elif home != mod_name and home.lstrip("_") != mod_name:
                continue
            if isinstance(obj, type):
                add_class(f"{mod_name}.{name}", obj, popular)
            else:
                add(f"{mod_name}.{name}", "function", obj, popular)
    return list(found.values())


def _bare_names(all_entries: list[Entry]) -> dict[str, Entry]:
    """The last component of a path, where it means one thing or a popular module settles it."""
    rank = {name: i for i, name in enumerate(POPULAR)}
    best: dict[str, tuple[int, Entry]] = {}
    count: dict[str, int] = {}
    for entry in all_entries:
        owner, _, name = entry.path.rpartition(".")
        if not owner:
            continue
        count[name] = count.get(name, 0) + 1
        order = rank.get(owner, len(rank) + (entry.kind == "method"))
        if name not in best or order < best[name][0]:
            best[name] = (order, entry)
    top = {entry.path for entry in all_entries if "." not in entry.path}
    return {
        name: entry
        for name, (order, entry) in best.items()
        if name not in top and (count[name] == 1 or order < len(rank))
    }


def _casual(question: str, rng: random.Random) -> str:
    """*question* as people also type it: no capital, no full stop, a courtesy before or after."""
    if rng.random() < 0.3 and " " in question and question.split(" ", 1)[0].isalpha():
        question = question[0].lower() + question[1:]
    draw = rng.random()
    if draw < 0.25:
        question = question.rstrip("?.")
    elif draw < 0.30:
        question = "Please tell me: " + question
    elif draw < 0.34:
        question += " Thanks!"
    return question


def question_pairs(rng: random.Random) -> tuple[list[tuple[str, str]], int]:
    """(question, answer) pairs, and the number of documented names they come from."""
    all_entries = entries()
    pairs: list[tuple[str, str]] = []

    def ask(name: str, entry: Entry, count: int) -> None:
        # The plainest phrasing is always there; the others are drawn.
        pairs.append((_FORMS[0].format(n=name), entry.answer))
        for form in rng.sample(_FORMS, count - 1):
            shown = f"`{name}`" if rng.random() < 0.1 else name
            pairs.append((_casual(form.format(n=shown, k=entry.kind), rng), entry.answer))

    for entry in all_entries:
        ask(entry.path, entry, 20 if entry.popular else 5)
    for name, entry in sorted(_bare_names(all_entries).items()):
        ask(name, entry, 12 if entry.popular else 3)
    for topic, text in sorted(topics().items()):
        first = text.split("\n\n")[1]
        if f'"{topic}" statement' in text.split("\n", 1)[0] and len(first) < 500:
            answer = " ".join(first.split())
            for form in _STATEMENT_FORMS:
                pairs.extend((_casual(form.format(n=topic), rng), answer) for _ in range(8))
    for _ in range(12):
        pairs.extend((_casual(q, rng), a) for q, a in snippets.questions(rng))
    for task, answer in talk.HOW_TO:
        for form in talk.HOW_TO_FORMS:
            pairs.extend((_casual(form.format(t=task), rng), answer) for _ in range(8))
    for prompts, answer in talk.SMALL_TALK:
        pairs.extend((_casual(prompt, rng), answer) for prompt in prompts for _ in range(60))
    return pairs, len(all_entries)


def topics() -> dict[str, str]:
    """The chapters of the language reference that travel with ``pydoc``, by name."""
    from pydoc_data.topics import topics as found

    return found


def prose() -> list[str]:
    """The language reference as running text: whole chapters, and paragraphs on one line each."""
    out = []
    for _, text in sorted(topics().items()):
        out.append(text)
        plain = [
            " ".join(p.split())
            for p in re.split(r"\n\s*\n", text)
            if not p.startswith("   ") and "::=" not in p and "****" not in p and "====" not in p
        ]
        out.append("\n\n".join(plain))
        out.extend(p for p in plain if len(p) > 200)
    return out


def conversations(rng: random.Random) -> tuple[list[str], int]:
    """Chat transcripts in the template's own form, and the number of documented names in them.

    Each ends with its last turn's end: the training stream puts the end of text after it.
    """
    pairs, names = question_pairs(rng)
    rng.shuffle(pairs)
    texts = []
    at = 0
    while at < len(pairs):
        turns = rng.choice((1, 1, 1, 2, 4))
        text = ""
        if rng.random() < 0.15:
            text += f"{TURN_START}system\n{rng.choice(_SYSTEM)}{TURN_END}\n"
        for question, answer in pairs[at : at + turns]:
            text += f"{TURN_START}user\n{question}{TURN_END}\n"
            text += f"{TURN_START}assistant\n{answer}{TURN_END}\n"
        texts.append(text)
        at += turns
    return texts, names
