"""Reports of devices about their updates: a SQLite database in the folder of the artefacts.

It decides what a device is offered next. The report itself is a message of the store, for the hub; it is written here
after that, so a report that is lost here is requested again. It blocks: use it from one thread at a time.
"""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Self

import msgspec

from bridge.artefacts.limits import NAME_LENGTH_MAX
from bridge.artefacts.report import UpdateState
from edge.appliance.artefacts.database import open_or_replace, require_intact, translated_errors
from edge.appliance.artefacts.limits import (
    DEVICE_REPORTS_MAX,
    HISTORY_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    REPORTS_BYTES_MAX,
    REPORTS_COUNTED_EVERY,
    REPORTS_DROPPED,
    REPORTS_MAX,
)

if TYPE_CHECKING:
    from bridge.artefacts.manifest import ArtefactManifest
    from bridge.device_pages import OfferedUpdate

FILE: Final = "reports.db"
FORMAT: Final = 3
"""Version of the file's layout. A file of another one is replaced: devices report again. One of `_BEFORE` is kept."""
_BEFORE: Final = 2
_ADDITION: Final = (
    "ALTER TABLE reports ADD COLUMN campaign TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE reports ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;"
)
_SCHEMA: Final = """
CREATE TABLE reports (
    device TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL, sequence INTEGER NOT NULL,
    state TEXT NOT NULL, published INTEGER NOT NULL, number INTEGER NOT NULL, goes_on INTEGER NOT NULL,
    history TEXT NOT NULL, campaign TEXT NOT NULL DEFAULT '', attempt INTEGER NOT NULL DEFAULT 0,
    UNIQUE (device, name, version)
);
CREATE TABLE devices (device TEXT NOT NULL UNIQUE, board TEXT NOT NULL, version TEXT NOT NULL);
"""
_REPORTS_TRIM: Final = "DELETE FROM reports WHERE rowid IN (SELECT rowid FROM reports ORDER BY rowid LIMIT ?)"
_DEVICES_TRIM: Final = "DELETE FROM devices WHERE rowid IN (SELECT rowid FROM devices ORDER BY rowid LIMIT ?)"
_DEVICE_TRIM: Final = (
    "DELETE FROM reports WHERE device = ? AND rowid NOT IN"
    " (SELECT rowid FROM reports WHERE device = ? ORDER BY rowid DESC LIMIT ?)"
)


class UpdateReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Report of a device about an artefact."""

    state: UpdateState
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    """Reason of a failure."""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?\\Z")] = ""
    """SHA-256 of the image, hexadecimal; empty: that of the present image of this version."""


class ReportedArtefact(NamedTuple):
    """Artefact of a report. The gateway may have it no longer, or may never have had it."""

    name: str
    version: str
    digest: str = ""
    """SHA-256 of its image: a version that was signed again is another artefact. Empty: unknown."""
    sequence: int = 0
    """0: unknown."""
    number: int = 0
    """Number at this gateway; 0: unknown."""

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


class KnownReport(NamedTuple):
    """Last report of a device about one artefact."""

    name: str
    version: str
    digest: str
    """As in `ReportedArtefact`."""
    sequence: int
    state: UpdateState
    published: bool
    """The message was taken."""
    number: int = 0
    """As in `ReportedArtefact`."""
    goes_on: bool = False
    """The device has refused to cancel this update."""
    history: str = ""
    """Its reports so far, one a line, the newest first."""
    campaign: str = ""
    """Campaign of the hub that offered the artefact at its report; empty without one, or if it is unknown."""
    attempt: int = 0
    """Campaigns before it in which the device has ended an update to this artefact."""

    @property
    def artefact(self) -> ReportedArtefact:
        """Artefact that it is about."""
        return ReportedArtefact(self.name, self.version, self.digest, self.sequence, self.number)


class ReportedDevice(NamedTuple):
    """Board, version and reports of a device."""

    board: str = ""
    """Its board; empty: unknown."""
    version: str = ""
    """Version that it runs, by its attributes; empty: unknown."""
    reports: tuple[KnownReport, ...] = ()
    """The oldest first."""

    def about(self, artefact: ReportedArtefact | ArtefactManifest) -> KnownReport | None:
        """Return the report about an artefact; None without one."""
        mine = (artefact.name, artefact.version, artefact.digest)
        return next((each for each in self.reports if each[:3] == mine), None)

    def of_version(self, name: str, version: str) -> KnownReport | None:
        """Return the report about an artefact of this name and version; None without one."""
        return next((each for each in self.reports if each[:2] == (name, version)), None)

    def of_number(self, number: int) -> KnownReport | None:
        """Return the report about the artefact of this number; None without one."""
        return next((each for each in self.reports if each.number == number), None)

    def installed(self, name: str) -> str | None:
        """Return the version that the device runs, by its last report about this name, or by its attributes; None:
        unknown."""
        last = self._last_good(name)
        return last.version if last is not None else self.version or None

    def runs(self, manifest: ArtefactManifest) -> bool:
        """Return whether the device says by its attributes that it runs this firmware, and has reported none of its
        name."""
        if manifest.kind.value != "firmware" or self._last_good(manifest.name) is not None:
            return False
        return bool(self.version) and self.version == manifest.version

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


def attempt_after(report: KnownReport | None, offer: OfferedUpdate | None) -> int:
    """Return the attempt of a device with an artefact. `report`: its last one about it. A client that has had the
    number of an action does not try it again, and some report a success."""
    if report is None:
        return 0
    return report.attempt + (report.state.final and is_before(report, offer))


def is_before(report: KnownReport | None, offer: OfferedUpdate | None) -> bool:
    """Return whether a report was made before the campaign of an offer began for its device."""
    if report is None or offer is None:
        return False
    return bool(offer.campaign) and report.campaign != offer.campaign


class DeviceReports:
    """The database of one gateway. Methods raise `IndexUnusable`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._changes = -1
        """Changes since the file was opened; the first one counts the rows."""

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
                "SELECT name, version, digest, sequence, state, published, number, goes_on, history, campaign, attempt"
                " FROM reports WHERE device = ? ORDER BY rowid",
                (device,),
            ).fetchall()
            said = self._connection.execute("SELECT board, version FROM devices WHERE device = ?", (device,)).fetchone()
        board, version = said or ("", "")
        return ReportedDevice(board, version, tuple(map(_report, rows)))

    def put(self, device: str, report: KnownReport) -> None:
        """Record a report. The oldest are dropped beyond `REPORTS_MAX`, those of a device beyond
        `DEVICE_REPORTS_MAX`, and all together beyond `REPORTS_BYTES_MAX`."""
        with self._errors():
            row = report._replace(history=report.history[:HISTORY_CHARACTERS_MAX])
            self._connection.execute(
                "REPLACE INTO reports"
                " (device, name, version, digest, sequence, state, published, number, goes_on, history,"
                " campaign, attempt) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (device, *row[:4], row.state.value, *row[5:]),
            )
            self._connection.execute(_DEVICE_TRIM, (device, device, DEVICE_REPORTS_MAX))
            self._trim()

    def expect_again(self, device: str, report: KnownReport) -> None:
        """Note that a device reports again about an artefact that it had ended: its next end is another message."""
        with self._errors():
            self._connection.execute(
                "UPDATE reports SET published = 0 WHERE device = ? AND name = ? AND version = ?",
                (device, report.name, report.version),
            )

    def forget(self, device: str, report: KnownReport) -> None:
        """Forget a report, so that its artefact may be offered again."""
        with self._errors():
            self._connection.execute(
                "DELETE FROM reports WHERE device = ? AND name = ? AND version = ?",
                (device, report.name, report.version),
            )

    def mark_going_on(self, device: str, report: KnownReport) -> None:
        """Record that a device does not cancel an update."""
        with self._errors():
            self._connection.execute(
                "UPDATE reports SET goes_on = 1 WHERE device = ? AND name = ? AND version = ?",
                (device, report.name, report.version),
            )

    def put_device(self, device: str, board: str, version: str) -> None:
        """Record the attributes of a device: its board and version."""
        with self._errors():
            row = (device, board[:NAME_LENGTH_MAX], version[:NAME_LENGTH_MAX])
            self._connection.execute("REPLACE INTO devices (device, board, version) VALUES (?, ?, ?)", row)
            self._trim()

    def _trim(self) -> None:
        """Drop the oldest rows of the table with more of them while a limit is exceeded."""
        self._changes += 1
        if self._changes % REPORTS_COUNTED_EVERY and self._used_bytes() <= REPORTS_BYTES_MAX:
            return
        while True:
            reports = self._number("SELECT count(*) FROM reports")
            devices = self._number("SELECT count(*) FROM devices")
            if max(reports, devices) <= REPORTS_MAX and self._used_bytes() <= REPORTS_BYTES_MAX:
                return
            trim = _REPORTS_TRIM if reports >= devices else _DEVICES_TRIM
            dropped = min(REPORTS_DROPPED, -(-max(reports, devices) // 2))
            if not self._connection.execute(trim, (dropped,)).rowcount:
                return

    def _number(self, question: str) -> int:
        return int(self._connection.execute(question).fetchone()[0])

    def _used_bytes(self) -> int:
        """Return the bytes of the file without its free pages, which are used again."""
        used = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
        return used * self._number("PRAGMA page_size")

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._path)


def _prepare(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables:
        connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {FORMAT};COMMIT;")
    elif version == _BEFORE:
        connection.executescript(f"BEGIN;{_ADDITION}PRAGMA user_version = {FORMAT};COMMIT;")
    elif version != FORMAT:
        raise sqlite3.DatabaseError("another format")
    require_intact(connection)


def _report(row: tuple[str, str, str, int, str, int, int, int, str, str, int]) -> KnownReport:
    name, version, digest, sequence, state, published, number, goes_on, history, campaign, attempt = row
    flags = UpdateState(state), bool(published)
    found = KnownReport(name, version, digest, sequence, *flags, number, bool(goes_on), history)
    return found._replace(campaign=campaign, attempt=attempt)
