"""Freeze a program for arm64 on another machine: compile what can be cross-compiled, and emulate PyInstaller alone.

Debian's Python for arm64 is unpacked, not installed. Nothing has to run for that, so it takes half a minute and not a
quarter of an hour. This machine's pip unpacks wheels for arm64. Proton has none, and is compiled by a cross compiler
against the headers there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from images import source
from images.debian import EMULATED, IMAGES, DebianRelease, Mirror
from images.errors import USAGE, ImageError
from images.frozen import freezing, libraries
from images.frozen.freezing import BUILD_FILES, GATEWAY, FrozenProgram
from images.frozen.lock_file import find_required, select_entries
from images.programs import find, require, run
from images.steps import BuildSteps

PACKAGES: Final = (
    "bash", "binutils", "coreutils", "libc-bin", "libc6-dev", "libffi8", "libsqlite3-0", "libssl-dev", "python3-dev",
)  # fmt: skip
"""Debian packages: Python with its headers, and what PyInstaller needs to read libraries."""
RECIPE: Final = "1"
"""Version of the steps here. A new one builds everything again when the steps change and their inputs do not."""
BINFMT: Final = Path("/proc/sys/fs/binfmt_misc")
"""Folder of the kernel with the kinds of programs that have an interpreter."""
TRIPLET: Final = "aarch64-linux-gnu"
PROGRAMS: Final = ("mmdebstrap", "qemu-aarch64-static", f"{TRIPLET}-gcc", "chroot", "readelf")
TAGS: Final = (
    "manylinux_2_36",
    "manylinux_2_34",
    "manylinux_2_31",
    "manylinux_2_28",
    "manylinux_2_17",
    "manylinux2014",
    "linux",
)
"""Tags of wheels that run there."""
BUILT_USING: Final = "built-using"
"""File next to a frozen gateway: what it contains of Debian, in the form of that field of a package."""
COMPILED_HERE: Final = "python-qpid-proton"
LEFT_OUT: Final = {"markdown-it-py", "mdurl", "pygments"}
"""Requirements of rich for parts that no program uses. The specifications exclude their modules."""


def make_environment(release: DebianRelease) -> dict[str, str]:
    """Return the environment for the markers of requirements (PEP 508)."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "aarch64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{release.python}.2",
        "python_version": release.python,
        "sys_platform": "linux",
    }


def freeze(steps: BuildSteps, mirror: Mirror, program: FrozenProgram = GATEWAY, *, fresh: bool = False) -> Path:
    """Return a program for arm64. Raises ImageError.

    `fresh`: with Debian's newest Python and libraries.
    """
    source.require_checkout()
    require(*PROGRAMS)
    if os.geteuid() != 0:
        raise ImageError("laying out programs of another machine requires root", hint="use sudo", code=USAGE)
    require_emulation()
    release = mirror.release
    wanted = _list_packages(program, release) | find_required("pyinstaller", make_environment(release))
    wanted |= {"pyinstaller"}
    lock = source.LOCK.read_text()
    root = unpack_python(steps, mirror, fresh=fresh)
    debian = libraries.find_sources(root, [*libraries.PACKAGES, *libraries.list_needed(root, release.python)])
    wheels = select_entries(lock, wanted - {COMPILED_HERE})
    unpacked = steps.result(
        f"libraries{program.suffix}-arm64",
        f"Python packages of the {program.title} for arm64",
        [release.python, wheels, *TAGS],
        lambda folder, log: _unpack_wheels(folder, release, wheels, log),
    )
    packages, compiled = [unpacked], select_entries(lock, wanted & {COMPILED_HERE})
    if compiled:
        proton = steps.result(
            "proton-arm64",
            "Proton for arm64, cross-compiled",
            [RECIPE, release.python, compiled, *PACKAGES],
            lambda folder, log: _compile_proton(folder, release, compiled, root, log),
        )
        packages.append(proton)
    made = steps.result(
        f"frozen{program.suffix}-aarch64",
        f"{program.title} for aarch64, frozen (emulated)",
        [*freezing.list_inputs(program), Path(libraries.__file__), wheels, compiled, *PACKAGES, *debian, RECIPE],
        lambda folder, log: _freeze(folder, program, release, root, packages, log),
    )
    return made / program.name


def _list_packages(program: FrozenProgram, release: DebianRelease) -> set[str]:
    """Return the names of the Python packages of a program."""
    return (find_required(program.requirement, make_environment(release)) | program.packages) - LEFT_OUT


def pinned_versions(release: DebianRelease = IMAGES) -> Mapping[str, str]:
    """Return the versions of the Python packages in a frozen gateway, by name. Raises ImageError."""
    lines = select_entries(
        source.LOCK.read_text(), _list_packages(GATEWAY, release) | {"pyinstaller"}
    )  # its boot loader is in the program
    return dict(re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s;\\]+)", lines))


def require_emulation(registry: Path = BINFMT) -> None:
    """Raise ImageError if the kernel does not run programs for arm64."""
    if not (registry / "qemu-aarch64").exists():
        raise ImageError(
            "the kernel of this machine does not run programs for arm64 yet, though the emulator is installed",
            hint="sudo systemctl restart systemd-binfmt\n"
            f"without systemd: mount -t binfmt_misc none {BINFMT}; then /usr/lib/systemd/systemd-binfmt",
            code=USAGE,
        )


def unpack_python(steps: BuildSteps, mirror: Mirror, *, fresh: bool = False) -> Path:
    """Return a root file system of arm64 with Debian's Python, unpacked and not installed. Raises ImageError."""
    made = steps.result(
        "python-arm64",
        f"Python {mirror.release.python} for arm64 (Debian)",
        [*PACKAGES, *mirror.cache_inputs],
        lambda folder, log: mirror.unpack(folder / "root", PACKAGES, log=log),
        again=fresh,
    )
    return made / "root"


def _pip_command(*arguments: str | Path) -> tuple[str | Path, ...]:
    return (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments)


def _unpack_wheels(folder: Path, release: DebianRelease, lock: str, log: Path) -> None:
    (folder / "lock").write_text(lock)
    tags = [word for tag in TAGS for word in ("--platform", f"{tag}_aarch64")]
    options = ("--python-version", release.python, "--implementation", "cp", "--only-binary", ":all:", "--no-compile")
    where = ("--target", folder / "packages", "--no-deps", "--require-hashes", "-r", folder / "lock")
    run(*_pip_command("install", *tags, *options, *where), log=log)


def _compile_proton(folder: Path, release: DebianRelease, lock: str, root: Path, log: Path) -> None:
    """Cross-compile Proton: its build asks Python how to compile, and gets the answers of arm64's Python."""
    (folder / "lock").write_text(lock)
    answers = f"_sysconfigdata__{TRIPLET}"
    shutil.copy(root / f"usr/lib/python{release.python}/{answers}.py", folder)
    includes = _header_options(root, release)
    gcc = shlex.join([f"{TRIPLET}-gcc", f"--sysroot={root}"])
    environment = {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "_PYTHON_SYSCONFIGDATA_NAME": answers,
        "PYTHONPATH": str(folder),
        "CC": f"{gcc} {shlex.join(includes)}",
        "LDSHARED": f"{gcc} -shared -L{shlex.quote(str(root))}/usr/lib/{TRIPLET}",
        "CFLAGS": "-O2 -fPIC",
        "PKG_CONFIG_LIBDIR": f"{root}/usr/lib/{TRIPLET}/pkgconfig",
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        "SOURCE_DATE_EPOCH": str(freezing.DATE),
    }
    options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "--require-hashes", "-r", folder / "lock")
    run(*_pip_command("wheel", "--wheel-dir", folder / "wheel", *options), log=log, environment=environment)
    wheels = sorted((folder / "wheel").glob("*.whl"))
    target = ("--target", folder / "packages", "--platform", "linux_aarch64", "--only-binary", ":all:", "--no-deps")
    python = ("--python-version", release.python, "--implementation", "cp", "--no-compile", "--no-index")
    run(*_pip_command("install", *target, *python, *wheels), log=log)


def _header_options(root: Path, release: DebianRelease) -> list[str]:
    """Return compiler options for the headers of Python and C in a root."""
    return [f"-I{root}/usr/include/{name}" for name in (f"python{release.python}", TRIPLET, "")]


def _freeze(
    folder: Path, program: FrozenProgram, release: DebianRelease, root: Path, packages: list[Path], log: Path
) -> None:
    """Run PyInstaller in a copy of the root, in the emulator that the kernel starts for programs of arm64."""
    place = folder / "root"
    run("cp", "-a", "--reflink=auto", root, place, log=log)
    build = place / "build"
    _copy_sources(program, build / "source")
    if program.extension:
        compiler = {"CC": shlex.join([f"{TRIPLET}-gcc", f"--sysroot={root}", *_header_options(root, release)])}
        run(sys.executable, build / "source" / "hatch_build.py", log=log, environment=compiler)
    for each in packages:
        shutil.copytree(each / "packages", build / "packages", dirs_exist_ok=True)
    entry = freezing.write_entry(build / "work", program)
    inside = freezing.build_environment(program, Path("/build/source"), Path("/build") / entry.relative_to(build))
    inside["PYTHONPATH"] = "/build/source:/build/packages"
    inside |= {"PATH": "/usr/sbin:/usr/bin", "HOME": "/build", **EMULATED}
    target = {"root": "/build/source", "work": "/build/work", "target": "/build/made"}
    words = freezing.build_command(program, "/usr/bin/python3", **target)
    variables = (f"{name}={value}" for name, value in inside.items())
    run("env", "-i", *variables, find("chroot") or "chroot", place, *words, log=log)
    made = folder / program.name
    (build / "made" / program.name).replace(made)
    freezing.keep_warnings(build / "work", program, folder)
    if made.is_dir():
        found = libraries.find_sources(root, libraries.list_libraries(made))
        (folder / BUILT_USING).write_text(", ".join(found))
    shutil.rmtree(place)


def _copy_sources(program: FrozenProgram, target: Path) -> None:
    """Copy what PyInstaller reads of the checkout."""
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    for package in program.sources:
        shutil.copytree(source.ROOT / package, target / package, ignore=leave)
        for parent in Path(package).parents[:-1]:
            shutil.copy(source.ROOT / parent / "__init__.py", target / parent)
    spec = target / program.spec.relative_to(source.ROOT)
    spec.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program.spec, spec)
    for name in BUILD_FILES if program.extension else ():
        shutil.copy(source.ROOT / name, target)
