"""Rows of data files as columns in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloud.place.folder import Folder
from spark import columns, schemas
from spark.delta_log import File
from spark.here.windows import READING
from tests.spark.lakes import START
from tests.spark.windows import Row, arrow, reading


def written(folder: Path, rows: Sequence[Row], groups_of: int) -> File:
    path = folder / "some.parquet"
    pq.write_table(arrow(rows), path, row_group_size=groups_of, write_page_checksum=True)
    return File(path.name, path.stat().st_size, len(rows))


def test_columns_come_in_parts_and_a_column_that_is_not_there_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [reading(n, START, float(n)) for n in range(10)]
    file = written(tmp_path, rows, 2)
    monkeypatch.setattr(columns, "ROWS", 4)
    wanted = pa.schema([schemas.READINGS.arrow.field(name) for name in ("device", "sequence", "text")])
    parts = list(columns.read(Folder(tmp_path), [file], wanted))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert pa.concat_tables(parts)["sequence"].to_pylist() == list(range(10))
    assert {part["text"].null_count for part in parts} == {4, 2}
    assert [len(part) for part in columns.read(Folder(tmp_path), [], wanted)] == [0]


@pytest.mark.parametrize("few", [9, 10])
def test_to_few_rows_no_thread_is_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Their columns are the same."""
    file = written(tmp_path, [reading(n, START, float(n)) for n in range(10)], 10)
    monkeypatch.setattr(columns, "FEW_ROWS", few)
    read, threads = pq.ParquetFile.read_row_group, list[bool]()

    def noted(self: pq.ParquetFile, group: int, *, columns: Sequence[str], use_threads: bool) -> pa.Table:
        threads.append(use_threads)
        return read(self, group, columns=columns, use_threads=use_threads)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    wanted = pa.schema([schemas.READINGS.arrow.field(name) for name in READING])
    (part,) = columns.read(Folder(tmp_path), [file], wanted)
    assert (part["sequence"].to_pylist(), threads) == (list(range(10)), [few < 10])


def test_a_flipped_bit_is_not_another_number(tmp_path: Path) -> None:
    file = written(tmp_path, [reading(n, START, n / 7) for n in range(5_000)], 5_000)
    path = tmp_path / file.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    wanted = pa.schema([schemas.READINGS.arrow.field(name) for name in READING])
    with pytest.raises(OSError, match="CRC"):
        list(columns.read(Folder(tmp_path), [file], wanted))
