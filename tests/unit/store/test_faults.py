"""Errors of SQLite and of the system as errors of a store, with the next step."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.faults import store_error_of
from edge.output.system_errors import write_advice


def raised(code: int, name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, StoreFull),
        (sqlite3.SQLITE_IOERR_READ, StoreError),
        (sqlite3.SQLITE_READONLY_DIRECTORY, StoreFull),
    ],
)
def test_full_medium_is_distinguished_from_a_failed_one(code: int, kind: type[StoreError]) -> None:
    assert type(store_error_of(raised(code, "SQLITE_X"), "opening")) is kind


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "full"), (errno.EROFS, "read-only"), (errno.EACCES, "this user")]
)
def test_advice_fits_the_error(number: int, words: str) -> None:
    assert words in write_advice(OSError(number, "x"))
