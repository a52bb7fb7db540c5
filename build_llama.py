"""Fetches, builds and caches libllama, and compiles the Python binding against its headers.

    python build_llama.py                     # the best backend for this machine
    python build_llama.py --backend vulkan    # a certain one
    python build_llama.py --list              # what is there already

`ensure` is the same from Python: it returns at once where the build exists. Builds are made aside
and moved into the cache whole, so an interrupted one leaves nothing, and two at once end with one.

Long: the command line, with every check that has to come before the first import of the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from umaserve import __version__
from umaserve.cli.parts.common import guarded
from umaserve.llama import builds
from umaserve.llama.building import (
    BuildError,
    backends,
    compile,
    git,
    programs,
    samplers,
    source,
)
from umaserve.llama.building.locking import file_lock, try_lock
from umaserve.llama.building.process import run_logged
from umaserve.llama.building.progress import Reporter
from umaserve.llama.building.toolchain import fetch_commands, find_compilers, find_toolchain
from umaserve.llama.builds import Build, installed, refused, select
from umaserve.system.private_folder import NotPrivate, make_private, require_private_within

__all__ = ["Build", "BuildError", "ensure", "ensure_binding", "installed", "main", "select"]


def ensure(
    backend: str = "auto",
    *,
    source_path: Path | None = None,
    git_tag: str | None = None,
    portable: bool = False,
    with_peers: bool = False,
    with_eyes: bool = False,
    with_samplers: bool = False,
    vulkan_headers: Path | None = None,
    cmake_args: Sequence[str] = (),
    jobs: int | None = None,
    report: Reporter | None = None,
) -> Build:
    """The build that these options describe, with the binding for the running Python.

    Builds what is missing, reporting to `report` (standard output by default). ``with_peers`` and
    ``with_eyes`` build llama.cpp's own programs and uma-eyes too. ``with_samplers`` compiles
    samplers and scheduler while uma-chat is built. Where ``$UMA_LLAMA_BUILD`` names a build, that
    one is used and nothing is chosen. Raises `BuildError` or, where others could change what lies
    in the cache, `NotPrivate`; the messages say what to do.
    """
    report = report if report is not None else Reporter()
    forced = _forced_build()
    if forced is not None:
        ensure_binding(forced, report)
        return forced
    make_private(builds.builds_root())
    what = source.choose(source_path, git_tag)
    if what.revision is not None:
        git.warn_if_moved(what.revision, report)
    choice = backends.choose(backend, vulkan_headers, _failed_before(what, portable, cmake_args))
    plan = _plan(what, choice, portable, cmake_args, jobs)
    build = builds.read_build(builds.builds_root() / plan.key)
    if build is not None:
        require_private_within(build.path)
    more = _More(with_peers, with_eyes, with_samplers)
    if build is None or build.lacks_chat or more.is_missing(build):
        report.say(f"Backend {choice.backend}: {choice.why}")
        try:
            build = _build(what, plan, more, report)
        except BuildError as error:
            if build is not None and not more.is_missing(build):
                lost = "prompts are served; conversations are not, without uma-chat"
                report.say(f"{error}\nwarning: {lost}")
                ensure_binding(build, report)
                return build
            if backend != "auto" or choice.backend != "vulkan":
                raise
            report.say(f"{error}\nwarning: the Vulkan build failed; building for the CPU instead")
            _failure_mark(plan.key).write_text(str(_log_path(plan.key)), "utf-8")
            choice = backends.choose("cpu", None, None)
            plan = _plan(what, choice, portable, cmake_args, jobs)
            build = _build(what, plan, more, report)
    ensure_binding(build, report)
    return build


def _forced_build() -> Build | None:
    key = os.environ.get(builds.BUILD_VARIABLE)
    if not key:
        return None
    build = builds.named()
    if build is None:
        raise BuildError(
            f"${builds.BUILD_VARIABLE} names {key!r}, and there is no such build.\n"
            f"See which there are with: {builds.BUILD_COMMAND} --list"
        )
    require_private_within(build.path)
    return build


def _plan(
    what: source.Source,
    choice: backends.Choice,
    portable: bool,
    cmake_args: Sequence[str],
    jobs: int | None,
) -> compile.Plan:
    return compile.Plan(
        key=_key(what, choice.backend, portable, cmake_args),
        choice=choice,
        source=what,
        portable=portable,
        extra=tuple(cmake_args),
        jobs=jobs or compile.default_jobs(),
    )


def _key(what: source.Source, backend: str, portable: bool, cmake_args: Sequence[str]) -> str:
    """Folder name of a build: version, backend, machine and, shortened, everything else."""
    cpu = "portable" if portable else builds.cpu_signature()
    parts = [what.ident, backend, builds.machine_tag(), cpu]
    if cmake_args:
        parts.append(hashlib.sha256("\0".join(cmake_args).encode()).hexdigest()[:8])
    return "-".join(parts)


def _failure_mark(key: str) -> Path:
    return builds.builds_root() / f".{key}.failed"


def _failed_before(what: source.Source, portable: bool, cmake_args: Sequence[str]) -> str | None:
    mark = _failure_mark(_key(what, "vulkan", portable, cmake_args))
    return mark.read_text("utf-8") if mark.exists() else None


def _log_path(key: str) -> Path:
    folder = builds.cache_root() / "logs"
    make_private(folder)
    return folder / f"{key}.log"


@dataclass(frozen=True)
class _More:
    """Programs to build besides the library and uma-chat."""

    peers: bool
    eyes: bool
    samplers: bool

    def is_missing(self, build: Build) -> bool:
        """Whether a program that is wanted is not there."""
        return (self.peers and not build.has_peers) or (self.eyes and not build.eyes_program)


def _build(what: source.Source, plan: compile.Plan, more: _More, report: Reporter) -> Build:
    """Makes what is missing of the build, the programs after the library, under its lock."""
    root = builds.builds_root()
    target = root / plan.key

    with file_lock(root / f".{plan.key}.lock", f"building {plan.key}", report.say) as lock:
        build = builds.read_build(target)
        if build is not None and not more.is_missing(build) and not build.lacks_chat:
            return build  # the one waited for made it
        _sweep(root, plan.key)
        log = _log_path(plan.key)
        log.write_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {plan.key}\n", "utf-8")
        aside = root / f".tmp-{plan.key}-{os.getpid()}"
        try:
            aside.mkdir()
            started = time.monotonic()
            tools = find_toolchain(log, report)
            report.say(f"Building from {what.description}; output goes to {log}")
            tree = source.unpack(what, aside / "source", log, report)
            commit = source.commit_of(what, tree)
            commands = compile.Commands(tools, log, report, lock, plan.jobs)
            if build is None:
                compiled = compile.compile_tree(tree, commit, aside / "build", plan, commands)
                compile.gather(tree, compiled, aside / "out", plan, tools)
                shutil.copy2(log, aside / "out" / "build.log")
                shutil.rmtree(target, ignore_errors=True)  # without a manifest it is no build
                (aside / "out").rename(target)
                build = builds.read_build(target)
            if build is not None and build.lacks_chat:
                with _samplers_meanwhile(build, more.samplers, report):
                    programs.make_chat(tree, build, aside, commands)
            if more.eyes and build is not None and not build.eyes_program:
                programs.make_eyes(tree, build, aside, commands)
            if more.peers and build is not None and not build.has_peers:
                compiled = compile.compile_tree(
                    tree, commit, aside / "peers", plan, commands, peers_of=target
                )
                compile.gather_peers(compiled, aside / "bin")
                shutil.rmtree(target / "bin", ignore_errors=True)
                (aside / "bin").rename(target / "bin")
            report.say(f"Built {plan.key} in {time.monotonic() - started:.0f} s")
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        _failure_mark(plan.key).unlink(missing_ok=True)
        build = builds.read_build(target)
    if build is None:
        raise BuildError(f"{target} is not whole after the build; see {log}")
    return build


def _samplers_meanwhile(
    build: Build, wanted: bool, report: Reporter
) -> contextlib.AbstractContextManager[None]:
    if not wanted:
        return contextlib.nullcontext()
    ensure_binding(build, report)
    return samplers.compiled_meanwhile(report)


def _sweep(root: Path, key: str) -> None:
    """Removes what interrupted builds left: ours, whose lock we hold, and any that is unlocked."""
    for lock in root.glob(".*.lock"):
        other = lock.name[1 : -len(".lock")]
        leftovers = list(root.glob(f".tmp-{other}-*"))
        if not leftovers:
            continue
        with contextlib.nullcontext(True) if other == key else try_lock(lock) as free:
            if free:
                for folder in leftovers:
                    shutil.rmtree(folder, ignore_errors=True)


def ensure_binding(build: Build, report: Reporter | None = None) -> None:
    """Compiles the binding of `build` for the running Python unless it is there."""
    from bindings import MODULE_NAME, module_dir, module_file

    report = report if report is not None else Reporter()
    folder = module_dir(build.path)
    if module_file(folder).exists():
        return
    from bindings.compile import compile_module

    doing = f"compiling the binding of {build.key}"
    with file_lock(folder.with_name(f".{folder.name}.lock"), doing, report.say):
        if module_file(folder).exists():
            return
        log = _log_path(f"binding-{build.key}")
        compiler = shlex.split(find_compilers()[0])
        versions = {
            "llama_version": build.version,
            "ggml_version": str(build.details.get("ggml_version", "")),
            "ggml_commit": build.commit,
            "key": build.key,
        }
        with report.step(f"Compiling the binding {MODULE_NAME}"):
            compile_module(build.lib_dir, build.include_dir, folder, compiler, versions, log)


def makes_again(build: Build) -> bool:
    """Whether `ensure` without options but the backend is about this very build."""
    return build.key == _key(source.choose(None, None), build.backend, False, ())


def fetch_vulkan_headers(report: Reporter) -> Path:
    """Unpacks newer Vulkan and SPIR-V headers into the cache through apt, without root."""
    folder = backends.fetched_headers_dir()
    aside = folder.with_name(f".tmp-{folder.name}")
    log = _log_path("vulkan-headers")

    lock = folder.with_name(f".{folder.name}.lock")
    with file_lock(lock, "fetching Vulkan headers", report.say):
        shutil.rmtree(aside, ignore_errors=True)
        try:
            with report.step("Fetching newer Vulkan headers") as step:
                run_logged(
                    ["sh", "-c", fetch_commands(aside)],
                    log,
                    what="fetching newer Vulkan headers",
                    hint="Or unpack newer headers by hand and give --vulkan-headers DIR.",
                    on_line=lambda line: step.update(None, None, line.strip()),
                )
            shutil.rmtree(aside / "apt")
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    report.say(f"Vulkan headers {backends.header_version(folder / 'usr' / 'include')} in {folder}")
    return folder


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end a build alike: children ended, temporary files removed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as a background job's is
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=builds.BUILD_COMMAND.removeprefix("python "),
        description="Fetches, builds and caches libllama, and compiles the Python binding.",
    )
    parser.add_argument("--version", action="version", version=f"umaserve {__version__}")
    parser.add_argument(
        "--backend", default="auto", choices=("auto", *builds.BACKENDS),
        help="where models run; auto: metal on macOS, else vulkan where it can be built, else cpu",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--source", type=Path, metavar="DIR|ARCHIVE",
        help="a llama.cpp tree, or an archive that contains one, instead of the pinned source",
    )  # fmt: skip
    where.add_argument(
        "--git-tag", nargs="?", const=source.GIT_COMMIT, metavar="TAG",
        help=f"fetch the source with git; without TAG, the pinned commit {source.GIT_COMMIT[:9]}",
    )  # fmt: skip
    parser.add_argument(
        "--with-peers", action="store_true", help=f"also build {', '.join(compile.PEERS)}"
    )
    parser.add_argument(
        "--with-eyes", action="store_true", help="also build uma-eyes, which reads pictures"
    )
    parser.add_argument(
        "--with-samplers", action="store_true",
        help="compile samplers and scheduler too, while uma-chat is built",
    )  # fmt: skip
    parser.add_argument(
        "--portable", action="store_true", help="for any CPU of its kind, not for this one only"
    )
    parser.add_argument(
        "--vulkan-headers", type=Path, metavar="DIR", help="Vulkan headers to use (holds vulkan/)"
    )
    parser.add_argument(
        "--fetch-vulkan-headers", action="store_true",
        help="first unpack newer Vulkan headers into the cache (Debian, Ubuntu; no root)",
    )  # fmt: skip
    parser.add_argument(
        "--cmake-arg", action="append", default=[], metavar="-DNAME=VALUE", dest="cmake_args",
        help="a further cmake argument (part of the cache key); may be given again",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, metavar="N", help="compilers to run at once")
    parser.add_argument("--list", action="store_true", help="list the builds that can run here")
    parser.add_argument("--print-path", action="store_true", help="print the build's folder only")
    parser.add_argument(
        "--quiet", action="store_true", help="say nothing where everything is there already"
    )
    return parser


def _list_builds(report: Reporter) -> None:
    found = installed()
    if not found:
        report.say(f"no build in {builds.builds_root()}; make one with: {builds.BUILD_COMMAND}")
    for number, build in enumerate(found):
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(build.created))
        peers = ", with llama-server" if build.has_peers else ""
        peers += "" if build.chat_program else ", without uma-chat"
        peers += ", with uma-eyes" if build.eyes_program else ""
        mark = "*" if number == 0 else " "
        report.say(f"{mark} {build.key}  ({build.version}, {build.commit}, made {made}{peers})")
    for why in refused():
        report.say(why)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0 done, 1 failed, 130 interrupted."""
    options = _parser().parse_args(arguments)
    report = Reporter(sys.stderr if options.print_path else None)
    try:
        with _interruptible():
            if options.list:
                _list_builds(report)
                return 0
            if options.jobs is not None and options.jobs < 1:
                raise BuildError("--jobs takes a number of at least 1.")
            if options.fetch_vulkan_headers:
                fetch_vulkan_headers(report)
            build = ensure(
                options.backend,
                source_path=options.source,
                git_tag=options.git_tag,
                portable=options.portable,
                with_peers=options.with_peers,
                with_eyes=options.with_eyes,
                with_samplers=options.with_samplers,
                vulkan_headers=options.vulkan_headers,
                cmake_args=options.cmake_args,
                jobs=options.jobs,
                report=report,
            )
    except (BuildError, NotPrivate) as error:
        print(f"build_llama: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"build_llama: {error}\nIs the disk full, or the cache not writable?  "
            f"The cache is {builds.cache_root()}; $UMA_CACHE_DIR moves it.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("build_llama: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    if options.print_path:
        print(build.path)
    elif not options.quiet:
        report.say(f"libllama {build.version} ({build.backend}) is ready: {build.path}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
