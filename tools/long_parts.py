"""What is longer than one screen or one sitting, and does not say why: ``make lint`` runs it.

    python -m tools.long_parts

A file may have 300 lines and a function 60.  What has more says why: a sentence of its docstring,
or a comment at the top of the file, begins with ``Long:``.  Of tests only functions count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES, FUNCTION_LINES = 300, 60
FOLDERS = [
    Path(name)
    for name in ("umaserve", "bindings", "benchmarks", "demo_model", "tools", "tests")
]
_REASON = re.compile(r"(?:^|\s)Long: \w")
_COMMENT = re.compile(r"^# Long: \w", re.MULTILINE)
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def long_parts(path: str, text: str) -> Iterator[str]:
    """A line for each part of a file that is too long and gives no reason."""
    tree = ast.parse(text)
    lines = text.count("\n")
    is_test = path.startswith("tests/")
    said = _has_reason(tree) or _COMMENT.search(text)
    if lines > FILE_LINES and not is_test and not said:
        yield f"{path}: {lines} lines, {FILE_LINES} at most"
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES and not _has_reason(node):
                at = f"{path}:{node.lineno} {node.name}"
                yield f"{at}: {lines} lines, {FUNCTION_LINES} at most"


def _has_reason(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(_REASON.search(ast.get_docstring(node) or ""))


def main() -> int:
    paths = [Path("build_llama.py"), *(p for top in FOLDERS for p in sorted(top.rglob("*.py")))]
    found = [line for p in paths for line in long_parts(p.as_posix(), p.read_text("utf-8"))]
    for line in found:
        print(line)
    if found:
        print('make it shorter, or say why not in its docstring: "Long: ..."')
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
