"""Reports of devices about their updates: a SQLite database in the folder of the artefacts.

It decides what a device is offered next. The report itself is a message of the store, for the hub; it is written here
after that, so a report that is lost here is requested again. It blocks: use it from one thread at a time.
"""

from __future__ import annotations

import enum
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Self

import msgspec

from bridge.artefacts.limits import NAME_LENGTH_MAX
from edge.appliance.artefacts.database import open_or_replace, require_intact, translated_errors
from edge.appliance.artefacts.limits import REASON_CHARACTERS_MAX, REPORTS_DROPPED, REPORTS_MAX

if TYPE_CHECKING:
    from bridge.artefacts.manifest import ArtefactManifest

FILE: Final = "reports.db"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS reports (
    device TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL, sequence INTEGER NOT NULL,
    state TEXT NOT NULL, published INTEGER NOT NULL, UNIQUE (device, name, version)
);
CREATE TABLE IF NOT EXISTS devices (device TEXT NOT NULL UNIQUE, board TEXT NOT NULL, version TEXT NOT NULL);
"""
_REPORTS_TRIM: Final = "DELETE FROM reports WHERE rowid IN (SELECT rowid FROM reports ORDER BY rowid LIMIT ?)"
_DEVICES_TRIM: Final = "DELETE FROM devices WHERE rowid IN (SELECT rowid FROM devices ORDER BY rowid LIMIT ?)"


class UpdateState(enum.Enum):
    """Progress of a device with an artefact."""

    DOWNLOADING = "downloading"
    VERIFIED = "verified"
    """The device has all bytes, and has verified them."""
    INSTALLED = "installed"
    HEALTHY = "healthy"
    """The device runs it without problems."""
    ROLLED_BACK = "rolled-back"
    """The device has refused it, or is back on the version before."""

    @property
    def final(self) -> bool:
        """True when the artefact is not offered again."""
        return self in (UpdateState.INSTALLED, UpdateState.HEALTHY, UpdateState.ROLLED_BACK)


class UpdateReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Report of a device about an artefact."""

    state: UpdateState
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    """Reason of a failure."""


class UpdateMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Message about a report, for the hub."""

    device: str
    artefact: str
    version: str
    state: UpdateState
    reason: str


class KnownReport(NamedTuple):
    """Last report of a device about one artefact."""

    name: str
    version: str
    digest: str
    """SHA-256 of its image: a version that was signed again is another artefact."""
    sequence: int
    state: UpdateState
    published: bool
    """The message was taken."""


class ReportedDevice(NamedTuple):
    """Board, version and reports of a device."""

    board: str = ""
    """Its board; empty: unknown."""
    version: str = ""
    """Version that it runs, by its attributes; empty: unknown."""
    reports: tuple[KnownReport, ...] = ()
    """The oldest first."""

    def about(self, manifest: ArtefactManifest) -> KnownReport | None:
        """Return the report about an artefact; None without one."""
        mine = (manifest.name, manifest.version, manifest.digest)
        return next((each for each in self.reports if each[:3] == mine), None)

    def installed(self, name: str) -> str | None:
        """Return the version that the device runs, by its last report about this name, or by its attributes; None:
        unknown."""
        last = self._last_good(name)
        return last.version if last is not None else self.version or None

    def last(self, name: str) -> KnownReport | None:
        """Return the last report about any version of a name; None without one."""
        return next((each for each in reversed(self.reports) if each.name == name), None)

    def sequence(self, name: str) -> int:
        """Return the sequence of the version that the device runs; 0: unknown."""
        last = self._last_good(name)
        return 0 if last is None else last.sequence

    def _last_good(self, name: str) -> KnownReport | None:
        good = (UpdateState.INSTALLED, UpdateState.HEALTHY)
        found = [each for each in self.reports if each.name == name and each.state in good]
        return found[-1] if found else None


class DeviceReports:
    """The database of one gateway. Methods raise `IndexUnusable`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open or create the database in a folder. A damaged one is replaced: devices report again."""
        path = folder / FILE
        return cls(open_or_replace(path, _prepare), path)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def get(self, device: str) -> ReportedDevice:
        """Return what a device has reported."""
        with self._errors():
            rows = self._connection.execute(
                "SELECT name, version, digest, sequence, state, published FROM reports WHERE device = ? ORDER BY rowid",
                (device,),
            ).fetchall()
            said = self._connection.execute("SELECT board, version FROM devices WHERE device = ?", (device,)).fetchone()
        board, version = said or ("", "")
        return ReportedDevice(board, version, tuple(map(_report, rows)))

    def put(self, device: str, report: KnownReport) -> None:
        """Record a report. The oldest are dropped beyond `REPORTS_MAX`."""
        with self._errors():
            self._connection.execute(
                "REPLACE INTO reports (device, name, version, digest, sequence, state, published)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (device, *report[:4], report.state.value, report.published),
            )
            self._trim("SELECT count(*) FROM reports", _REPORTS_TRIM)

    def expect_again(self, device: str, report: KnownReport) -> None:
        """Note that a device reports again about an artefact that it had ended: its next end is another message."""
        with self._errors():
            self._connection.execute(
                "UPDATE reports SET published = 0 WHERE device = ? AND name = ? AND version = ?",
                (device, report.name, report.version),
            )

    def put_device(self, device: str, board: str, version: str) -> None:
        """Record the attributes of a device: its board and version."""
        with self._errors():
            row = (device, board[:NAME_LENGTH_MAX], version[:NAME_LENGTH_MAX])
            self._connection.execute("REPLACE INTO devices (device, board, version) VALUES (?, ?, ?)", row)
            self._trim("SELECT count(*) FROM devices", _DEVICES_TRIM)

    def _trim(self, count: str, trim: str) -> None:
        (rows,) = self._connection.execute(count).fetchone()
        if rows > REPORTS_MAX:
            self._connection.execute(trim, (REPORTS_DROPPED,))

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._path)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.executescript(_SCHEMA)
    require_intact(connection)


def _report(row: tuple[str, str, str, int, str, int]) -> KnownReport:
    name, version, digest, sequence, state, published = row
    return KnownReport(name, version, digest, sequence, UpdateState(state), bool(published))
