"""Judge a series in a CSV file, `timestamp,value`, row by row, and write it with its scores.

Some rows are processed at a time, so memory does not depend on the length of the file, nor a score on later rows.
"""

from __future__ import annotations

import csv
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np

from spark.detector.detector import REPORTED, Detector, DetectorFinding

TIMESTAMP: Final = "timestamp"
VALUE: Final = "value"
SCORE: Final = "anomaly_score"
EXPLAINED: Final = ("rule", "expected")
ROWS: Final = 4_096
"""Rows that are judged at once, and between two progress reports."""
_EPOCH_UNITS: Final = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (-math.inf, 1.0))
"""Smallest number in nanoseconds, microseconds, milliseconds, seconds since 1970: up to the year 5138."""


class SeriesError(Exception):
    """The file is not a series; the message names the line and what was expected there."""


class FileResult(NamedTuple):
    """Counts of a file."""

    rows: int
    anomalies: int
    without_value: int
    """Rows with an empty value or one that is not finite, such as NaN: their score is 0."""


def judge_file(
    source: Path, target: Path, *, explain: bool, tell: Callable[[int], None] = lambda _bytes: None
) -> FileResult:
    """Score every row of `source`, and put the result in place of `target` at the end, or nothing.

    `tell` is called with the bytes read now and then. Raises `SeriesError`, `OSError`.
    """
    with source.open("rb") as raw:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as written:
                judged = _judge(raw, written, explain=explain, tell=tell)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    return judged


def parse_seconds(text: str) -> float:
    """Return a timestamp in seconds since 1970. Raises `ValueError`.

    ISO 8601 (without a zone it is UTC), or a number since 1970 in seconds, milliseconds, microseconds or nanoseconds,
    by its size.
    """
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(number):
        raise ValueError(text)
    return number * next(unit for least, unit in _EPOCH_UNITS if abs(number) >= least)


def _judge(raw: IO[bytes], written: IO[str], *, explain: bool, tell: Callable[[int], None]) -> FileResult:
    reader = _rows(raw)
    _, header = next(reader, (1, []))
    time_at, value_at = _columns(header)
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow((TIMESTAMP, VALUE, SCORE, *(EXPLAINED if explain else ())))
    detector = Detector()
    rows = anomalies = without_value = 0
    while some := [_read(row, len(header), time_at, value_at, line) for line, row in islice(reader, ROWS)]:
        times_s, values = np.array([each[2:] for each in some]).T
        findings = detector.judge(times_s, values)
        rows += len(some)
        anomalies += int(np.count_nonzero(findings.scores >= REPORTED))
        without_value += int(np.count_nonzero(~np.isfinite(values)))
        cells: Iterable[tuple[str, ...]] = ((f"{score:.6f}",) for score in findings.scores.tolist())
        if explain:
            cells = map(_explain, findings)
        writer.writerows((timestamp, value, *more) for (timestamp, value, _, _), more in zip(some, cells, strict=True))
        tell(raw.tell())
    return FileResult(rows, anomalies, without_value)


def _explain(finding: DetectorFinding) -> tuple[str, str, str]:
    expected = "" if finding.expected is None else f"{finding.expected:.6g}"
    return f"{finding.score:.6f}", finding.rule or "", expected


def _rows(raw: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_lines(raw))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise SeriesError(f"line {reader.line_num}: {error}") from None


def _lines(raw: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(raw, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise SeriesError(f"line {number}: this is not UTF-8 text") from None


def _columns(header: list[str]) -> tuple[int, int]:
    names = [name.strip().lower() for name in header]
    missing = [name for name in (TIMESTAMP, VALUE) if name not in names]
    if missing:
        expected = f"expected the header {TIMESTAMP},{VALUE}"
        raise SeriesError(f"line 1: no column `{missing[0]}`; {expected}, found {','.join(header)[:80]!r}")
    return names.index(TIMESTAMP), names.index(VALUE)


def _read(row: list[str], columns: int, time_at: int, value_at: int, line: int) -> tuple[str, str, float, float]:
    if len(row) != columns:
        more = "; a comma inside a number? Write 21.5" if len(row) > columns else ""
        raise SeriesError(f"line {line}: {len(row)} columns, and the header has {columns}{more}")
    timestamp, value = row[time_at], row[value_at]
    try:
        time_s = parse_seconds(timestamp)
    except (ValueError, OverflowError):
        raise SeriesError(f"line {line}: timestamp {timestamp[:40]!r} is neither ISO 8601 nor a number") from None
    try:
        return timestamp, value, time_s, float(value) if value.strip() else math.nan
    except ValueError:
        raise SeriesError(f"line {line}: value {value[:40]!r} is not a number") from None
