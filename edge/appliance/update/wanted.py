"""Files by which a gateway orders a system, and by which the update services report progress.

The gateway downloads and installs nothing itself. It writes `WantedSystem` into its data directory while there is
something to do. One service downloads the bundle as the gateway's user, another installs it as root. Both write their
progress to files, which this module reads.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from bridge.desired import SystemPhase, SystemReport
from bridge.hidden import hides
from bridge.proxy import Proxy
from edge.appliance.first_boot.places import write_whole
from edge.appliance.update.limits import FILE_BYTES_MAX
from edge.appliance.update.record import Update, UpdateRecord

FOLDER: Final = "update"
"""In the gateway's data directory."""
WANTED: Final = "wanted.json"
FETCHED: Final = "fetched.json"
ROOT: Final = "run/waypost-root/sha256"
"""Of the root file system that runs, some seconds after each start (`waypost-root-hash.service`)."""

_PHASES: Final = {"installing": SystemPhase.INSTALLING, "trial": SystemPhase.TRYING}


@hides("proxy")
class WantedSystem(msgspec.Struct, frozen=True, kw_only=True):
    """A system, and how its bundle is fetched; fields are those of `SystemSpec`."""

    version: str
    build: str
    url: str
    sha256: str
    size: int
    rate: int | None = None
    quiet_hours: str | None = None
    start_jitter_s: float = 0.0
    gateway: str = ""
    """Its name: when the gateway begins depends on it."""
    keep_free: int = 0
    """Bytes of the medium that are for messages."""
    proxy: Proxy | None = None
    """What the hub is reached through, and the bundle too."""


class DownloadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the fetching is."""

    sha256: str = ""
    """Of the bundle it is about."""
    bytes: int = 0
    trouble: str = ""
    """What it waits for."""
    wrong: int = 0
    """How often what came was another one than it should be."""
    refused: str = ""
    """Why it is not fetched any more."""


Document = TypeVar("Document", WantedSystem, DownloadProgress)


class WantedFiles:
    """Of one data directory. Reading raises nothing: what cannot be read says nothing."""

    def __init__(self, data: Path) -> None:
        self.folder = data / FOLDER

    def bundle(self, wanted: WantedSystem) -> Path:
        """Where all of it is, and is what it should be."""
        return self.folder / f"{wanted.sha256}.raucb"

    def part(self, wanted: WantedSystem) -> Path:
        """Where as much of it is as has come."""
        return self.folder / f"{wanted.sha256}.part"

    def wanted(self) -> WantedSystem | None:
        """None: there is nothing to do."""
        return _read(self.folder / WANTED, WantedSystem)

    def wanted_since(self) -> float:
        """UTC seconds since 1970; now, where nothing is."""
        try:
            return (self.folder / WANTED).stat().st_mtime
        except OSError:
            return time.time()

    def want(self, wanted: WantedSystem | None) -> None:
        """On disk on return; without a wish nothing stays of what was fetched. Raises OSError."""
        if wanted is None:
            (self.folder / WANTED).unlink(missing_ok=True)  # who fetches sees it first
            for path in self.folder.glob("*"):
                path.unlink(missing_ok=True)
        elif wanted != self.wanted():
            write_whole(self.folder / WANTED, msgspec.json.encode(wanted), mode=0o600)

    def fetched(self) -> DownloadProgress:
        """What was noted last."""
        return _read(self.folder / FETCHED, DownloadProgress) or DownloadProgress()

    def note(self, fetched: DownloadProgress) -> None:
        """Raises OSError."""
        write_whole(self.folder / FETCHED, msgspec.json.encode(fetched), mode=0o600)


class MachineSystems(NamedTuple):
    """What is known of a machine's systems."""

    running: str
    """SHA-256 of the root that runs; empty: not yet."""
    last: Update | None
    """The last update."""

    @classmethod
    def of(cls, root: Path) -> MachineSystems:
        """As it is now."""
        try:
            last = UpdateRecord(root).last()
            running = (root / ROOT).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return cls("", last)
        except (OSError, UnicodeError):
            return cls("", None)
        return cls(running, last)


def report(wanted: WantedSystem, machine: MachineSystems, fetched: DownloadProgress) -> SystemReport:
    """How far a machine is with a system."""
    last = machine.last if machine.last is not None and machine.last.build == wanted.build else None
    decided = _decided(wanted, machine, last)
    phase, why, percent = (*decided, 0) if decided is not None else _on_the_way(wanted, last, fetched)
    return SystemReport(version=wanted.version, phase=phase, why=why, percent=percent)


def _decided(wanted: WantedSystem, machine: MachineSystems, last: Update | None) -> tuple[SystemPhase, str] | None:
    """As far as the slots and their record say; None: nothing. `last`: the last update, where it is to this."""
    if last is not None and last.undecided:
        return _PHASES[last.state], ""
    if machine.running == wanted.build:
        return SystemPhase.KEPT, ""
    if last is not None and last.state == "given up":
        return (SystemPhase.ROLLED_BACK if last.ran else SystemPhase.REFUSED), last.why
    return None if machine.running else (SystemPhase.WAITING, "what runs now is being looked at")


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
