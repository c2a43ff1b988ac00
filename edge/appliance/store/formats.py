"""Formats of an export: NDJSON, CSV, Parquet. Each writer takes a run at a time and uses bounded memory."""

from __future__ import annotations

import base64
import csv
import importlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from bridge.message import Stored
from edge.appliance.store.records import COLUMNS, Recorder, iso
from edge.appliance.store.shared import FormatMissing
from edge.output.text import cell

ROWS_PER_GROUP: Final = 16_384
"""Rows of a Parquet row group, which is kept in memory; fewer when `BYTES_PER_GROUP` is reached."""
BYTES_PER_GROUP: Final = 8 * 1024 * 1024
SUFFIXES: Final = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet"}


class NdjsonWriter:
    """Write one JSON object a line, see `records.MessageRecord`."""

    def __init__(self, out: IO[bytes], recorder: Recorder) -> None:
        self._out = out
        self._recorder = recorder
        self._encoder = msgspec.json.Encoder()

    def write(self, log: str, stored: Stored) -> None:
        self._out.write(self._encoder.encode_lines(self._recorder.records(log, stored)))

    def finish(self) -> None:
        self._out.flush()


class CsvWriter:
    """Write RFC 4180 with a head line. `body` is base64, and empty when `body_text` is complete. A text that a
    spreadsheet would take for a formula has a leading `'`."""

    def __init__(self, out: IO[bytes], recorder: Recorder) -> None:
        self._recorder = recorder
        self._out = out
        self._text = io.StringIO(newline="")
        self._csv = csv.writer(self._text)
        self._csv.writerow(COLUMNS)

    def write(self, log: str, stored: Stored) -> None:
        for row in self._recorder.rows(log, stored):
            *names, device, received_at, qos, retain, durable, good, content_type, text, body = row
            encoded = "" if text is not None else base64.b64encode(body).decode()
            at = iso(received_at)
            flags = (qos, int(retain), int(durable), int(good))
            given = (cell(content_type or ""), cell(text or ""))
            self._csv.writerow((*map(_safe, names), cell(device), at, *flags, *given, encoded))
        self.finish()

    def finish(self) -> None:
        self._out.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()


def _safe(value: str | int) -> str | int:
    return cell(value) if isinstance(value, str) else value


class ParquetWriter:
    """Write Apache Parquet with zstd; `received_at` is in microseconds, UTC."""

    def __init__(self, out: IO[bytes], recorder: Recorder) -> None:
        """Open the writer. Raises FormatMissing."""
        # Imported by name: import-linter keeps a gateway free of it.
        try:
            self._arrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise FormatMissing("Parquet needs the Python package pyarrow, which is not installed") from None
        self._recorder = recorder
        arrow = self._arrow
        dictionary, text = arrow.dictionary(arrow.int32(), arrow.string()), arrow.string()
        kinds = {
            "epoch": dictionary, "log": dictionary, "address": dictionary, "device": dictionary,
            "client": dictionary, "position": arrow.int64(), "sequence": arrow.int64(),
            "received_at": arrow.timestamp("us", "UTC"),
            "qos": arrow.int8(), "retain": arrow.bool_(), "durable": arrow.bool_(), "clock_good": arrow.bool_(),
            "content_type": dictionary, "body_text": text, "body": arrow.binary(),
        }  # fmt: skip
        self._schema = arrow.schema([(name, kinds[name]) for name in COLUMNS])
        self._writer = parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._rows: list[tuple[Any, ...]] = []
        self._size = 0

    def write(self, log: str, stored: Stored) -> None:
        for row in self._recorder.rows(log, stored):
            self._rows.append(row)
            self._size += len(row[-1])
            if len(self._rows) >= ROWS_PER_GROUP or self._size >= BYTES_PER_GROUP:
                self._flush()

    def finish(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        columns: dict[str, Iterable[Any]] = dict(zip(COLUMNS, zip(*self._rows, strict=True), strict=True))
        columns["received_at"] = [at // 1000 for at in columns["received_at"]]
        self._writer.write_table(self._arrow.table(
            [self._arrow.array(columns[field.name], field.type) for field in self._schema], self._schema
        ))  # fmt: skip
        self._rows, self._size = [], 0


WRITERS: Final[dict[str, type[NdjsonWriter | CsvWriter | ParquetWriter]]] = {
    "ndjson": NdjsonWriter,
    "csv": CsvWriter,
    "parquet": ParquetWriter,
}


def format_of(path: Path | None, asked: str | None) -> str:
    """Return the requested format, or that of the suffix; NDJSON for stdout. Raises ValueError for another suffix."""
    if asked is not None:
        return asked
    if path is None:
        return "ndjson"
    try:
        return SUFFIXES[path.suffix.lower()]
    except KeyError:
        raise ValueError(
            f"the suffix of {path.name} is not a known format: give --format {'|'.join(WRITERS)}"
        ) from None
