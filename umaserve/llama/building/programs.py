"""Builds uma-chat and uma-eyes from the source that libllama came from.

uma-chat makes prompts of conversations. A source without a chat layer, or with another one, makes a
build without the program. Prompts are served then, and ``messages`` are refused with the reason
that is written down here.

uma-eyes makes embeddings of pictures. It is built on demand: it takes half a minute of two cores,
and most models read text alone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from umaserve.llama import builds

from . import BuildError
from .compile import Commands, ninja_reader

FOR_CHAT = ("common/chat.h", "common/json.h", "common/jinja/runtime.h", "common/parsers/parsers.h")
_FOR_EYES = ("tools/mtmd/mtmd.h", "tools/mtmd/clip.cpp", "vendor/stb/stb_image.h")


def make_chat(tree: Path, build: builds.Build, aside: Path, commands: Commands) -> None:
    """Puts uma-chat, or the reason why there is none, into ``build.chat_dir``.

    ``tree`` is llama.cpp's source; ``aside`` is a folder for what is made on the way.
    """
    out = aside / "chat"
    out.mkdir()
    missing = next((name for name in FOR_CHAT if not (tree / name).exists()), None)
    why = ""
    if missing is not None:
        why = f"the llama.cpp source of this build has no chat layer that is known (no {missing})"
    else:
        try:
            defines = [f"-DLLAMA_TREE={tree}"]
            folder = aside / "chat-build"
            program = _compile("uma-chat", builds.CHAT_SOURCES, defines, folder, commands)
            shutil.copy2(program, out / program.name)
            templates = tree / "models" / "templates"
            if templates.is_dir():  # of models that llama.cpp knows, for tests
                shutil.copytree(templates, out / templates.name)
        except BuildError as error:
            commands.report.say(str(error))
            why = f"uma-chat could not be built from this llama.cpp source; {commands.log} says why"
    if why:
        commands.report.say(f"warning: conversations (`messages`) will be refused: {why}")
        (out / builds.CHAT_ABSENT).write_text(f"{why}\n", "utf-8")
    _replace(build.chat_dir, out)


def make_eyes(tree: Path, build: builds.Build, aside: Path, commands: Commands) -> None:
    """Put uma-eyes into ``build.eyes_dir``.  Raises `BuildError` where it cannot be built."""
    for name in _FOR_EYES:
        if not (tree / name).exists():
            raise BuildError(f"uma-eyes cannot be built: this llama.cpp source has no {name}")
    defines = [f"-DLLAMA_TREE={tree}", f"-DLLAMA_BUILD={build.path}"]
    program = _compile("uma-eyes", builds.EYES_SOURCES, defines, aside / "eyes-build", commands)
    out = aside / "eyes"
    out.mkdir()
    shutil.copy2(program, out / program.name)
    picture = tree / "tools" / "mtmd" / "test-1.jpeg"
    if picture.exists():  # for tests
        shutil.copy2(picture, out / picture.name)
    _replace(build.eyes_dir, out)


def _replace(folder: Path, made: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    made.rename(folder)


def _compile(
    name: str, sources: Path, defines: list[str], folder: Path, commands: Commands
) -> Path:
    """Compile a program of this package in ``folder``; returns its file."""
    tools = commands.tools
    configure: list[str | Path] = [
        tools.cmake, "-S", sources, "-B", folder, "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tools.ninja}", *defines,
    ]  # fmt: skip
    environment = {**os.environ, "CC": tools.cc, "CXX": tools.cxx, "NINJA_STATUS": "[%f/%t] "}
    with commands.report.step(f"Compiling {name}") as step:
        read, what = ninja_reader(step.update), f"compiling {name}"
        for command in (configure, commands.compile(folder)):
            commands.run(command, what, read, environment)
    return folder / name
