"""Debian packages, for arm64 unless stated otherwise, from the archives that this machine's apt uses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from images.errors import USAGE, ImageError
from images.programs import run, run_for_output

EMULATED: Final = {"QEMU_CPU": "cortex-a72"}
"""Variables of programs for arm64 that the emulator runs. Debian 13 is compiled with pointer authentication. The
default processor of the emulator computes it, and Python takes twelve times as long; that of a Raspberry Pi 4 has none.
"""
HOOKS: Final = "/usr/share/mmdebstrap/hooks"
DATE: Final = 1577836800
"""Date (seconds since 1970) of files without a date of their own, so that the same packages give the same tree."""
APT: Final = ('--aptopt=Apt::Install-Recommends "false"', "--aptopt=Acquire::Retries 3", "--dpkgopt=force-unsafe-io")

EXPIRED: Final = '--aptopt=Acquire::Check-Valid-Until "false"'
"""Option to accept an archive after the end of its validity. Signatures are verified all the same."""


class Borrowed(NamedTuple):
    """Packages that a release takes from another suite."""

    suite: str
    sources: tuple[str, ...]
    """Names of source packages."""


class DebianRelease(NamedTuple):
    """Release of Debian that a gateway is built from."""

    number: str
    suite: str
    python: str
    """Version of its Python."""
    borrowed: tuple[Borrowed, ...] = ()

    @property
    def title(self) -> str:
        return f"Debian {self.number} ({self.suite})"


KERNEL_SOURCES: Final = ("linux", "linux-signed-arm64", "linux-base")
"""Source packages of a kernel."""
DEBIAN_12: Final = DebianRelease("12", "bookworm", "3.11")
RAUC_SOURCES: Final = ("rauc", "libnl3")
"""Source packages of RAUC, and of the library that it needs in a newer version."""
DEBIAN_13: Final = DebianRelease(
    "13", "trixie", "3.13", (Borrowed("trixie-backports", KERNEL_SOURCES), Borrowed("forky", RAUC_SOURCES))
)
"""Its own kernel, 6.12, has no driver for the network and USB of a Raspberry Pi 5. Its own RAUC, 1.13, does not read
the status of dm-verity since Linux 6.19.
"""
RELEASES: Final = {each.number: each for each in (DEBIAN_12, DEBIAN_13)}
"""Releases of packages and images, by number. Older images have the first one too."""
OLDEST: Final = DEBIAN_12
"""Release for packages and containers: a program runs on the release that it was built on, and on newer ones."""
IMAGES: Final = DEBIAN_13
"""Release of images."""
PREFERENCES: Final = "etc/apt/preferences.d/waypost"
SUITE_NAME: Final = re.compile(r"^(\S+ )[a-z]+")
"""URL of an archive, and the name of its suite without ``-security`` or ``-updates``."""
PRIORITY: Final = 500
"""Priority of a package of the release itself (apt_preferences(5)). A negative one is never taken."""


class Mirror:
    """Source of Debian packages."""

    def __init__(
        self,
        address: str | None = None,
        security: str | None = None,
        release: DebianRelease = OLDEST,
        *,
        expired: bool = False,
    ) -> None:
        """Set the mirrors.

        `address`: URL of a Debian mirror; None: the mirrors of this machine's apt. `security`: URL of a mirror of the
        security updates; None: `address` with the suffix ``-security``. `release`: release of the packages. `expired`:
        also accept an archive after the end of its validity, as that of a snapshot.
        """
        if security is not None and address is None:
            raise ImageError("--security-mirror requires --mirror", code=USAGE)
        self._address = address
        self._security = security or f"{(address or '').rstrip('/')}-security"
        self.release = release
        self._expired = expired

    @property
    def cache_inputs(self) -> tuple[str, ...]:
        """Inputs that invalidate cached build steps: steps run again after a change of release or mirror."""
        places = () if self._address is None else (self._address, self._security)
        return (
            self.release.suite,
            *(word for each in self.release.borrowed for word in (each.suite, *each.sources)),
            *places,
        )

    def sources(self, components: str, *, borrowed: bool = False) -> str:
        """Return the lines of sources.list. Raises ImageError if apt on this machine has no archive of Debian.

        `borrowed`: add the other suites that the release takes packages from.
        """
        suite = self.release.suite
        places = self._named_places() if self._address is not None else self._apt_places()
        if borrowed:
            own = [place.removesuffix(f" {suite}") for place in places if place.endswith(f" {suite}")]
            places += [f"{address} {each.suite}" for address in own for each in self.release.borrowed]
        return "".join(f"deb {place} {components}\n" for place in dict.fromkeys(places))

    def _named_places(self) -> list[str]:
        """Return URL and suite of each archive on the named mirrors."""
        suite = self.release.suite
        return [f"{self._address} {suite}", f"{self._address} {suite}-updates", f"{self._security} {suite}-security"]

    def _apt_places(self) -> list[str]:
        """Return URL and suite of each archive that apt uses; for a release that it does not use, those of the same
        mirrors, which have all releases.
        """
        suite = self.release.suite
        query = ("--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages", "Origin: Debian")
        found = dict.fromkeys(run_for_output("apt-get", "indextargets", *query).splitlines())
        places = [line for line in found if line.split()[-1].partition("-")[0] == suite]
        if not places:
            places = [SUITE_NAME.sub(rf"\1{suite}", line) for line in found]
        if not places:
            raise ImageError(
                f"apt on this machine has no archive of Debian {suite}",
                hint="sudo apt update; or name a mirror with --mirror",
            )
        return places

    def unpack(self, root: Path, packages: Sequence[str], *, log: Path) -> None:
        """Unpack packages and their dependencies without running any of their programs."""
        options = ("--variant=extract", f"--hook-dir={HOOKS}/merged-usr")
        self._run(root, packages, self.sources("main"), options, log)

    def install(self, target: Path, packages: Sequence[str], options: Sequence[str], *, log: Path) -> None:
        """Create a root file system, as an archive if the name of `target` ends with .tar."""
        lines = self.sources("main non-free-firmware", borrowed=True)
        self._run(target, packages, lines, ("--variant=apt", *self._preferences(), *options), log)

    def install_small(self, target: Path, architecture: str, packages: Sequence[str], *, log: Path) -> None:
        """Create a root file system for a container: essential packages and `packages`, without documentation."""
        excluded = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "info", "locale", "man")]
        options = ("--variant=essential", *excluded, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
        self._run(target, packages, self.sources("main"), options, log, architecture=architecture)

    def _preferences(self) -> Sequence[str]:
        """Return the option that lets apt take only the borrowed packages from other suites."""
        if not self.release.borrowed:
            return ()
        pins = []
        for suite, names in self.release.borrowed:
            sources = " ".join(f"src:{name}" for name in names)
            pins += [f"Package: *\\nPin: release n={suite}\\nPin-Priority: -1"]
            pins += [f"Package: {sources}\\nPin: release n={suite}\\nPin-Priority: {PRIORITY}"]
        text = "\\n\\n".join(pins)
        return (f'--setup-hook=mkdir -p "$1/etc/apt/preferences.d" && printf \'{text}\\n\' > "$1/{PREFERENCES}"',)

    def _run(
        self,
        target: Path,
        packages: Sequence[str],
        lines: str,
        options: Sequence[str],
        log: Path,
        *,
        architecture: str = "arm64",
    ) -> None:
        common = (f"--architectures={architecture}", "--mode=root", *APT, f"--include={','.join(packages)}")
        validity = (EXPIRED,) if self._expired else ()
        words: list[str | Path] = ["mmdebstrap", *common, *validity, *options, self.release.suite, target, "-"]
        environment = {"SOURCE_DATE_EPOCH": str(DATE), **EMULATED}
        try:
            run(*words, log=log, environment=environment, given=lines)
        except ImageError as error:
            if not self._expired and "is expired" in error.message:
                hint = f"update the mirror; or accept an old archive, as that of a snapshot: --expired; {error.hint}"
            elif self._address is None and f" {self.release.suite}" in error.message:
                hint = f"--mirror names another mirror, which has {self.release.title}; {error.hint}"
            elif self._address is not None and self._security in error.message:
                hint = f"--security-mirror names another mirror of Debian's security updates; {error.hint}"
            else:
                raise
            raise ImageError(error.message, hint=hint) from None


def quote_path(path: Path) -> str:
    """Quote a path for a hook of mmdebstrap, which is a line of shell."""
    return shlex.quote(str(path))
