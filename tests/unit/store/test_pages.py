"""Pages read without SQLite: the bytes match those that SQLite wrote, and damaged ones do not raise."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.appliance.store.recovery.pages import INDEX_LEAF, TABLE_LEAF, Pages, Shape, record_head, values, varint
from tests.support.seeds import chosen_seed

NUMBERS = (0, 1, -1, 127, 128, -(1 << 15), 1 << 23, 1 << 31, -(1 << 47), (1 << 63) - 1, -(1 << 63))
WIDE = Shape(TABLE_LEAF, ("NULL", "INTEGER", "BLOB"))
NAMED = Shape(INDEX_LEAF, ("TEXT", "BLOB"))


@pytest.fixture(params=[512, 1024, 4096])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int, dict[int, tuple[int, bytes]]]:
    """A database with records of every size around one page, and of several pages."""
    size, path, dice = int(request.param), tmp_path / "file", random.Random(4)
    sizes = [*range(0, 40), *(size * part // 4 + off for part in (1, 2, 3, 4, 8, 13) for off in range(-50, 51, 5))]
    rows = {key: (NUMBERS[key % len(NUMBERS)], dice.randbytes(count)) for key, count in enumerate(sizes, -3)}
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA page_size = {size}")
        connection.execute("CREATE TABLE wide (key INTEGER PRIMARY KEY, number INTEGER, data BLOB)")
        connection.execute("CREATE TABLE named (name TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID")
        connection.executemany("INSERT INTO wide VALUES (?, ?, ?)", [(key, *row) for key, row in rows.items()])
        connection.execute("INSERT INTO named VALUES ('a', x'00')")
    return path, size, rows


def records(pages: Pages, shape: Shape) -> Iterator[tuple[int, list[int | bytes | None]]]:
    for number in range(2, pages.count + 1):
        page = pages.page(number)
        if page[0] == shape.leaf:
            for cell in filter(shape.fits, pages.cells(page)):
                content = pages.content(cell)
                assert content is not None
                yield cell.rowid, values(content)


def test_every_row_is_read(file: tuple[Path, int, dict[int, tuple[int, bytes]]]) -> None:
    path, size, rows = file
    with contextlib.closing(Pages(path, size)) as pages:
        assert {key: tuple(found[1:]) for key, found in records(pages, WIDE)} == rows
        assert [found for _, found in records(pages, NAMED)] == [[b"a", b"\0"]]


def test_root_page_of_a_table_is_found(file: tuple[Path, int, dict[int, tuple[int, bytes]]]) -> None:
    path, size, _ = file
    with contextlib.closing(Pages(path, size)) as pages:
        assert pages.leads_to(2, WIDE)
        assert not pages.leads_to(2, NAMED)
        assert not pages.leads_to(2, Shape(TABLE_LEAF, ("NULL", "INTEGER", "TEXT")))
        assert not pages.leads_to(2, Shape(TABLE_LEAF, ("NULL", "INTEGER")))
        assert not pages.leads_to(pages.count + 1, WIDE)


def test_damaged_pages_do_not_raise(file: tuple[Path, int, dict[int, tuple[int, bytes]]]) -> None:
    path, size, _ = file
    dice, content = random.Random(chosen_seed(7)), bytearray(path.read_bytes())
    for _ in range(len(content) // 40):
        content[dice.randrange(len(content))] = dice.choice((0, 2, 5, 10, 13, 255, dice.randrange(256)))
    path.write_bytes(content[: len(content) - dice.randrange(size)])
    with contextlib.closing(Pages(path, size)) as pages:
        for number in range(2, pages.count + 1):
            page = pages.page(number)
            pages.leads_to(number, WIDE)
            for cell in pages.cells(page):
                found = pages.content(cell)
                if found is not None and record_head(found) is not None:
                    values(found)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 8, b"\x05\x01", b"\x02\x0a"])
def test_invalid_records_are_refused(data: bytes) -> None:
    assert record_head(data) is None


def test_nine_byte_numbers_are_read() -> None:
    assert varint(b"\xff" * 9, 0) == (-1, 9)
    assert varint(b"\x81\x00", 0) == (128, 2)
