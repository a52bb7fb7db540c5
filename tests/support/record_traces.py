"""What real programs ask for: `python -m tests.support.record_traces [NAME…]` writes it down.

Each program runs as its test in tests/clients does, before a real front and gateway, with no key
and a model that says what a script has.  So order, pauses and prompts are the program's own, and
the answers are the script's.  Tokens are counted with Qwen2's vocabulary.  The files are
tests/policy/traces/recorded/*.json (`tests.support.traces`), without a word of any text.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import client_programs as c
from tests.support import npm_desk
from tests.support.agent_script import ASIDE
from tests.support.docs_runner import ROOT
from tests.support.patches.noted_requests import note_requests
from tests.support.traces import RECORDED
from umaserve import llama

TICK_MS = 50.0  # of a byte: what is asked for while an answer comes is seen to be
FILE, PAGE = "FOLDER/colour.txt", "FOLDER/page.md"
OLD, NEW = "red-4711", "green"
COMMITTED = "feat: paint the door blue"
WORD = " queue\n"
SMALL = ("model_context_window = 65536", "model_context_window = 16384")

Calls = list[tuple[str, dict[str, Any]]]


def _edit(**names: str) -> dict[str, str]:
    return {**names, "old_string": OLD, "new_string": NEW}


def _shell(command: str) -> tuple[str, dict[str, str]]:
    return "exec_command", {"cmd": command}


def _agent(program: str, calls: Calls, instead: tuple[str, str] = ("", "")) -> Callable[..., None]:
    """Reads two files, one of them long, and edits the short one."""

    def run(path: Path) -> None:
        settings = {"patch": note_requests, "api_key_file": ""}
        with npm_desk.desk(path, calls, **settings) as place:
            shutil.copy(ROOT / "docs/SCHEDULER.md", place.folder / "page.md")
            done = place.agent(program, instead)
            assert done.returncode == 0, done.stderr + done.stdout
            assert place.file.read_text() == npm_desk.AFTER

    return run


def _aider(path: Path) -> None:
    edits = f"I paint it.\n\n{c.NOTE}\n```\n{c.AFTER}```\n"
    with _scripted(path) as model:
        model.says(
            [
                ("one-line Git commit messages", COMMITTED),
                (c.BEFORE.strip(), edits),
                (c.TASK, f"Please add {c.NOTE} to the chat."),
            ]
        )
        programs = c.Programs("aider", path)
        (path / c.NOTE).write_text(c.BEFORE)
        programs.shell(
            "git init -q; git config user.name a; git config user.email a@localhost;"
            f"git add {c.NOTE}; git commit -qm first"
        )
        programs.shell(
            f"{c.setups('Aider', model.url)[0].strip()} --yes-always --edit-format whole --stream"
            f" --no-pretty --analytics-disable --no-check-update --message {shlex.quote(c.TASK)}"
        )
        assert (path / c.NOTE).read_text() == c.AFTER


def _langchain(path: Path) -> None:
    with _scripted(path) as model:
        model.says(c.editing())
        (path / c.NOTE).write_text(c.BEFORE)
        (given,) = c.setups("LangChain", model.url)
        words = ("langchain_agent.py", "whole", c.TASK, c.WROTE)
        c.Programs("libraries", path).program(*words, given=given)
        assert (path / c.NOTE).read_text() == c.AFTER


def _lm_eval(path: Path) -> None:
    """Twelve documents, four at once."""
    text = (ROOT / "docs/PROTOCOL.md").read_text("utf-8")
    docs = [{"text": text[1600 * i : 1600 * (i + 1)]} for i in range(12)]
    task = (
        "task: pages\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: pages.jsonl\n"
        "test_split: test\noutput_type: generate_until\n"
        'doc_to_text: "{{text}}\\nIn a word:"\ndoc_to_target: "queue"\n'
        'generation_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 16\n'
        "metric_list:\n  - metric: exact_match\n"
    )
    with _scripted(path) as model:
        model.says([("In a word:", WORD)])
        (path / "pages.yaml").write_text(task)
        (path / "pages.jsonl").write_text("".join(json.dumps(each) + "\n" for each in docs))
        key, command, _ = c.setups("lm-eval", model.url)
        command = command.strip().replace("/completions", "/completions,num_concurrent=4")
        c.Programs("lm-eval", path).shell(
            f"{key}{command.replace('YOUR_TASK', 'pages')} --include_path .",
            HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
        )  # fmt: skip


@contextmanager
def _scripted(path: Path) -> Iterator[c.Scripted]:
    """A model whose requests are noted."""
    folder = path / "daemon"
    folder.mkdir()
    model = c.Scripted(folder, TICK_MS, patch=note_requests, api_key_file="")
    with model.daemon:
        yield model


LOOK = {"description": "look", "prompt": "Look around.", "subagent_type": "Explore"}
PROGRAMS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "claude_code": (
        "Claude Code reads two files, has another agent look around, and edits one.",
        _agent("Claude Code", [
            ("Read", {"file_path": FILE}), ("Read", {"file_path": PAGE}), ("Agent", LOOK),
            ("Edit", _edit(file_path=FILE)),
        ]),
    ),
    "codex": (
        "Codex reads two files and edits one.",
        _agent("Codex", [
            _shell("cat colour.txt"), _shell("cat page.md"),
            _shell(f"sed -i s/{OLD}/{NEW}/ colour.txt"),
        ]),
    ),
    "codex_compacts": (
        "Codex, which takes the context to be small, sums up what was said.",
        _agent("Codex", [
            _shell("cat colour.txt"), _shell("cat page.md"),
            _shell(f"sed -i s/{OLD}/{NEW}/ colour.txt"),
        ], SMALL),
    ),
    "opencode": (
        "OpenCode has a title made, reads two files and edits one.",
        _agent("OpenCode", [
            ("read", {"filePath": FILE}), ("read", {"filePath": PAGE}),
            ("edit", {"filePath": FILE, "oldString": OLD, "newString": NEW}),
        ]),
    ),
    "continue": (
        "Continue reads two files and edits one.",
        _agent("Continue", [
            ("Read", {"filepath": "colour.txt"}), ("Read", {"filepath": "page.md"}),
            ("Edit", _edit(file_path=FILE)),
        ]),
    ),
    "qwen_code": (
        "Qwen Code reads two files and edits one.",
        _agent("Qwen Code", [
            ("read_file", {"file_path": FILE}), ("read_file", {"file_path": PAGE}),
            ("edit", _edit(file_path=FILE)),
        ]),
    ),
    "aider": ("Aider edits a file and has a message for its commit made.", _aider),
    "langchain": ("An agent of LangChain, whose answers do not stream.", _langchain),
    "lm_eval": ("lm-eval asks about twelve documents, four at once.", _lm_eval),
}  # fmt: skip


def kind_of(answer: str) -> str:
    """What a request was for: a ``turn`` that somebody waits for, ``bulk`` work that nobody reads,
    or what a program asks for beside its task."""
    if answer in (ASIDE, COMMITTED):
        return "aside"
    if answer == WORD:
        return "bulk"
    return "summary" if answer.startswith("Steps taken") else "turn"


def trace_of(about: str, notes: list[dict[str, Any]], model: llama.Model) -> dict[str, Any]:
    """A trace of what was noted.  A request that came after others had ended waits for the newest
    of these; tokens that an earlier prompt and its answer begin with are in the cache."""
    notes = sorted(notes, key=lambda note: note["came_ns"])
    first = notes[0]["came_ns"]
    programs = list(dict.fromkeys(note["program"] for note in notes))
    sessions = list(dict.fromkeys(note["session"] for note in notes if note["session"]))
    known: list[tuple[int, list[int]]] = []
    requests = []
    for note in notes:
        ids = model.tokenize(note["prompt"], add_special=False)
        answer = model.tokenize(note["answer"], add_special=False)
        before = [i for i, other in enumerate(notes) if other["ended_ns"] <= note["came_ns"]]
        request: dict[str, Any] = {"app": 1 + programs.index(note["program"])}
        if before:
            parent = max(before, key=lambda i: notes[i]["ended_ns"])
            waited = note["came_ns"] - notes[parent]["ended_ns"]
            request |= {"after": parent, "wait_ms": round(waited / 1e6)}
        else:
            request["at_ms"] = round((note["came_ns"] - first) / 1e6)
        there = [_same(ids, other) for end, other in known if end <= note["came_ns"]]
        cached = min(max(there, default=0), len(ids) - 1)
        request |= {
            "prompt": len(ids) - cached,
            "cached": cached,
            "output": max(len(answer), 1),
            "kind": kind_of(note["answer"]),
            **{name: note[name] for name in ("streams", "max_tokens", "tools", "results")},
            "thinking": note["thinking"],
        }
        if note["session"]:
            request["session"] = 1 + sessions.index(note["session"])
        requests.append(request)
        known.append((note["ended_ns"], [*ids, *answer]))
    return {"about": about, "programs": programs, "requests": requests}


def _same(one: list[int], other: list[int]) -> int:
    """Tokens that two lists begin with."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def lines_of(trace: dict[str, Any]) -> Iterator[str]:
    """JSON with a request a line."""
    yield "{\n"
    for name in ("about", "programs"):
        yield f" {json.dumps(name)}: {json.dumps(trace[name])},\n"
    rows = ",\n".join(f"  {json.dumps(request)}" for request in trace["requests"])
    yield f' "requests": [\n{rows}\n ]\n}}\n'


def record(name: str, model: llama.Model) -> None:
    about, run = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        os.environ |= {"NOTED_REQUESTS": str(notes), "FAKE_TICK_MS": str(TICK_MS)}
        work = Path(folder) / "run"
        work.mkdir()
        run(work)
        told = [json.loads(line) for line in notes.read_text("utf-8").splitlines()]
    (RECORDED / f"{name}.json").write_text("".join(lines_of(trace_of(about, told, model))))
    print(f"{name}: {len(told)} requests", flush=True)


def main(names: list[str]) -> int:
    library = llama.load()
    vocabulary = library.build.vocab_dir / "ggml-vocab-qwen2.gguf"
    with llama.Model.open(library, vocabulary, vocab_only=True) as model:
        for name in names or PROGRAMS:
            record(name, model)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
