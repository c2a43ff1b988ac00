"""Debian packages, for arm64 unless stated otherwise, from the archives that this machine's apt uses."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.errors import USAGE, ImageError
from images.programs import run, run_for_output

SUITE: Final = "bookworm"
"""The release of Debian that gateways run."""
HOOKS: Final = "/usr/share/mmdebstrap/hooks"
DATE: Final = 1577836800
"""Date (seconds since 1970) of files without a date of their own, so that the same packages give the same tree."""
APT: Final = ('--aptopt=Apt::Install-Recommends "false"', "--aptopt=Acquire::Retries 3", "--dpkgopt=force-unsafe-io")


class Mirror:
    """Source of Debian packages."""

    def __init__(self, address: str | None = None, security: str | None = None) -> None:
        """Set the mirrors.

        `address`: URL of a Debian mirror; None: the mirrors of this machine's apt. `security`: URL of a mirror of the
        security updates; None: `address` with the suffix ``-security``.
        """
        if security is not None and address is None:
            raise ImageError("--security-mirror requires --mirror", code=USAGE)
        self._address = address
        self._security = security or f"{(address or '').rstrip('/')}-security"

    @property
    def cache_inputs(self) -> tuple[str, ...]:
        """Inputs that invalidate cached build steps: steps run again after a change of mirror."""
        return () if self._address is None else (self._address, self._security)

    def sources(self, components: str) -> str:
        """Return the lines of sources.list. Raises ImageError if apt on this machine has no archive of `SUITE`."""
        if self._address is not None:
            places = ((self._address, ("", "-updates")), (self._security, ("-security",)))
            named = (f"{address} {SUITE}{suite}" for address, suites in places for suite in suites)
            return "".join(f"deb {line} {components}\n" for line in named)
        query = ("--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages", "Origin: Debian")
        found = dict.fromkeys(run_for_output("apt-get", "indextargets", *query).splitlines())
        lines = [f"deb {line} {components}" for line in found if line.split()[-1].partition("-")[0] == SUITE]
        if not lines:
            raise ImageError(
                f"apt on this machine has no archive of Debian {SUITE}",
                hint="sudo apt update; or name a mirror with --mirror",
            )
        return "".join(f"{line}\n" for line in lines)

    def unpack(self, root: Path, packages: Sequence[str], *, log: Path) -> None:
        """Unpack packages and their dependencies without running any of their programs."""
        options = ("--variant=extract", f"--hook-dir={HOOKS}/merged-usr")
        self._run(root, packages, "main", options, log)

    def install(self, target: Path, packages: Sequence[str], options: Sequence[str], *, log: Path) -> None:
        """Create a root file system, as an archive if the name of `target` ends with .tar."""
        self._run(target, packages, "main non-free-firmware", ("--variant=apt", *options), log)

    def install_small(self, target: Path, architecture: str, packages: Sequence[str], *, log: Path) -> None:
        """Create a root file system for a container: essential packages and `packages`, without documentation."""
        excluded = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "info", "locale", "man")]
        options = ("--variant=essential", *excluded, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
        self._run(target, packages, "main", options, log, architecture=architecture)

    def _run(
        self,
        target: Path,
        packages: Sequence[str],
        components: str,
        options: Sequence[str],
        log: Path,
        *,
        architecture: str = "arm64",
    ) -> None:
        common = (f"--architectures={architecture}", "--mode=root", *APT, f"--include={','.join(packages)}")
        words: list[str | Path] = ["mmdebstrap", *common, *options, SUITE, target, "-"]
        environment = {"SOURCE_DATE_EPOCH": str(DATE)}
        try:
            run(*words, log=log, environment=environment, given=self.sources(components))
        except ImageError as error:
            if self._address is None or self._security not in error.message:
                raise
            hint = f"--security-mirror names another mirror of Debian's security updates; {error.hint}"
            raise ImageError(error.message, hint=hint) from None


def quote_path(path: Path) -> str:
    """Quote a path for a hook of mmdebstrap, which is a line of shell."""
    return shlex.quote(str(path))
