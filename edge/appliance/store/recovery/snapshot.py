"""Copy of a damaged store that SQLite can read: its log is applied, and a damaged first page is rebuilt.

The first page has the page size and the root of each table. Most of it is known: unless the store was migrated, roots
are those of a new store, and each page has its type. When the tree of the messages does not lead to all of them,
`search` reads all pages and yields the segments that pass their CRC.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from edge.appliance.store.recovery.pages import (
    HEAD_BYTES,
    INDEX_LEAF,
    TABLE_LEAF,
    TABLE_NODE,
    Pages,
    Shape,
    values,
)
from edge.broker.store import schema, segment
from edge.broker.store.limits import CHUNK_BYTES, PAGE_BYTES_WAITING, StoreLimits
from edge.broker.store.segment import SegmentDamaged, SegmentRow
from edge.broker.store.wal_frames import PAGE_SIZES, WalLog

SEGMENT: Final = "segment"
SCRATCH: Final = ("page1",)
"""Suffixes of temporary files next to the copy."""
_MAGIC: Final = b"SQLite format 3\0"
_FIXED: Final = b"\x02\x02\x00\x40\x20\x20"
"""Bytes behind the page size: versions of a database with a write-ahead log, no reserved bytes, three constants."""
_SIZES: Final = tuple(dict.fromkeys((StoreLimits().page_bytes, PAGE_BYTES_WAITING)))
"""Page sizes of stores."""
_FIRST_TABLES: Final = frozenset(("meta", "boot", "log", SEGMENT, "cursor", "address", "state"))
"""Tables of a store of any schema."""
_ENTRY: Final = Shape(TABLE_LEAF, ("TEXT", "TEXT", "TEXT", "INTEGER", "TEXT"))
"""Layout of a row of ``sqlite_schema``."""

OnProgress = Callable[[int], None]
"""Called with the bytes of the file processed so far."""


class StoreSnapshot(NamedTuple):
    """State of the copy."""

    notes: list[str]
    page_bytes: int
    without_tree: bool = False
    """True when the B-tree of the messages is lost, so only `search` finds them."""


class _SnapshotTable(NamedTuple):
    root: int
    shape: Shape
    statement: str
    """Statement that creates it, with what a reader needs."""


def copy_readable(path: Path, copy: Path, on_progress: OnProgress) -> StoreSnapshot:
    """Copy the store at `path`, apply its log, and make the copy readable.

    The caller removes the copy and the files of `SCRATCH`. Raises sqlite3.Error, OSError.
    """
    shutil.copyfile(path, copy)
    os.chmod(copy, 0o600)
    log_path = path.with_name(path.name + "-wal")
    log = WalLog.of(log_path) if log_path.exists() else None
    damaged = 0 if log is None else _apply(log, copy)
    logged_size, size = None if log is None else log.page_bytes, _page_bytes(copy)
    if size is None and not _has_schema(copy, logged_size):
        size = logged_size or _likely_size(copy)
        _write_head(copy, _empty_page(copy, size))
    size = logged_size or size or _page_bytes(copy) or _likely_size(copy)
    _reset_counts(copy, size)
    readable = _make_readable(copy, size, on_progress)
    notes = [f"{damaged} frames of the write-ahead log were damaged"] if damaged else []
    return readable._replace(notes=[*notes, *readable.notes])


def _apply(log: WalLog, copy: Path) -> int:
    """Write the pages of a log into the copy, up to its last durable commit. Return how many were damaged.

    SQLite reads a log only up to its first damaged frame, but later commits were acknowledged too. A damaged page is
    also written: each of its rows is verified by itself.
    """
    count, damaged = log.durable()
    pages = (copy.stat().st_size + log.path.stat().st_size) // log.page_bytes
    with copy.open("r+b") as file:
        for frame in itertools.islice(log.frames(), count):
            if frame.salts == log.salts and 0 < frame.number <= pages:
                file.seek((frame.number - 1) * log.page_bytes)
                file.write(frame.page)
    return damaged


def _beside(copy: Path, suffix: str) -> Path:
    return copy.with_name(f"{copy.name}-{suffix}")


def _page_bytes(copy: Path) -> int | None:
    """Return the page size in the head of the file; None when it cannot be read."""
    with copy.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if len(head) == HEAD_BYTES and head.startswith(_MAGIC) and head[21:24] == b"\x40\x20\x20":
        size = int.from_bytes(head[16:18])
        size = 65_536 if size == 1 else size
        if size in PAGE_SIZES and head[18] in (1, 2) and head[19] in (1, 2) and head[20] == 0:
            return size
    return None


def _has_schema(copy: Path, size: int | None) -> bool:
    """Write the constants of a store's head; return True when the schema behind it can then be read."""
    with copy.open("r+b") as file:
        before = file.read(HEAD_BYTES)
        if len(before) < HEAD_BYTES:
            return False
        recorded = int.from_bytes(before[16:18])
        for guess in dict.fromkeys((size or recorded, recorded, *PAGE_SIZES)):
            if guess in PAGE_SIZES:
                head = bytearray(before)
                head[:24] = _MAGIC + (guess % 65_535).to_bytes(2) + _FIXED
                _write_head(copy, head)
                _reset_counts(copy, guess)
                if _own_roots(copy).keys() >= _FIRST_TABLES:
                    return True
        file.seek(0)
        file.write(before)
    return False


def _likely_size(copy: Path, *sizes: int) -> int:
    """Return the page size that puts most tables at their roots: one of `sizes`, or of stores."""
    return max((*sizes, *_SIZES), key=lambda size: _fitting(copy, size))


def _fitting(copy: Path, size: int) -> int:
    tables = _tables(copy, size)
    with contextlib.closing(Pages(copy, size)) as pages:
        return sum(pages.leads_to(table.root, table.shape) for table in tables.values())


@contextlib.contextmanager
def _new_database(copy: Path, size: int) -> Iterator[sqlite3.Connection]:
    """Open a new database of this page size next to the copy."""
    path = _beside(copy, "page1")
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in (f"page_size = {size}", "synchronous = OFF"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        yield connection
    path.unlink(missing_ok=True)


def _empty_page(copy: Path, size: int) -> bytes:
    """Return the first page of an empty database in WAL mode."""
    with _new_database(copy, size) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA user_version = 1")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return _beside(copy, "page1").read_bytes()[:size]


def _tables(copy: Path, size: int) -> dict[str, _SnapshotTable]:
    """Return the tables of a new store of this page size."""
    found = {}
    with _new_database(copy, size) as connection:
        schema.prepare(connection)
        roots = connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE type = 'table'").fetchall()
        bare = {row[1]: bool(row[4]) for row in connection.execute("PRAGMA table_list")}
        for name, root in roots:
            columns = [(row[1], row[2], row[5]) for row in connection.execute(f"PRAGMA table_info({name})")]
            numbered = not bare[name]
            kinds = ["NULL" if numbered and key else kind for _, kind, key in columns]
            keys = ", ".join(column for column, _, key in sorted(columns, key=lambda column: column[2]) if key)
            listed = ", ".join(f"{column} {kind}" for column, kind, _ in columns)
            ending = ")" if numbered else ") WITHOUT ROWID"
            statement = f"CREATE TABLE {name} ({listed}, PRIMARY KEY ({keys}){ending}"
            found[name] = _SnapshotTable(root, Shape(TABLE_LEAF if numbered else INDEX_LEAF, kinds), statement)
    return found


def _write_head(copy: Path, page: bytes | bytearray) -> None:
    with copy.open("r+b") as file:
        file.write(page)


def _reset_counts(copy: Path, size: int) -> None:
    """Let SQLite take the number of pages from the size of the file, with none free: an old page 1 has wrong counts."""
    with copy.open("r+b") as file:
        head = bytearray(file.read(HEAD_BYTES))
        if len(head) == HEAD_BYTES:
            changes = int.from_bytes(head[24:28])
            head[16:18] = (size % 65_535).to_bytes(2)  # 65 536 is written as 1
            head[32:40] = bytes(8)
            head[92:96] = ((changes + 1) & 0xFFFF_FFFF).to_bytes(4)
            file.seek(0)
            file.write(head)


def _make_readable(copy: Path, size: int, on_progress: OnProgress) -> StoreSnapshot:
    own = _own_roots(copy)
    if not own:  # the page size in the head may be wrong too
        size = _likely_size(copy, size)
    tables = _tables(copy, size)
    with contextlib.closing(Pages(copy, size)) as pages:
        if own.keys() >= _FIRST_TABLES and pages.leads_to(own[SEGMENT], tables[SEGMENT].shape):
            return StoreSnapshot([], size)
        roots = _roots(pages, tables, own, on_progress)
    _write_schema(copy, size, tables, roots)
    notes = [] if own else ["the first page was damaged: it was rebuilt"]
    if SEGMENT in roots:
        return StoreSnapshot(notes, size)
    notes.append("the table of messages is lost: all pages are searched for messages")
    return StoreSnapshot(notes, size, without_tree=True)


def _own_roots(copy: Path) -> dict[str, int]:
    """Return the roots of the tables in the copy's schema; empty when it cannot be read."""
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        try:
            rows = connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE type = 'table'").fetchall()
        except (sqlite3.Error, UnicodeDecodeError):
            return {}
    return {str(name): root for name, root in rows if isinstance(root, int)}


def _roots(
    pages: Pages, tables: Mapping[str, _SnapshotTable], own: Mapping[str, int], on_progress: OnProgress
) -> dict[str, int]:
    """Return the root of each table, if it is known and leads to rows of the table."""
    listed = _roots_in_schema_pages(pages, on_progress)
    found: dict[str, int] = {}
    for name, table in tables.items():
        for root in (own.get(name), listed.get(name), table.root):
            if root is not None and root not in found.values() and pages.leads_to(root, table.shape):
                found[name] = root
                break
    return found


def _roots_in_schema_pages(pages: Pages, on_progress: OnProgress) -> dict[str, int]:
    """Return the roots in schema pages other than the first: with small pages the schema has several."""
    found: dict[str, int] = {}
    for page in _leaves(pages, on_progress):
        for cell in pages.cells(page):
            if _ENTRY.fits(cell) and (content := pages.content(cell)) is not None:
                kind, name, _, root, _ = values(content)
                if kind == b"table" and isinstance(name, bytes) and isinstance(root, int):
                    found[name.decode("utf-8", "replace")] = root
    return found


def _leaves(pages: Pages, on_progress: OnProgress) -> Iterator[bytes]:
    chunk = CHUNK_BYTES // pages.page_bytes
    for number in range(2, pages.count + 1):
        page = pages.page(number)
        if page[0] == TABLE_LEAF:
            yield page
        if number % chunk == 0:
            on_progress(number * pages.page_bytes)


def _write_schema(copy: Path, size: int, tables: Mapping[str, _SnapshotTable], roots: Mapping[str, int]) -> None:
    """Write a first page with the tables at `roots`; further pages of the schema go to the end of the file.

    A table without a root gets an unreadable page, so that it counts as damaged. The table of messages is omitted
    instead, as they are searched for.
    """
    with copy.open("r+b") as file:
        count = -(-os.fstat(file.fileno()).st_size // size)
        file.seek(count * size)
        file.write(b"\xff" * size)
        unreadable = count + 1
        data = _schema_pages(copy, size, tables, roots, unreadable)
        page = bytearray(data[:size])
        if page[HEAD_BYTES] == TABLE_NODE:
            cells = int.from_bytes(page[HEAD_BYTES + 3 : HEAD_BYTES + 5])
            pointers = struct.unpack_from(f">{cells}H", page, HEAD_BYTES + 12)
            for number, place in enumerate((*pointers, HEAD_BYTES + 8), 1):
                child = int.from_bytes(page[place : place + 4])
                file.write(data[(child - 1) * size : child * size])
                page[place : place + 4] = (unreadable + number).to_bytes(4)
        file.seek(0)
        file.write(page)
    _reset_counts(copy, size)


def _schema_pages(
    copy: Path, size: int, tables: Mapping[str, _SnapshotTable], roots: Mapping[str, int], unreadable: int
) -> bytes:
    with _new_database(copy, size) as connection:
        for name, table in tables.items():
            if name != SEGMENT or name in roots:
                connection.execute(table.statement)
        connection.execute("PRAGMA writable_schema = ON").fetchall()
        for name in tables:
            place = roots.get(name, unreadable)
            connection.execute("UPDATE sqlite_schema SET rootpage = ? WHERE name = ?", (place, name))
        return _beside(copy, "page1").read_bytes()


def search(copy: Path, size: int, on_progress: OnProgress) -> Iterator[SegmentRow]:
    """Yield each segment in the pages of a copy that passes its CRC, in a tree or not; rows may repeat.

    Free pages may have deleted rows. Raises OSError, sqlite3.Error.
    """
    shape = _tables(copy, size)[SEGMENT].shape
    with contextlib.closing(Pages(copy, size)) as pages:
        for page in _leaves(pages, on_progress):
            for cell in filter(shape.fits, pages.cells(page)):
                content = pages.content(cell)
                if content is None:
                    continue
                row = SegmentRow._make([cell.rowid, *values(content)[1:]])
                with contextlib.suppress(SegmentDamaged):
                    segment.verify(row)
                    yield row
