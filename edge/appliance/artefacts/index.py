"""Index of the artefacts of a gateway: a SQLite database in their folder.

A row is made when a manifest is accepted, and says when its image was verified. Rows of artefacts that were held once
stay when they are not wanted any more: a lower sequence of their name is a downgrade, unless it was held before. A
version that was signed again has two rows, until the new image is verified: the old one is superseded, and served.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

from bridge.artefacts.envelope import open_envelope
from bridge.artefacts.manifest import ArtefactManifest, decode_manifest
from edge.appliance.artefacts.database import open_or_replace, require_intact, translated_errors
from edge.appliance.artefacts.errors import IndexUnusable
from edge.appliance.artefacts.limits import NAMES_MAX, REMEMBERED_MAX

FILE: Final = "index.db"
FORMAT: Final = 4
"""Version of the file's layout; a newer program writes a higher number."""

_SCHEMA: Final = """
CREATE TABLE artefacts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    size INTEGER NOT NULL,
    envelope BLOB NOT NULL,
    stored INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    wrong INTEGER NOT NULL DEFAULT 0,
    sha1 TEXT NOT NULL DEFAULT '',
    md5 TEXT NOT NULL DEFAULT '',
    superseded INTEGER NOT NULL DEFAULT 0,
    UNIQUE (name, version, superseded)
);
CREATE TABLE sequences (name TEXT NOT NULL UNIQUE, sequence INTEGER NOT NULL);
"""
_ALL: Final = (
    "SELECT id, name, version, sequence, size, envelope, stored, held, wrong, sha1, md5, superseded FROM artefacts"
    " ORDER BY id"
)
_ONE: Final = (
    "SELECT id, name, version, sequence, size, envelope, stored, held, wrong, sha1, md5, superseded FROM artefacts"
    " WHERE name = ? AND version = ? AND superseded = 0"
)
_NUMBERED: Final = (
    "SELECT id, name, version, sequence, size, envelope, stored, held, wrong, sha1, md5, superseded FROM artefacts"
    " WHERE id = ?"
)
_BEFORE: Final = (
    "SELECT id, name, version, sequence, size, envelope, stored, held, wrong, sha1, md5, superseded FROM artefacts"
    " WHERE name = ? AND version = ? AND superseded != 0 AND stored ORDER BY id DESC LIMIT 1"
)
_NAMES: Final = "SELECT count(*) FROM (SELECT name FROM sequences UNION SELECT name FROM artefacts)"


class IndexedArtefact(NamedTuple):
    """Artefact of which the manifest was accepted."""

    id: int
    """Number that is never used again; its files are named by it."""
    name: str
    version: str
    sequence: int
    size: int
    envelope: bytes
    stored: bool
    """The image is verified and on disk."""
    held: bool
    """The image was on disk once."""
    wrong: int
    """Number of images with a wrong checksum so far."""
    sha1: str
    """Checksums of the image that old clients compare, hexadecimal; empty before it was stored."""
    md5: str
    superseded: bool = False
    """The version was signed again with another image; this one is served until that one is verified."""

    @property
    def manifest(self) -> ArtefactManifest:
        """Accepted manifest."""
        return decode_manifest(open_envelope(self.envelope).payload)


class ArtefactIndex:
    """The file. Calls block for some milliseconds; use it from one thread at a time. Methods raise `IndexUnusable`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open or create the file in a folder. A damaged one is replaced: its images are fetched again."""
        path = folder / FILE
        return cls(open_or_replace(path, partial(_prepare, path)), path)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def __iter__(self) -> Iterator[IndexedArtefact]:
        """Iterate over all artefacts, the oldest first."""
        with self._errors():
            rows = self._connection.execute(_ALL).fetchall()
        return iter([_artefact(row) for row in rows])

    def get(self, name: str, version: str) -> IndexedArtefact | None:
        """Return an artefact; None if it is unknown."""
        with self._errors():
            found = self._connection.execute(_ONE, (name, version)).fetchone()
        return None if found is None else _artefact(found)

    def of_number(self, number: int) -> IndexedArtefact | None:
        """Return the artefact of a number; None if it is unknown."""
        with self._errors():
            found = self._connection.execute(_NUMBERED, (number,)).fetchone()
        return None if found is None else _artefact(found)

    def before(self, name: str, version: str) -> IndexedArtefact | None:
        """Return the superseded artefact of a version that still has its image; None without one."""
        with self._errors():
            found = self._connection.execute(_BEFORE, (name, version)).fetchone()
        return None if found is None else _artefact(found)

    def remembers(self, name: str) -> bool:
        """Return whether a name is known, or may be added: `NAMES_MAX` are remembered, and none is ever forgotten."""
        with self._errors():
            known = self._connection.execute("SELECT 1 FROM sequences WHERE name = ?", (name,)).fetchone()
            return known is not None or self._connection.execute(_NAMES).fetchone()[0] < NAMES_MAX

    def highest_held(self, name: str) -> int | None:
        """Return the highest sequence of a name that was held; None without one."""
        with self._errors():
            (found,) = self._connection.execute(
                "SELECT max(sequence) FROM sequences WHERE name = ?", (name,)
            ).fetchone()
        return None if found is None else int(found)

    def add(self, manifest: ArtefactManifest, envelope: bytes) -> None:
        """Add an artefact. One of the same name and version is superseded if its image is here, and replaced if not."""
        with self._errors(), self._transaction():
            self._connection.execute(
                "UPDATE artefacts SET superseded = id WHERE name = ? AND version = ? AND superseded = 0 AND stored",
                (manifest.name, manifest.version),
            )
            self._connection.execute(
                "REPLACE INTO artefacts (name, version, sequence, size, envelope) VALUES (?, ?, ?, ?, ?)",
                (manifest.name, manifest.version, manifest.sequence, manifest.size, envelope),
            )

    def restore(self, superseded: IndexedArtefact, manifest: ArtefactManifest, envelope: bytes) -> None:
        """Let a superseded artefact be the present one of its version again, with another signed manifest. The one that
        was to replace it is dropped; it has no image."""
        with self._errors(), self._transaction():
            self._connection.execute(
                "DELETE FROM artefacts WHERE name = ? AND version = ? AND superseded = 0",
                (manifest.name, manifest.version),
            )
            self._connection.execute(
                "UPDATE artefacts SET superseded = 0, wrong = 0, sequence = ?, envelope = ? WHERE id = ?",
                (manifest.sequence, envelope, superseded.id),
            )
            self._raise_sequence(manifest.name, manifest.sequence)

    def replace_envelope(self, artefact: IndexedArtefact, envelope: bytes) -> None:
        """Replace the signed manifest of an artefact by another one of the same image."""
        with self._errors():
            self._connection.execute("UPDATE artefacts SET envelope = ? WHERE id = ?", (envelope, artefact.id))

    def mark_stored(self, artefact: IndexedArtefact, sha1: str, md5: str) -> None:
        """Record that the image is verified and on disk, and the sequence of its name, which only rises."""
        with self._errors(), self._transaction():
            self._connection.execute(
                "UPDATE artefacts SET stored = 1, held = 1, wrong = 0, sha1 = ?, md5 = ? WHERE id = ?",
                (sha1, md5, artefact.id),
            )
            self._raise_sequence(artefact.name, artefact.sequence)

    def mark_missing(self, artefact: IndexedArtefact) -> None:
        """Record that the image is not on disk."""
        self._update("UPDATE artefacts SET stored = 0, wrong = 0 WHERE id = ?", artefact)

    def count_wrong(self, artefact: IndexedArtefact) -> None:
        """Count an image with a wrong checksum."""
        self._update("UPDATE artefacts SET stored = 0, wrong = wrong + 1 WHERE id = ?", artefact)

    def forget(self, artefact: IndexedArtefact) -> None:
        """Forget an artefact without an image; one that was held is remembered."""
        if artefact.held:
            self.mark_missing(artefact)
        else:
            self._update("DELETE FROM artefacts WHERE id = ?", artefact)

    def trim(self) -> None:
        """Forget the oldest remembered artefacts beyond `REMEMBERED_MAX`; the sequences of their names stay."""
        with self._errors():
            self._connection.execute(
                "DELETE FROM artefacts WHERE NOT stored AND held AND id NOT IN"
                " (SELECT id FROM artefacts ORDER BY id DESC LIMIT ?)",
                (REMEMBERED_MAX,),
            )

    def _raise_sequence(self, name: str, sequence: int) -> None:
        known = self.highest_held(name)
        if known is None or sequence > known:
            self._connection.execute("REPLACE INTO sequences (name, sequence) VALUES (?, ?)", (name, sequence))

    def _update(self, statement: str, artefact: IndexedArtefact) -> None:
        with self._errors():
            self._connection.execute(statement, (artefact.id,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._path)


def _artefact(row: tuple[int, str, str, int, int, bytes, int, int, int, str, str, int]) -> IndexedArtefact:
    number, name, version, sequence, size, envelope, stored, held, wrong, sha1, md5, superseded = row
    flags = bool(stored), bool(held)
    return IndexedArtefact(number, name, version, sequence, size, envelope, *flags, wrong, sha1, md5, bool(superseded))


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Make the table in a new file. Raises `IndexUnusable` for a file of a newer program, and sqlite3.Error."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {FORMAT};COMMIT;")
    elif version < FORMAT:
        raise sqlite3.DatabaseError("the format of a development version")
    elif version > FORMAT:
        raise IndexUnusable(f"{path} has format {version}, and this version knows {FORMAT}: update Waypost")
    require_intact(connection)
    connection.execute(_ALL).fetchone()
