"""Compilers, cmake, ninja, headers: those of the machine, and remedies where some are missing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from umaserve.kept import in_use
from umaserve.llama import builds
from umaserve.system.own_python import run_module
from umaserve.system.private_folder import make_private, require_private

from . import BuildError
from .locking import file_lock
from .process import run_logged
from .progress import Reporter

CMAKE_MINIMUM = (3, 19)
LOCK = Path(__file__).with_name("tools.lock")
"""Pins each program that may come from the package index: its version, its wheels' hashes."""

# pip's words for a file whose hash differs from the hash asked for.
_MISMATCH = "DO NOT MATCH THE HASHES"

# Names of the missing pieces by package manager.
_PACKAGES = {
    "compiler": {"apt-get": "build-essential", "dnf": "gcc-c++", "pacman": "base-devel"},
    "python headers": {"apt-get": "python3-dev", "dnf": "python3-devel", "pacman": "python"},
    "glslc": {"apt-get": "glslc", "dnf": "glslc", "pacman": "shaderc", "brew": "shaderc"},
    "vulkan headers": {
        "apt-get": "libvulkan-dev",
        "dnf": "vulkan-headers",
        "pacman": "vulkan-headers",
        "brew": "vulkan-headers",
    },
    "vulkan loader": {
        "apt-get": "libvulkan-dev",
        "dnf": "vulkan-loader-devel",
        "pacman": "vulkan-icd-loader",
        "brew": "vulkan-loader molten-vk",
    },
    "spirv headers": {
        "apt-get": "spirv-headers",
        "dnf": "spirv-headers-devel",
        "pacman": "spirv-headers",
        "brew": "spirv-headers",
    },
}
_INSTALL = {
    "apt-get": "sudo apt-get install -y",
    "dnf": "sudo dnf install -y",
    "pacman": "sudo pacman -S --needed",
    "brew": "brew install",
}


@dataclass(frozen=True)
class Toolchain:
    """Absolute paths (or names) of the tools, and the command lines of the compilers."""

    cc: str
    cxx: str
    cmake: str
    ninja: str


def install_command(*things: str) -> str:
    """The command that installs `things` (keys of the table above) on this machine."""
    if sys.platform == "darwin" and "compiler" in things:
        return "xcode-select --install"
    managers = ("brew",) if sys.platform == "darwin" else ("apt-get", "dnf", "pacman", "brew")
    for manager in managers:
        if shutil.which(manager):
            names = [_PACKAGES[thing].get(manager, "") for thing in things]
            unique = list(dict.fromkeys(" ".join(names).split()))
            if unique:
                return f"{_INSTALL[manager]} {' '.join(unique)}"
    return f"install {', '.join(things)} with your system's package manager"


def find_compilers() -> tuple[str, str]:
    """The C and the C++ compiler: ``$CC`` and ``$CXX``, else cc/c++, gcc/g++ or clang/clang++."""
    cc, cxx = os.environ.get("CC"), os.environ.get("CXX")
    for c_name, cxx_name in (("cc", "c++"), ("gcc", "g++"), ("clang", "clang++")):
        cc = cc or shutil.which(c_name)
        cxx = cxx or shutil.which(cxx_name)
    missing = [name for name, found in (("C", cc), ("C++", cxx)) if not found]
    if cc is None or cxx is None:
        raise BuildError(
            f"no {' and no '.join(missing)} compiler was found.\n"
            f"Install one, then run this again:  {install_command('compiler')}"
        )
    for name, found in (("CC", cc), ("CXX", cxx)):
        if shutil.which(found.split()[0]) is None:
            raise BuildError(
                f"the compiler {found!r} (from ${name}) is not there.\n"
                f"Unset ${name} or point it at a compiler that exists."
            )
    return cc, cxx


def find_toolchain(log: Path, report: Reporter) -> Toolchain:
    """Everything that a build needs; cmake and ninja come from the package index if need be."""
    cc, cxx = find_compilers()
    cmake = shutil.which("cmake")
    if cmake is not None and _version(cmake) < CMAKE_MINIMUM:
        have = ".".join(map(str, _version(cmake)))
        report.say(f"cmake {have} is older than {'.'.join(map(str, CMAKE_MINIMUM))}")
        cmake = None
    ninja = shutil.which("ninja") or shutil.which("ninja-build")
    if cmake is None:
        cmake = from_index("cmake", log, report)
    if ninja is None:
        ninja = from_index("ninja", log, report)
    return Toolchain(cc=cc, cxx=cxx, cmake=cmake, ninja=ninja)


def _version(program: str) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in match.groups()) if match else (0, 0)


def locked(program: str) -> tuple[str, str]:
    """The version of `program` that is pinned, and its lines of the lock file, with hashes."""
    lines = rf"^{program}==(\S+).*\\\n(?: +--hash=sha256:[0-9a-f]{{64}}(?: \\)?\n)+"
    match = re.search(lines, LOCK.read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise BuildError(f"{LOCK} pins no {program}.\nInstall {program} so that it is on PATH.")
    return match.group(1), match.group(0)


def from_index(program: str, log: Path, report: Reporter) -> str:
    """Path of the pinned `program`, installed by pip into a folder of the cache."""
    version, requirement = locked(program)
    folder = builds.cache_root() / "tools" / f"{program}-{version}-{builds.python_abi()}"
    make_private(folder.parent)
    found = _installed_program(folder, program)
    if found is not None:
        in_use.hold(folder)
        return found

    with file_lock(folder.parent / f".{folder.name}.lock", f"installing {program}", report.say):
        found = _installed_program(folder, program)
        if found is not None:
            return found
        aside = folder.parent / f".tmp-{folder.name}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            _install(f"{program} {version}", requirement, aside, log, report)
            shutil.rmtree(folder, ignore_errors=True)
            (aside / "tree").rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    found = _installed_program(folder, program)
    if found is None:
        raise BuildError(
            f"the package {program} {version} holds no {program} program.\n"
            f"Install {program} yourself, so that it is on PATH, and run this again."
        )
    return found


def _install(name: str, requirement: str, aside: Path, log: Path, report: Reporter) -> None:
    """Lets pip unpack the wheel that `requirement` pins into ``aside/tree``, and no other."""
    aside.mkdir()
    requirements = aside / "requirements.txt"
    requirements.write_text(requirement, "utf-8")
    # From source it would be built by packages that no hash covers.
    command: list[str | Path] = [
        *pip_command(), "install", "--require-hashes", "--only-binary", ":all:", "--no-deps",
        "--progress-bar", "off", "--target", aside / "tree", "-r", requirements,
    ]  # fmt: skip
    by_hand = f"Install {name.split()[0]} yourself, so that it is on PATH, and run this again."
    with report.step(f"Fetching {name} from the package index") as step:
        try:
            run_logged(
                command,
                log,
                what=f"installing {name}",
                hint=by_hand,
                on_line=lambda line: step.update(None, None, line.strip()),
            )
        except BuildError as error:
            if _MISMATCH not in str(error):
                raise
            raise BuildError(
                f"{name} from the package index is not the file that this project was made with.\n"
                f"It was not installed.  {error}\n"
                "Look at which package index pip is configured for before anything else."
            ) from error


def _installed_program(folder: Path, program: str) -> str | None:
    # The wheels' own bin/ scripts need the package on sys.path; the program itself does not.
    for path in (folder / program / "data" / "bin" / program, folder / "bin" / program):
        if path.is_file() and os.access(path, os.X_OK):
            require_private(path)
            return str(path)
    return None


def pip_command() -> list[str]:
    """The command line of pip for the running Python."""
    command = run_module("pip")
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"{sys.executable} has no pip, which fetches what is missing.\n"
            f"Install it, then run this again:  {sys.executable} -m ensurepip"
        )
    return [*command, "--disable-pip-version-check", "--no-input"]


def fetch_commands(folder: Path) -> str:
    """Shell script that unpacks newer Vulkan and SPIR-V headers below `folder` through apt.

    apt works on lists and a cache of its own in `folder`, so nothing of the system changes and no
    root is needed. The mirror is the one that the system's own sources name.
    """
    release = _os_release()
    suite = {"debian": "trixie", "ubuntu": "noble"}.get(release)
    if suite is None or not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise BuildError(
            "newer Vulkan headers can be fetched on Debian and Ubuntu only.\n"
            "Elsewhere unpack them by hand and give --vulkan-headers DIR."
        )
    mirror, there = _apt_mirror(), shlex.quote(str(folder))
    keyring = Path(f"/usr/share/keyrings/{release}-archive-keyring.gpg")
    signed = f"[signed-by={keyring}] " if keyring.exists() else ""
    options = (
        f"-o Dir::Etc::SourceList={there}/apt/sources.list -o Dir::Etc::SourceParts=/dev/null "
        f"-o Dir::State::Lists={there}/apt/lists -o Dir::Cache={there}/apt/cache "
        "-o APT::Sandbox::User= -o Acquire::Languages=none"
    )
    section = "main" if release == "debian" else "main universe"
    return (
        f"set -eu\nmkdir -p {there}/apt/lists/partial {there}/apt/cache/archives/partial\n"
        f"cd {there}/apt\n"
        f"echo 'deb {signed}{mirror} {suite} {section}' > sources.list\n"
        f"apt-get {options} update\n"
        f"apt-get {options} download libvulkan-dev spirv-headers\n"
        f'for deb in *.deb; do dpkg-deb -x "$deb" {there}; done\n'
    )


def _os_release() -> str:
    try:
        text = Path("/etc/os-release").read_text("utf-8")
    except OSError:
        return ""
    match = re.search(r'^ID="?(\w+)', text, flags=re.MULTILINE)
    return match.group(1) if match else ""


def _apt_mirror() -> str:
    """The first Debian or Ubuntu mirror in apt's own sources."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for mirror in done.stdout.split():
        if "debian" in mirror or "ubuntu" in mirror:
            return mirror
    raise BuildError("apt names no mirror; run apt-get update, then this again.")
