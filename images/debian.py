"""Debian packages, as a rule for arm64, from where this machine's apt gets its own: no place is written down here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.errors import USAGE, ImageError
from images.programs import output, run

SUITE: Final = "bookworm"
"""The release of Debian that gateways run."""
HOOKS: Final = "/usr/share/mmdebstrap/hooks"
DATE: Final = 1577836800
"""Of every file Debian's packages do not date, seconds since 1970: the same packages make the same tree."""
APT: Final = ('--aptopt=Apt::Install-Recommends "false"', "--aptopt=Acquire::Retries 3", "--dpkgopt=force-unsafe-io")


class Mirror:
    """Where packages come from."""

    def __init__(self, address: str | None = None, security: str | None = None) -> None:
        """`address`: of a mirror of Debian; None: what this machine's apt is set up with. `security`: of one of
        Debian's security updates; None: beside the other, where mirrors have it."""
        if security is not None and address is None:
            raise ImageError("--security-mirror goes with --mirror", code=USAGE)
        self._address = address
        self._security = security or f"{(address or '').rstrip('/')}-security"

    @property
    def named(self) -> tuple[str, ...]:
        """What was said of it: of another mirror everything is made anew."""
        return () if self._address is None else (self._address, self._security)

    def sources(self, components: str) -> str:
        """Lines for apt. Raises ImageError where this machine knows no archive of `SUITE`."""
        if self._address is not None:
            places = ((self._address, ("", "-updates")), (self._security, ("-security",)))
            named = (f"{address} {SUITE}{suite}" for address, suites in places for suite in suites)
            return "".join(f"deb {line} {components}\n" for line in named)
        asked = ("--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages", "Origin: Debian")
        found = dict.fromkeys(output("apt-get", "indextargets", *asked).splitlines())
        lines = [f"deb {line} {components}" for line in found if line.split()[-1].partition("-")[0] == SUITE]
        if not lines:
            raise ImageError(
                f"apt on this machine knows no archive of Debian {SUITE}",
                hint="sudo apt update; or name a mirror with --mirror",
            )
        return "".join(f"{line}\n" for line in lines)

    def unpack(self, root: Path, packages: Sequence[str], *, log: Path) -> None:
        """Lay out packages and what they need, without running anything of theirs."""
        options = ("--variant=extract", f"--hook-dir={HOOKS}/merged-usr")
        self._run(root, packages, "main", options, log)

    def install(self, target: Path, packages: Sequence[str], options: Sequence[str], *, log: Path) -> None:
        """Make a root file system, as an archive where the name of `target` ends with .tar."""
        self._run(target, packages, "main non-free-firmware", ("--variant=apt", *options), log)

    def small(self, target: Path, architecture: str, packages: Sequence[str], *, log: Path) -> None:
        """The same for a container: what is essential, these packages, and no documentation."""
        leave = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "info", "locale", "man")]
        options = ("--variant=essential", *leave, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
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


def quoted(path: Path) -> str:
    """For a hook of mmdebstrap, which is a line of shell."""
    return shlex.quote(str(path))
