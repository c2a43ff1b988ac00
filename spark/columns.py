"""Rows of data files as columns in this process, without the JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from cloud.place.place import Place
from spark.delta_log import File

ROWS: Final = 1_000_000
"""Rows that are handed over at once, about: so many are in the caches and the heap a process has anyway, and four times
as many take twice the time each."""
BYTES: Final = 64 * 1024 * 1024
"""Bytes of rows after which they are handed over, however few they are: bodies may be large."""

FEW_ROWS: Final = 10_000
"""Rows of a file up to which its columns are read one after the other: to hand them to threads takes longer."""


def read(place: Place, files: Sequence[File], columns: pa.Schema) -> Iterator[pa.Table]:
    """These columns of the files of a table, some row groups at once, if only none; null where a file lacks a column.

    Texts are dictionaries. Raises `OSError` and what pyarrow raises for a file that is not there, or not what was
    written: its pages are held against their checksums.
    """
    part: list[pa.Table] = []
    parts = size = count = 0
    for rows in (rows for file in files for rows in _row_groups(place, file, columns)):
        part.append(rows)
        count, size = count + len(rows), size + rows.nbytes
        if count >= ROWS or size >= BYTES:
            yield pa.concat_tables(part)
            part, parts, size, count = [], parts + 1, 0, 0
    if part or not parts:
        yield pa.concat_tables(part) if part else fitted(columns.empty_table(), columns)


def _row_groups(place: Place, file: File, columns: pa.Schema) -> Iterator[pa.Table]:
    # Those that any file has: pyarrow refuses to be told of others.
    texts = [field.name for field in columns if pa.types.is_string(field.type) and not field.nullable]
    opened = pq.ParquetFile(
        place.source(file.path),
        read_dictionary=texts,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",
    )
    with opened:
        known = set(opened.schema_arrow.names)  # made anew each time it is asked for
        there = [name for name in columns.names if name in known]
        for group in range(opened.num_row_groups):
            found = opened.read_row_group(group, columns=there, use_threads=file.rows is None or file.rows > FEW_ROWS)
            yield fitted(found, columns)


def fitted(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Rows with these columns, as `read` has them."""
    found, known = {}, set(rows.column_names)  # made anew each time it is asked for
    for field in columns:
        there = rows[field.name] if field.name in known else pa.nulls(len(rows), field.type)
        if not pa.types.is_dictionary(there.type):
            there = there if there.type == field.type else there.cast(field.type)
            there = there.dictionary_encode() if pa.types.is_string(field.type) else there
        found[field.name] = there
    return pa.table(found)
