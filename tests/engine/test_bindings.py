"""The compiled binding against the header and the library, by ways of its own."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import build_llama
from bindings import module_dir, module_file
from bindings.compile import read_declarations
from umaserve import llama
from umaserve.llama.building.toolchain import find_compilers
from umaserve.llama.library import check_versions


@pytest.fixture(scope="module")
def library() -> llama.Library:
    build_llama.ensure_binding(build_llama.select() or build_llama.ensure())
    return llama.load()


def header_functions(header: Path) -> set[str]:
    """Names of the ``llama_*`` functions that a header declares, by regular expressions alone."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", text, flags=re.MULTILINE)
    return {
        name
        for statement in text.split(";")
        if "LLAMA_API" in statement
        for name in re.findall(r"\b(llama_\w+)\s*\(", statement.split("LLAMA_API", 1)[1])[:1]
    }


def exported(path: Path) -> set[str]:
    """Names of the ``llama_*`` functions that a library exports, by ``nm``."""
    flags = ["-gU"] if sys.platform == "darwin" else ["-D", "--defined-only"]
    done = subprocess.run(["nm", *flags, str(path)], capture_output=True, text=True, check=True)
    return set(re.findall(r"\bT _?(llama_\w+)$", done.stdout, flags=re.MULTILINE))


def test_every_exported_function_of_the_header_is_bound(library: llama.Library) -> None:
    declared = header_functions(library.build.include_dir / "llama.h")
    offered = exported(library.build.library)
    assert len(declared) > 200
    bound = {name for name in dir(library.lib) if name.startswith("llama_")}
    assert declared & offered <= bound
    assert {name for name in bound if callable(getattr(library.lib, name))} <= offered
    assert declared - offered == {name for name in declared if name not in bound}


def test_the_generator_and_the_module_agree(library: llama.Library) -> None:
    build = library.build
    found = read_declarations(build.lib_dir, build.include_dir, find_compilers()[0].split())
    assert set(found.functions) <= set(dir(library.lib))
    assert set(found.constants) <= set(dir(library.lib))
    assert not set(found.missing) & set(dir(library.lib))
    assert found.shim_names["llama_decode"] == "uma_decode"
    assert found.shim_names["llama_encode"] == "uma_encode"


def test_ggml_functions_that_are_used_are_bound(library: llama.Library) -> None:
    for name in (
        "ggml_backend_load_all", "ggml_backend_dev_count", "ggml_backend_dev_get",
        "ggml_backend_dev_name", "ggml_backend_dev_description", "ggml_backend_dev_type",
        "ggml_backend_dev_memory", "ggml_log_set", "ggml_type_name", "gguf_init_from_file",
    ):  # fmt: skip
        assert callable(getattr(library.lib, name)), name


def test_struct_defaults_equal_a_c_program(library: llama.Library, tmp_path: Path) -> None:
    """A C program compiled against the same header prints sizes and defaults; cffi has to agree."""
    fields = {
        "llama_context_params": (
            "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "flash_attn_type", "type_k",
            "type_v", "offload_kqv", "kv_unified", "swa_full", "n_outputs_max",
        ),
        "llama_model_params": ("n_gpu_layers", "load_mode", "vocab_only", "use_extra_bufts"),
    }  # fmt: skip
    body = ""
    for struct, names in fields.items():
        function = struct.replace("_params", "_default_params")
        body += f"struct {struct} {struct} = {function}();\n"
        body += f'printf("{struct} %zu\\n", sizeof(struct {struct}));\n'
        for name in names:
            body += f'printf("{struct}.{name} %lld\\n", (long long) {struct}.{name});\n'
    source = tmp_path / "defaults.c"
    source.write_text(f'#include "llama.h"\n#include <stdio.h>\nint main(void) {{\n{body}}}\n')
    build = library.build
    program = tmp_path / "defaults"
    subprocess.run(
        [*find_compilers()[0].split(), "-w", f"-I{build.include_dir}", str(source), "-o",
         str(program), f"-L{build.lib_dir}", "-lllama", "-lggml", "-lggml-base",
         f"-Wl,-rpath,{build.lib_dir}"],
        check=True,
    )  # fmt: skip
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    ffi, lib = library.ffi, library.lib
    for line in printed.splitlines():
        name, value = line.split()
        struct, _, field = name.partition(".")
        if field:
            defaults = getattr(lib, struct.replace("_params", "_default_params"))()
            assert int(getattr(defaults, field)) == int(value), name
        else:
            assert ffi.sizeof(f"struct {struct}") == int(value)


def test_constants_and_enumerators_have_the_header_s_values(library: llama.Library) -> None:
    assert library.lib.LLAMA_DEFAULT_SEED == 0xFFFFFFFF
    assert library.lib.LLAMA_TOKEN_NULL == -1
    assert library.lib.LLAMA_TOKEN_ATTR_BYTE == 1 << 5
    assert library.lib.LLAMA_ROPE_TYPE_NEOX == library.lib.GGML_ROPE_TYPE_NEOX
    assert library.lib.LLAMA_FLASH_ATTN_TYPE_AUTO == -1


def test_an_address_can_be_called_without_cffi(library: llama.Library) -> None:
    function = ctypes.CFUNCTYPE(ctypes.c_size_t)(library.address("llama_max_devices"))
    assert function() == library.lib.llama_max_devices()
    with pytest.raises(AttributeError):
        library.address("llama_no_such_function")


class FakeLibrary:
    """Stands in for a library of another version than the binding was compiled for."""

    def __init__(self, real, version: bytes, ffi) -> None:
        self.real = real
        self.answer = ffi.new("char[]", version)

    def llama_version(self):
        return self.answer

    def __getattr__(self, name: str):
        return getattr(self.real, name)


def test_another_version_of_the_library_is_refused(library: llama.Library) -> None:
    class Module:
        ffi = library.ffi
        lib = FakeLibrary(library.lib, b"9.9.9", library.ffi)

    with pytest.raises(llama.BindingMismatch, match=r"'9\.9\.9'.*python build_llama\.py") as caught:
        check_versions(Module)  # type: ignore[arg-type]
    assert repr(library.version) in str(caught.value)


@pytest.fixture
def copied_build(library: llama.Library, tmp_path: Path) -> Path:
    """A cache of its own holding a copy of the build, to be spoilt."""
    target = tmp_path / "cache" / "llama" / library.build.key
    target.parent.mkdir(parents=True)
    wanted = ("lib", "include", "python", "manifest.json")
    target.mkdir()
    for name in wanted:
        source = library.build.path / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True)
        else:
            shutil.copy2(source, target / name)
    return target


def load_in_a_process(cache: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "import json, umaserve.llama as llama\n"
        "try:\n    answer = ['loaded', llama.load().version]\n"
        "except llama.LlamaError as error:\n    answer = [type(error).__name__, str(error)]\n"
        "print(json.dumps(answer))"
    )
    environment = {**os.environ, "UMA_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


def answer(cache: Path) -> list[str]:
    done = load_in_a_process(cache)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_build_can_be_moved(copied_build: Path, library: llama.Library) -> None:
    assert answer(copied_build.parents[1]) == ["loaded", library.version]


def test_a_binding_with_a_library_of_other_symbols(copied_build: Path) -> None:
    """The file of another library in libllama's place: said, with the way out, and no crash."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    for path in (copied_build / "lib").glob("libllama.*"):
        path.unlink()
    source = copied_build / "other.c"
    source.write_text('const char *llama_version(void) { return "0.0.1"; }\n')
    out = copied_build / "lib" / f"libllama.{suffix}"
    subprocess.run(
        [*find_compilers()[0].split(), "-shared", "-fPIC", source, "-o", out], check=True
    )
    shutil.copy2(out, out.with_name("libllama.0.dylib" if suffix == "dylib" else "libllama.so.0"))
    kind, message = answer(copied_build.parents[1])
    assert kind == "BindingMismatch"
    assert "python build_llama.py" in message


def test_a_build_without_a_binding(copied_build: Path) -> None:
    module_file(module_dir(copied_build)).unlink()
    kind, message = answer(copied_build.parents[1])
    assert kind == "BindingMismatch"
    assert "no binding for this Python" in message


def test_no_build_at_all(tmp_path: Path) -> None:
    kind, message = answer(tmp_path)
    assert kind == "NotBuilt"
    assert "python build_llama.py" in message
