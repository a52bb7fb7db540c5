"""A program that has a second thread from its start on, as with a library that makes threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = r"""
#include <pthread.h>
#include <unistd.h>
static void *wait(void *x) { for (;;) pause(); return x; }
__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    pthread_create(&thread, 0, wait, 0);
}
"""


def environment_of_threads(folder: Path) -> dict[str, str]:
    """Return variables that add a thread to each program; the library lies in ``folder``."""
    (folder / "thread.c").write_text(_SOURCE)
    library = folder / "thread.so"
    command = ["cc", "-shared", "-fPIC", "-pthread", "-o", str(library), str(folder / "thread.c")]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library)}
