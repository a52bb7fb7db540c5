"""The samplers and the policy without the compiler, whose types hide what Python's would show.

Compiled, a count that is below 0 wraps around, a name has one type on all ways, and nobody looks at
bounds; as plain Python the same tests fail there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
# four minutes each without the compiler: whole simulations, and every order of samplers
LONG_FILES = ("test_policy_pace.py", "test_policy_shares.py", "test_sampling_oracle.py")
FILES = sorted(
    str(file.relative_to(ROOT))
    for names in ("unit/test_sampling*.py", "policy/test_policy_*.py")
    for file in (ROOT / "tests").glob(names)
    if file.name not in LONG_FILES
)
LONG = "not test_xtc_happens_as_often_as_asked"  # a minute of draws

pytestmark = pytest.mark.slow


def plain(*words: str) -> str:
    """What Python prints with the compiler switched off; AssertionError if it fails."""
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=PLAIN, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("module", ["umaserve.policy.guarded", "umaserve.sampling.sampler"])
def test_functions_are_pythons(module: str) -> None:
    count = (
        f"import inspect, {module} as m\n"
        "own = [f for f in vars(m).values() if getattr(f, '__module__', '') == m.__name__]\n"
        "print(sum(map(inspect.isfunction, own)), sum(hasattr(f, 'py_func') for f in own))"
    )
    functions, compiled = plain("-c", count).split()
    assert int(functions) > 2 and compiled == "0"


@pytest.mark.parametrize("file", FILES)
def test_its_tests_pass(file: str) -> None:
    # whole numbers of 64 bits that wrap around on purpose: the generator of random numbers
    said = plain(
        "-m", "pytest", file, "-q", "-m", "not slow", "-k", LONG,
        "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", "--timeout", "120",
    )  # fmt: skip
    assert " passed" in said
