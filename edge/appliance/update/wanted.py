"""Files of a gateway's order for a system, and of the progress of the update services.

The gateway downloads and installs nothing itself. It writes `WantedSystem` into its data directory while there is
something to do. One service downloads the bundle as the gateway's user, another installs it as root. Both write their
progress to files, which this module reads.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from bridge.block_index import SUFFIX
from bridge.desired import SystemPhase, SystemReport
from bridge.hidden import hides
from bridge.proxy import Proxy
from edge.appliance.first_boot.places import write_whole
from edge.appliance.update.limits import FILE_BYTES_MAX
from edge.appliance.update.record import Update, UpdateRecord
from edge.broker.configuration import TlsFiles

FOLDER: Final = "update"
"""Folder in the gateway's data directory."""
WANTED: Final = "wanted.json"
FETCHED: Final = "fetched.json"
ROOT: Final = "run/waypost-root/sha256"
"""File with the digest of the running root file system, some seconds after each start (`waypost-root-hash.service`)."""

_PHASES: Final = {"installing": SystemPhase.INSTALLING, "trial": SystemPhase.TRYING}


@hides("proxy")
class WantedSystem(msgspec.Struct, frozen=True, kw_only=True):
    """System to run, and how to download its bundle. Fields are those of `SystemSpec`."""

    version: str
    build: str
    url: str
    sha256: str
    size: int
    rate: int | None = None
    quiet_hours: str | None = None
    start_jitter_s: float = 0.0
    gateway: str = ""
    """Name of the gateway; the start jitter is derived from it."""
    keep_free: int = 0
    """Bytes of the medium that are reserved for messages."""
    proxy: Proxy | None = None
    """Proxy for the hub, also used for the bundle."""
    more_urls: tuple[str, ...] = ()
    """Further URLs of the bundle, tried in turn: a hub may have several."""
    tls: TlsFiles | None = None
    """Files for TLS with the hub, for a bundle there; None for other servers, which do not see our certificate."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All URLs of the bundle."""
        return (self.url, *self.more_urls)


class DownloadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a download."""

    sha256: str = ""
    """SHA-256 of the bundle."""
    bytes: int = 0
    trouble: str = ""
    """Reason why it waits, or why it failed last."""
    wrong: int = 0
    """Number of downloads with a wrong checksum."""
    copied: int = 0
    """Bytes of it that came from the running system; counted from zero after a power cut."""
    index_failures: int = 0
    """Number of failures of the index of its blocks; at the limit, all of it is fetched."""
    refused: str = ""
    """Reason why it is no longer downloaded."""


Document = TypeVar("Document", WantedSystem, DownloadProgress)


class WantedFiles:
    """Files in one data directory. Reading does not raise: an unreadable file counts as missing."""

    def __init__(self, data: Path) -> None:
        self.folder = data / FOLDER

    def bundle(self, wanted: WantedSystem) -> Path:
        """Return the path of the complete and verified bundle."""
        return self.folder / f"{wanted.sha256}.raucb"

    def part(self, wanted: WantedSystem) -> Path:
        """Return the path of the partial download."""
        return self.folder / f"{wanted.sha256}.part"

    def index(self, wanted: WantedSystem) -> Path:
        """Return the path of the complete index of the bundle's blocks."""
        return self.folder / f"{wanted.sha256}{SUFFIX}"

    def index_part(self, wanted: WantedSystem) -> Path:
        """Return the path of the partial index."""
        return self.folder / f"{wanted.sha256}{SUFFIX}.part"

    def wanted(self) -> WantedSystem | None:
        """Return the wanted system; None: there is nothing to do."""
        return _read(self.folder / WANTED, WantedSystem)

    def wanted_since(self) -> float:
        """Return since when it is wanted, in UTC seconds since 1970; the current time without a wanted system."""
        try:
            return (self.folder / WANTED).stat().st_mtime
        except OSError:
            return time.time()

    def set_wanted(self, wanted: WantedSystem | None) -> None:
        """Write the wanted system, on disk on return; None removes it and all downloads. Raises OSError."""
        if wanted is None:
            (self.folder / WANTED).unlink(missing_ok=True)  # first, so that the download stops
            for path in self.folder.glob("*"):
                if path.suffix != ".new":  # a download that has not noticed it yet is renaming it
                    path.unlink(missing_ok=True)
        elif wanted != self.wanted():
            write_whole(self.folder / WANTED, msgspec.json.encode(wanted), mode=0o600)

    def fetched(self) -> DownloadProgress:
        """Return the last recorded progress of the download."""
        return _read(self.folder / FETCHED, DownloadProgress) or DownloadProgress()

    def note(self, fetched: DownloadProgress) -> None:
        """Record the progress of the download. Raises OSError."""
        write_whole(self.folder / FETCHED, msgspec.json.encode(fetched), mode=0o600)


class MachineSystems(NamedTuple):
    """State of a machine's systems."""

    running: str
    """SHA-256 of the running root file system; empty: not known yet."""
    last: Update | None
    """The last update."""

    @classmethod
    def of(cls, root: Path) -> MachineSystems:
        """Read the current state."""
        try:
            last = UpdateRecord(root).last()
            running = (root / ROOT).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return cls("", last)
        except (OSError, UnicodeError):
            return cls("", None)
        return cls(running, last)


def report(wanted: WantedSystem, machine: MachineSystems, fetched: DownloadProgress) -> SystemReport:
    """Return a machine's progress with a wanted system."""
    last = machine.last if machine.last is not None and machine.last.build == wanted.build else None
    decided = _decided(wanted, machine, last)
    phase, why, percent = (*decided, 0) if decided is not None else _on_the_way(wanted, last, fetched)
    return SystemReport(version=wanted.version, phase=phase, why=why, percent=percent)


def _decided(wanted: WantedSystem, machine: MachineSystems, last: Update | None) -> tuple[SystemPhase, str] | None:
    """Return the phase that slots and record determine; None: they do not. `last`: the last update, if it is to this
    system."""
    if last is not None and last.undecided:
        return _PHASES[last.state], ""
    if machine.running == wanted.build:
        return SystemPhase.KEPT, ""
    if last is not None and last.state == "given up":
        return (SystemPhase.ROLLED_BACK if last.ran else SystemPhase.REFUSED), last.why
    return None if machine.running else (SystemPhase.WAITING, "the running system is being identified")


def _on_the_way(wanted: WantedSystem, last: Update | None, fetched: DownloadProgress) -> tuple[SystemPhase, str, int]:
    if fetched.sha256 != wanted.sha256:
        return SystemPhase.WAITING, "", 0
    if fetched.refused:
        return SystemPhase.REFUSED, fetched.refused, 0
    if fetched.bytes >= wanted.size:
        return SystemPhase.INSTALLING, fetched.trouble or (last.why if last is not None else ""), 100
    return SystemPhase.FETCHING, fetched.trouble, fetched.bytes * 10 // wanted.size * 10


def _read(file: Path, kind: type[Document]) -> Document | None:
    try:
        with file.open("rb") as source:
            return msgspec.json.decode(source.read(FILE_BYTES_MAX), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
