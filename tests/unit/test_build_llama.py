"""The builder, with real cmake, ninja and compilers on a tree that compiles in a second."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import build_llama
from bindings import module_dir, module_file
from tests.support.fixtures.tiny_llama import pack, write_tree
from tests.support.quiet_build import quiet
from umaserve.llama import builds
from umaserve.llama.building import BuildError, backends, compile, programs, source, toolchain
from umaserve.llama.building.progress import Reporter

ROOT = Path(__file__).parents[2]

_TILES = """
#include <immintrin.h>
void configure() {
    alignas(64) int config[16] = {};
    config[0] = 1;
    config[15] = 4242;
    _tile_loadconfig(config);
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("UMA_CACHE_DIR", str(folder))
    monkeypatch.delenv(builds.BUILD_VARIABLE, raising=False)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "tiny")


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "llama").glob(".tmp-*")]


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / "build_llama.py"), *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)


def test_a_build_holds_what_it_promises(cache: Path, tree: Path) -> None:
    done = run("--backend", "cpu", "--source", tree)
    assert done.returncode == 0, done.stderr
    assert "Backend cpu: asked for" in done.stdout
    assert re.search(r"libllama 0\.0\.1-tiny \(cpu\) is ready", done.stdout)
    (build,) = builds.installed()
    assert build.backend == "cpu" and build.version == "0.0.1-tiny"
    assert build.source.startswith("tree-") and build.commit == build.source
    assert build.library.resolve().parent == build.lib_dir
    assert (build.include_dir / "llama.h").exists() and (build.include_dir / "ggml.h").exists()
    assert (build.vocab_dir / "ggml-vocab-tiny.gguf").exists()
    assert (build.path / "LICENSE").read_text() == "a licence\n"
    assert module_file(module_dir(build.path)).exists()
    assert not build.has_peers
    assert leftovers(cache) == []


def test_a_cache_folder_with_a_space(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMA_CACHE_DIR", str(tmp_path / "a cache"))
    archive = pack(tree, tmp_path / "tiny.tar.gz", "x/vendor/llama.cpp")
    build = build_llama.ensure("cpu", source_path=archive, with_peers=True, report=quiet())
    assert build.has_peers and module_file(module_dir(build.path)).exists()


def test_all_64_bytes_of_a_tile_configuration_are_kept(tmp_path: Path) -> None:
    """GCC's own definition reads 8 of them, and the stores to the others are dropped."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("AMX is a part of x86-64 processors only")
    header, file = tmp_path / "intrinsics.h", tmp_path / "config.cpp"
    header.write_text(compile.INTRINSICS, "utf-8")
    file.write_text(_TILES, "utf-8")
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    arguments = [*compiler, "-O2", "-mamx-tile", "-S", "-o", "-", "-include", header, file]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if "mamx-tile" in done.stderr:
        pytest.skip("this compiler knows no AMX, so no build of it uses it")
    assert done.returncode == 0, done.stderr
    assert "ldtilecfg" in done.stdout and "4242" in done.stdout, done.stdout


def test_the_second_time_runs_no_tool(
    cache: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_llama.ensure("cpu", source_path=tree, report=quiet())
    monkeypatch.setenv("PATH", "/nonexistent")
    report = quiet()
    assert build_llama.ensure("cpu", source_path=tree, report=report) == first
    assert report.stream.getvalue() == ""  # type: ignore[attr-defined]


def test_an_edited_tree_is_another_build(cache: Path, tree: Path) -> None:
    first = build_llama.ensure("cpu", source_path=tree, report=quiet())
    write_tree(tree, version="0.0.2-tiny")
    second = build_llama.ensure("cpu", source_path=tree, report=quiet())
    assert first.key != second.key
    assert [first.version, second.version] == ["0.0.1-tiny", "0.0.2-tiny"]


@pytest.mark.parametrize("name", ["tiny.tar.gz", "tiny.zip"])
def test_an_archive_as_the_package_index_has_it(cache: Path, tree: Path, name: str) -> None:
    archive = pack(tree, tree.parent / name, "llama_cpp_python-9.9/vendor/llama.cpp")
    build = build_llama.ensure("cpu", source_path=archive, report=quiet())
    assert build.version == "0.0.1-tiny"
    assert build.source.startswith("archive-")
    assert not list(cache.rglob("climbed"))


def test_the_pinned_archive_given_by_hand_is_the_pinned_source(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(tree, tree.parent / "a.tar.gz", "x/vendor/llama.cpp")
    monkeypatch.setattr(source, "SDIST_SHA256", source._hash_file(archive))
    assert source.choose(archive, None).ident == source.SDIST_VERSION
    source.verify(archive)


def test_a_wrong_hash_is_refused(tree: Path) -> None:
    archive = pack(tree, tree.parent / source.SDIST_FILE, "x")
    with pytest.raises(BuildError, match=f"SHA-256 expected {source.SDIST_SHA256}") as caught:
        source.verify(archive)
    assert "Do not build it" in str(caught.value)


def test_sources_that_are_none(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no such folder or archive"):
        source.choose(tmp_path / "none", None)
    with pytest.raises(BuildError, match="holds no llama.cpp source tree"):
        source.choose(tmp_path, None)
    (tmp_path / "notes.txt").write_text("no archive")
    done = run("--backend", "cpu", "--source", tmp_path / "notes.txt")
    assert done.returncode == 1
    assert "cannot be unpacked" in done.stderr and "Traceback" not in done.stderr
    assert leftovers(cache) == []


def test_a_compile_error_is_shown_and_leaves_nothing(cache: Path, tree: Path) -> None:
    (tree / "src" / "llama.c").write_text('#include "llama.h"\nint broken = this_is_not_c;\n')
    done = run("--backend", "cpu", "--source", tree)
    assert done.returncode == 1
    assert "this_is_not_c" in done.stderr and "Traceback" not in done.stderr
    (log,) = re.findall(r"The whole output is in (\S+)", done.stderr)
    assert "this_is_not_c" in Path(log).read_text()
    assert builds.installed() == [] and leftovers(cache) == []


def test_a_configuration_error_names_the_step(cache: Path, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "t", configure='message(FATAL_ERROR "the moon is full")')
    with pytest.raises(BuildError, match="(?s)configuring libllama .cpu. with cmake failed.*moon"):
        build_llama.ensure("cpu", source_path=tree, report=quiet())
    assert leftovers(cache) == []


def start_slow_build(cache: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], list]:
    """A build that is in the middle of compiling, and its child processes."""
    slow = "add_custom_target(wait COMMAND sleep 60)\n"
    tree = write_tree(tmp_path / "slow", extra=slow + "add_dependencies(llama wait)\n")
    process = subprocess.Popen(
        command("--backend", "cpu", "--source", tree),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while True:
        assert process.poll() is None, process.communicate()
        # the one that lasts: a list taken before it starts would miss it, and it holds the lock
        children = psutil.Process(process.pid).children(recursive=True)
        if any(sleeps(child) for child in children):
            return process, children
        time.sleep(0.02)


def sleeps(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == "sleep"
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing(
    cache: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process, children = start_slow_build(cache, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    gone, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert builds.installed() == [] and leftovers(cache) == []


def test_what_a_killed_build_left_is_swept(cache: Path, tmp_path: Path, tree: Path) -> None:
    process, children = start_slow_build(cache, tmp_path)
    process.kill()
    process.communicate()
    for child in children:
        if child.is_running():
            child.kill()
    psutil.wait_procs(children, timeout=5)
    assert len(leftovers(cache)) == 1
    build_llama.ensure("cpu", source_path=tree, report=quiet())
    assert leftovers(cache) == []


def test_two_builds_at_once_make_one(cache: Path, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "t", configure="execute_process(COMMAND sleep 2)")
    arguments = command("--backend", "cpu", "--source", tree)
    both = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    output = "".join(out for out, _ in said)
    assert output.count("Built ") == 1
    assert len(re.findall(r"Process \d+ is building .*; waiting for it", output)) == 1
    assert len(builds.installed()) == 1 and leftovers(cache) == []


def test_peers_are_added_to_a_build(cache: Path, tree: Path) -> None:
    first = build_llama.ensure("cpu", source_path=tree, report=quiet())
    stamp = first.library.stat().st_mtime_ns
    second = build_llama.ensure("cpu", source_path=tree, with_peers=True, report=quiet())
    assert second == first and second.has_peers
    log = (cache / "logs" / f"{first.key}.log").read_text()
    assert "common.dir/common.c" in log and "llama.dir/llama.c" not in log, (
        "the library was compiled again"
    )
    assert second.library.stat().st_mtime_ns == stamp
    for name in compile.PEERS:
        done = subprocess.run([second.bin_dir / name], capture_output=True, text=True, check=True)
        assert done.stdout == "0.0.1-tiny 42\n"
    assert not list(second.lib_dir.glob("*common*"))


def test_peers_and_library_in_one_build(cache: Path, tree: Path) -> None:
    build = build_llama.ensure("cpu", source_path=tree, with_peers=True, report=quiet())
    assert build.has_peers and build.library.exists()
    assert not list(build.bin_dir.glob("libllama.*"))


def test_portable_and_extra_arguments_are_other_keys(cache: Path, tree: Path) -> None:
    native = build_llama.ensure("cpu", source_path=tree, report=quiet())
    portable = build_llama.ensure("cpu", source_path=tree, portable=True, report=quiet())
    extra = build_llama.ensure(
        "cpu", source_path=tree, cmake_args=["-DLLAMA_ANY=1"], report=quiet()
    )
    assert len({native.key, portable.key, extra.key}) == 3
    assert builds.cpu_signature() in native.key and "portable" in portable.key
    assert portable.details["cpu"] is None


def test_a_build_for_another_processor_is_not_used(cache: Path, tree: Path) -> None:
    build = build_llama.ensure("cpu", source_path=tree, report=quiet())
    assert builds.select() == build
    manifest = json.loads((build.path / "manifest.json").read_text())
    (build.path / "manifest.json").write_text(json.dumps({**manifest, "cpu": "00000000"}))
    assert builds.select() is None
    (build.path / "manifest.json").write_text("{")
    assert builds.installed() == []


def fake_build(cache: Path, key: str, **facts: object) -> None:
    folder = cache / "llama" / key
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / f"libllama.{builds.library_suffix()}").touch()
    manifest = {
        "format": builds.MANIFEST_FORMAT, "key": key, "backend": "cpu", "version": "1",
        "commit": "c", "source": builds.PINNED_VERSION, "created": 1.0,
        "machine": builds.machine_tag(), "cpu": None, **facts,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_the_order_of_preference(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_build(cache, "old")
    fake_build(cache, "new", created=2.0)
    fake_build(cache, "vulkan", backend="vulkan", created=0.0)
    fake_build(cache, "own", source="tree-1", created=9.0)
    fake_build(cache, "elsewhere", machine="plan9-mips")
    assert [build.key for build in builds.installed()] == ["vulkan", "new", "old", "own"]
    assert [build.key for build in builds.installed("cpu")] == ["new", "old", "own"]
    monkeypatch.setenv(builds.BUILD_VARIABLE, "own")
    chosen = builds.select("vulkan")
    assert chosen is not None and chosen.key == "own"
    monkeypatch.setenv(builds.BUILD_VARIABLE, "gone")
    assert builds.select() is None
    with pytest.raises(BuildError, match="names 'gone'"):
        build_llama.ensure(report=quiet())


def test_listing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build_llama.main(["--list"]) == 0
    assert "no build in" in capsys.readouterr().out
    fake_build(cache, "one")
    assert build_llama.main(["--list"]) == 0
    assert "* one  (1, c, made" in capsys.readouterr().out


def test_printing_the_path_prints_nothing_else(cache: Path, tree: Path) -> None:
    done = run("--backend", "cpu", "--source", tree, "--print-path")
    assert done.stdout == f"{builds.installed()[0].path}\n"


def test_a_full_cache_folder_is_an_error_message(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "UMA_CACHE_DIR": str(tmp_path / "file" / "cache")}
    done = subprocess.run(
        command("--backend", "cpu", "--source", tree),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "UMA_CACHE_DIR" in done.stderr and "Traceback" not in done.stderr


# --- backends -----------------------------------------------------------------------------------


def pieces(**missing: object) -> backends.VulkanPieces:
    here = Path("/opt/vulkan")
    return backends.VulkanPieces(
        glslc=here,
        headers=here,
        loader=here,
        spirv_config=here,
        header_version="1.4.309",
        **missing,
    )


def test_auto_takes_vulkan_where_it_can_be_built(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(backends, "find_vulkan", lambda headers=None: pieces())
    choice = backends.choose("auto", None, None)
    assert choice.backend == "vulkan" and "1.4.309" in choice.why
    assert "-DVulkan_INCLUDE_DIR=/opt/vulkan" in choice.cmake
    failed = backends.choose("auto", None, "/some/log")
    assert failed.backend == "cpu" and "/some/log" in failed.why


def test_auto_takes_metal_on_macos(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert backends.choose("auto", None, None).backend == "metal"


def test_auto_says_what_is_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    lacking = pieces(missing=("glslc",))
    monkeypatch.setattr(backends, "find_vulkan", lambda headers=None: lacking)
    choice = backends.choose("auto", None, None)
    assert choice.backend == "cpu" and "missing: glslc" in choice.why
    with pytest.raises(BuildError, match="(?s)cannot be built yet.*glslc"):
        backends.choose("vulkan", None, None)


def test_auto_goes_on_with_cuda_where_a_build_is_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    fake_build(cache, "c", backend="cuda")
    assert backends.choose("auto", None, None).backend == "cuda"


def test_a_failed_vulkan_build_falls_back_and_is_remembered(
    cache: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "find_vulkan", lambda headers=None: pieces())
    report = quiet()
    build = build_llama.ensure("auto", source_path=tree, report=report)
    assert build.backend == "cpu"
    said = report.stream.getvalue()  # type: ignore[attr-defined]
    assert "this tree has no Vulkan" in said and "building for the CPU instead" in said
    again = quiet()
    assert build_llama.ensure("auto", source_path=tree, report=again) == build
    assert again.stream.getvalue() == ""  # type: ignore[attr-defined]
    with pytest.raises(BuildError, match="this tree has no Vulkan"):
        build_llama.ensure("vulkan", source_path=tree, report=quiet())


def write_vulkan_headers(folder: Path, number: int, *, fit: bool) -> Path:
    vulkan = folder / "vulkan"
    vulkan.mkdir(parents=True)
    (vulkan / "vulkan.hpp").touch()
    (vulkan / "vulkan_core.h").write_text(
        f"#define VK_HEADER_VERSION {number}\n"
        "#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 3, VK_HEADER_VERSION)\n"
        + ("#define VK_EXT_layer_settings 1\n" if fit else "")
    )
    return folder


def test_old_vulkan_headers_are_recognised(tmp_path: Path) -> None:
    old = write_vulkan_headers(tmp_path / "old", 239, fit=False)
    with pytest.raises(BuildError, match=r"only 1\.3\.239 in .*too old"):
        backends.find_vulkan(old)
    with pytest.raises(BuildError, match="no vulkan/vulkan_core.h"):
        backends.find_vulkan(tmp_path)
    new = write_vulkan_headers(tmp_path / "new" / "usr" / "include", 275, fit=True)
    found = backends.find_vulkan(tmp_path / "new")
    assert (found.headers, found.header_version) == (new, "1.3.275")


def test_backends_that_lack_their_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_program", lambda *names: None)
    monkeypatch.setattr(sys, "platform", "linux")
    for backend, needed in (("cuda", "nvcc"), ("hip", "hipconfig"), ("metal", "macOS")):
        with pytest.raises(BuildError, match=needed):
            backends.choose(backend, None, None)
    with pytest.raises(BuildError, match="no backend 'cudda'.*auto, metal"):
        backends.choose("cudda", None, None)


# --- tools --------------------------------------------------------------------------------------


def test_no_compiler_is_an_error_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name, **_: _only_apt(name))
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(BuildError, match="no C and no C.. compiler") as caught:
        toolchain.find_compilers()
    assert "sudo apt-get install -y build-essential" in str(caught.value)


def _only_apt(name: str) -> str | None:
    return "/usr/bin/apt-get" if name == "apt-get" else None


def test_a_compiler_variable_that_points_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"'no-such-compiler' \(from \$CXX\)"):
        toolchain.find_compilers()


@pytest.mark.slow
def test_cmake_and_ninja_come_from_the_package_index(
    cache: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a PATH that has compilers but neither tool."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cc", "c++", "gcc", "g++", "ld", "as", "ar", "ranlib", "sh", "uname", "nm"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    build = build_llama.ensure("cpu", source_path=tree, report=quiet())
    assert build.version == "0.0.1-tiny"
    (found,) = (cache / "tools").glob("cmake-*/cmake/data/bin/cmake")
    assert found.exists()


# --- progress -----------------------------------------------------------------------------------


def test_progress_ignores_the_build_inside_the_build() -> None:
    seen: list[tuple[float, float]] = []
    read = compile.ninja_reader(lambda done, total, note: seen.append((done, total)))
    for line in ("[1/200] a.o", "[1/2] shader", "[2/2] shader", "[2/199] b.o", "noise [3/199]"):
        read(line + "\n")
    assert seen == [(1, 200), (2, 199)]


def test_plain_lines_without_a_terminal() -> None:
    out = io.StringIO()
    with Reporter(out).step("Compiling") as step:
        for done in range(1000):
            step.update(done, 1000, "file.o")
    lines = out.getvalue().splitlines()
    assert lines[0] == "Compiling ..."
    assert re.fullmatch(r"Compiling: done in \d+\.\d s", lines[-1])
    assert len(lines) < 15


# --- uma-chat -------------------------------------------------------------------------------------

def test_a_source_without_a_chat_layer_makes_a_build_without_uma_chat(
    cache: Path, tree: Path
) -> None:
    done = run("--backend", "cpu", "--source", tree)
    assert done.returncode == 0
    why = "the llama.cpp source of this build has no chat layer that is known (no common/chat.h)"
    assert f"warning: conversations (`messages`) will be refused: {why}" in done.stdout
    (build,) = builds.installed()
    assert build.chat_program is None and not build.lacks_chat and build.why_no_chat == why
    assert "without uma-chat" in run("--list").stdout


def test_a_chat_layer_that_does_not_compile_costs_no_library(cache: Path, tree: Path) -> None:
    for name in programs.FOR_CHAT:
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("#error the moon is full\n")
    done = run("--backend", "cpu", "--source", tree)
    assert done.returncode == 0 and "compiling uma-chat failed" in done.stdout
    (build,) = builds.installed()
    assert build.chat_program is None and "could not be built" in build.why_no_chat
    again = run("--backend", "cpu", "--source", tree)
    assert again.returncode == 0 and "compiling" not in again.stdout, "it is not tried again"


def test_uma_chat_is_added_to_a_build_and_made_anew_after_an_edit(
    cache: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_llama.ensure("cpu", source_path=tree, report=quiet())
    stamp = first.library.stat().st_mtime_ns
    sources = tmp_path / "native"
    sources.mkdir()
    (sources / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.19)\nproject(uma-chat CXX)\n"
        "add_executable(uma-chat main.cpp)\n"
    )
    (sources / "main.cpp").write_text("int main() { return 7; }\n")
    monkeypatch.setattr(builds, "CHAT_SOURCES", sources)
    monkeypatch.setattr(programs, "FOR_CHAT", ())
    for status in (7, 8):
        (sources / "main.cpp").write_text(f"int main() {{ return {status}; }}\n")
        builds.chat_digest.cache_clear()
        assert first.lacks_chat and "python build_llama.py" in first.why_no_chat
        build = build_llama.ensure("cpu", source_path=tree, report=quiet())
        assert build.chat_program is not None and not build.why_no_chat
        assert subprocess.run([build.chat_program]).returncode == status
    assert build == first and build.library.stat().st_mtime_ns == stamp
    builds.chat_digest.cache_clear()


def test_a_source_that_cannot_be_had_costs_conversations_alone(
    cache: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_llama.ensure("cpu", source_path=tree, report=quiet())
    shutil.rmtree(first.chat_dir)

    def unpack(*_: object) -> Path:
        raise BuildError("there is no network")

    monkeypatch.setattr(source, "unpack", unpack)
    report = quiet()
    assert build_llama.ensure("cpu", source_path=tree, report=report) == first
    assert "there is no network" in report.stream.getvalue()  # type: ignore[attr-defined]
