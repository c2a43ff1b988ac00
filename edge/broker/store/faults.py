"""Maps errors of SQLite and of the system to a StoreError with the next step."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

from edge.broker.store.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreInaccessible

ADVICE: Final = "stop the gateway and run `waypost store repair`"
"""Next step when data is damaged."""

_PRIMARY_CODE = 0xFF
"""SQLite's extended result codes keep the primary one in the low byte."""

_FULL = (StoreFull, "the medium is full: free space or raise the quota; nothing stored is lost")

_MEANINGS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,  # the index of the write-ahead log cannot grow
    sqlite3.SQLITE_READONLY: (StoreFull, "the medium is read-only: check the card and the system log, then remount it"),
    sqlite3.SQLITE_IOERR: (StoreError, "the medium failed: check the card and the system log"),
    sqlite3.SQLITE_CORRUPT: (StoreDamaged, f"the store is damaged: {ADVICE}"),
    sqlite3.SQLITE_NOTADB: (StoreDamaged, "the file is not a store: move it away, or give another data directory"),
    sqlite3.SQLITE_CANTOPEN: (
        StoreInaccessible,
        "the file cannot be opened: check owner and mode of the data directory",
    ),
    sqlite3.SQLITE_PERM: (StoreInaccessible, "access denied: check owner and mode of the data directory"),
    sqlite3.SQLITE_BUSY: (StoreBusy, "another program holds a lock on the file: close it and try again"),
}


def store_error_of(error: sqlite3.Error, doing: str) -> StoreError:
    """Return the StoreError for an error of SQLite while `doing` (a phrase such as ``commit``)."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    kind, advice = _MEANINGS.get(code) or _MEANINGS.get(code & _PRIMARY_CODE, (StoreError, "unexpected; see the log"))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return kind(f"{doing}: {error} ({name}): {advice}")


def misplaced_row_error(key: int) -> sqlite3.DatabaseError:
    """Return an error for a row in the wrong place of the tree, which SQLite does not detect."""
    error = sqlite3.DatabaseError(f"row {key} is not where it belongs")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT"
    return error


_SYSTEM_CODES: dict[int, int] = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EIO: sqlite3.SQLITE_IOERR,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
}


def store_error_of_system(error: OSError, doing: str) -> StoreError:
    """Return the StoreError for an error of the system while `doing`."""
    kind, advice = _MEANINGS.get(_SYSTEM_CODES.get(error.errno or 0, 0), (StoreError, "unexpected; see the log"))
    return kind(f"{doing}: {error.strerror} ({errno.errorcode.get(error.errno or 0, 'unknown')}): {advice}")
