"""``umaserve build``, and what a first start has to build before it can serve."""

from __future__ import annotations

import os
import sys

from umaserve.cli.parts.common import EXIT_CANNOT_SERVE, EXIT_OK, say
from umaserve.llama import builds
from umaserve.llama.leftovers import is_of_another_version


def build(arguments: list[str]) -> int:
    """Hand everything to ``build_llama.main``."""
    import build_llama

    return build_llama.main(arguments)


def is_whole(backend: str) -> bool:
    """Whether everything is built that serving takes; a look at files.

    Some builds count as whole in any case, and the engine says what is wrong with them.  These are
    builds that are named, that others could change, or that this user cannot write to.
    """
    found = builds.select(backend)
    if found is None:
        return bool(os.environ.get(builds.BUILD_VARIABLE) or builds.refused(backend))
    if not os.access(found.path, os.W_OK):
        return True
    return _has_binding(found) and not is_of_another_version(found) and not _lacks_chat(found)


def make_whole(backend: str) -> int:
    """Build what is missing, with progress; 0, or the exit status of a start that must end."""
    import build_llama

    found = builds.select(backend)
    if found is None:
        say("umaserve: the first start builds libllama for this machine, which takes some minutes")
    elif is_of_another_version(found) or _lacks_chat(found):
        say("umaserve: a part of what serving takes is missing here; building it")
    else:
        return _make_binding(found)
    status = build_llama.main(["--backend", backend, "--with-samplers", "--quiet"])
    if status == EXIT_CANNOT_SERVE and found is not None:
        say("umaserve: going on with what is here")
        return _make_binding(found)
    return status


def _lacks_chat(found: builds.Build) -> bool:
    if not found.lacks_chat:
        return False
    import build_llama

    return build_llama.makes_again(found)  # options of its own would have to be given again


def _has_binding(found: builds.Build) -> bool:
    from bindings import module_dir, module_file

    return module_file(module_dir(found.path)).exists()


def _make_binding(found: builds.Build) -> int:
    import build_llama

    try:
        build_llama.ensure_binding(found)
    except build_llama.BuildError as error:
        print(f"umaserve: {error}", file=sys.stderr)
        return EXIT_CANNOT_SERVE
    return EXIT_OK
