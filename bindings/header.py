"""`llama.h` -> C preprocessor -> pycparser -> declarations that cffi's API mode takes.

What changes on the way, and why:

- system headers are replaced by small stand-ins, because cffi knows the standard types itself and
  no parser has to survive a platform's own ``stdio.h``;
- enumerators, array sizes and integer macros become ``...``: the C compiler fills in the value,
  so no expression has to be evaluated here;
- functions that the libraries do not export are left out (a header may declare more than was
  built), and so are inline definitions;
- numba and ctypes callers cannot pass a ``struct llama_batch`` by value.  So each function that
  takes one gets a shim that takes a pointer (``llama_decode`` -> ``uma_decode``).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pycparser import c_ast, c_generator, c_parser

HEADERS = ("llama.h", "ggml-backend.h", "ggml-cpu.h", "gguf.h")
"""What the binding includes; each pulls in the ggml headers that it needs."""

# cffi has these types built in; the stand-ins only let the parser recognise the names.
_STANDARD_HEADERS = {
    "stddef.h": "typedef unsigned long size_t; typedef long ptrdiff_t;\n#define NULL ((void*)0)",
    "stdint.h": "".join(
        f"typedef {'unsigned ' * u}{c} {'u' * u}int{bits}_t;"
        for bits, c in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
        for u in (0, 1)
    )
    + "typedef unsigned long uintptr_t; typedef long intptr_t;",
    "stdbool.h": "#define bool _Bool\n#define true 1\n#define false 0",
    "stdio.h": "typedef struct FILE FILE;",
}
_HIDDEN = (
    "-D__attribute__(x)=", "-D__extension__=", "-D__restrict=", "-D__inline=inline",
    "-D__asm__(x)=", "-U__cplusplus",
)  # fmt: skip

_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*$")
_BY_VALUE_STRUCT = "llama_batch"
# ggml's graph-building half (a thousand tensor operators) is nothing a server calls.
_GRAPH_TYPES = {"ggml_context", "ggml_tensor", "ggml_cgraph"}
_WHOLE_HEADERS = {"llama.h", "ggml-backend.h", "gguf.h"}


class HeaderError(Exception):
    """The headers could not be preprocessed or parsed."""


@dataclass(frozen=True)
class Declarations:
    """Declarations that were found in the headers.

    `cdef` is text for ``FFI.cdef``.  `shims` is C source that defines the ``uma_*`` functions
    which `cdef` declares.  `functions` are the bound C functions.  `shim_names` maps each shimmed
    function to its shim.  `missing` are functions declared but not exported.
    """

    cdef: str
    shims: str
    functions: tuple[str, ...]
    shim_names: dict[str, str]
    missing: tuple[str, ...]
    constants: tuple[str, ...]


def read_headers(
    include_dir: Path, exported: Callable[[set[str]], set[str]], compiler: list[str]
) -> Declarations:
    """Parses the headers in `include_dir`.

    `exported` is asked once which of the declared names can be linked; `compiler` is the C compiler
    and its first arguments. Raises `HeaderError` with the compiler's or the parser's message.
    """
    source = "".join(f'#include "{name}"\n' for name in HEADERS)
    with TemporaryDirectory(prefix="uma-headers-") as temporary:
        fake = Path(temporary)
        for name, text in _STANDARD_HEADERS.items():
            (fake / name).write_text("#pragma once\n" + text + "\n")
        arguments = ["-nostdinc", "-I", str(fake), "-I", str(include_dir), *_HIDDEN]
        text = _preprocess(compiler, ["-E", *arguments], source)
        macros = _preprocess(compiler, ["-E", "-dM", *arguments], source)
    try:
        tree = c_parser.CParser().parse(_without_pragmas(text), "llama.h")
    except Exception as error:  # pycparser raises its own ParseError, of a type that moved
        raise HeaderError(f"the headers in {include_dir} do not parse: {error}") from error
    names = {path.name for path in include_dir.glob("*.h")}
    ours = [node for node in tree.ext if node.coord and Path(node.coord.file).name in names]
    declared = {node.name for node in ours if isinstance(node, c_ast.Decl) and node.name}
    return _Writer(exported(declared), _integer_macros(macros, include_dir)).write(ours)


def _preprocess(compiler: list[str], arguments: list[str], source: str) -> str:
    command = [*compiler, "-x", "c", *arguments, "-"]
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    except OSError as error:
        raise HeaderError(f"cannot run the C compiler {compiler[0]!r}: {error}") from error
    if done.returncode != 0:
        raise HeaderError(f"the C preprocessor refused the headers:\n{done.stderr.strip()}")
    return done.stdout


def _without_pragmas(text: str) -> str:
    return "\n".join("" if line.startswith("#pragma") else line for line in text.split("\n"))


def _integer_macros(dump: str, include_dir: Path) -> list[str]:
    """Names of object-like macros of our headers whose value is an integer literal."""
    bodies = dict(re.findall(r"^#define (\w+) (.+)$", dump, flags=re.MULTILINE))
    ours: set[str] = set()
    for path in include_dir.glob("*.h"):
        ours.update(re.findall(r"^\s*#\s*define\s+(\w+)[ \t]", path.read_text("utf-8"), re.M))

    def is_integer(body: str, depth: int = 0) -> bool:
        body = body.strip()
        if _INTEGER.match(body):
            return True
        return depth < 8 and body in bodies and is_integer(bodies[body], depth + 1)

    return sorted(
        name
        for name, body in bodies.items()
        if name in ours and name.startswith(("LLAMA_", "GGML_", "GGUF_")) and is_integer(body)
    )


class _Writer:
    """Walks the parsed headers and writes the declarations that cffi takes."""

    def __init__(self, exported: set[str], constants: list[str]) -> None:
        self.exported = exported
        self.constants = constants
        self.c = c_generator.CGenerator()
        self.lines: list[str] = []
        self.shims: list[str] = []
        self.functions: list[str] = []
        self.shim_names: dict[str, str] = {}
        self.missing: list[str] = []

    def write(self, nodes: list[c_ast.Node]) -> Declarations:
        for node in nodes:
            self._declaration(node, Path(node.coord.file).name if node.coord else "")
        defines = [f"#define {name} ..." for name in self.constants]
        once = dict.fromkeys([*defines, *self.lines])  # C allows a typedef twice, cffi does not
        return Declarations(
            cdef="\n".join(once) + "\n",
            shims="\n".join(self.shims) + "\n",
            functions=tuple(self.functions),
            shim_names=self.shim_names,
            missing=tuple(self.missing),
            constants=tuple(self.constants),
        )

    def _declaration(self, node: c_ast.Node, header: str) -> None:
        if isinstance(node, c_ast.FuncDef):
            return
        if isinstance(node, c_ast.Decl):
            if isinstance(node.type, c_ast.FuncDecl):
                self._function(node, header)
                return
            if node.name is not None:  # a variable: `static const size_t ...` is the compiler's
                if "static" not in (node.storage or []) and node.name in self.exported:
                    self.lines.append(self.c.visit(node) + ";")
                return
        _Rewrite().visit(node)
        self.lines.append(self.c.visit(node) + ";")

    def _function(self, node: c_ast.Decl, header: str) -> None:
        if header not in _WHOLE_HEADERS and _mentions(node.type, _GRAPH_TYPES):
            return
        if node.name not in self.exported:
            self.missing.append(node.name)
            return
        node.storage, node.funcspec = [], []
        self.lines.append(self.c.visit(node) + ";")
        self.functions.append(node.name)
        self._shim(node)

    def _shim(self, node: c_ast.Decl) -> None:
        parameters = node.type.args.params if node.type.args else []
        if not any(_is_by_value(p) for p in parameters):
            return
        shim = "uma_" + node.name.removeprefix("llama_")
        declared, passed = [], []
        for parameter in parameters:
            text = self.c.visit(parameter)
            if _is_by_value(parameter):
                declared.append(f"const struct {_BY_VALUE_STRUCT} *{parameter.name}")
                passed.append(f"*{parameter.name}")
            else:
                declared.append(text)
                passed.append(parameter.name)
        result = self.c.visit(node.type.type).rsplit(node.name, 1)[0].strip()
        head = f"{result} {shim}({', '.join(declared)})"
        returns = "" if result == "void" else "return "
        self.lines.append(head + ";")
        self.shims.append(f"static {head} {{ {returns}{node.name}({', '.join(passed)}); }}")
        self.shim_names[node.name] = shim


class _Rewrite(c_ast.NodeVisitor):
    """Replaces values that the C compiler knows better by ``...``."""

    def visit_Enumerator(self, node: c_ast.Enumerator) -> None:  # noqa: N802
        node.value = c_ast.ID("...")

    def visit_ArrayDecl(self, node: c_ast.ArrayDecl) -> None:  # noqa: N802
        if node.dim is not None and not isinstance(node.dim, c_ast.Constant):
            node.dim = c_ast.ID("...")
        self.visit(node.type)


class _Names(c_ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Struct(self, node: c_ast.Struct) -> None:  # noqa: N802
        self.found.add(node.name)

    def visit_IdentifierType(self, node: c_ast.IdentifierType) -> None:  # noqa: N802
        self.found.update(node.names)


def _mentions(node: c_ast.Node, names: set[str]) -> bool:
    visitor = _Names()
    visitor.visit(node)
    return bool(visitor.found & names)


def _is_by_value(parameter: c_ast.Node) -> bool:
    kind = getattr(parameter, "type", None)
    if not isinstance(kind, c_ast.TypeDecl):
        return False
    if isinstance(kind.type, c_ast.Struct):
        return kind.type.name == _BY_VALUE_STRUCT
    return isinstance(kind.type, c_ast.IdentifierType) and kind.type.names == [_BY_VALUE_STRUCT]
