"""Damaged data files: set aside and named, so that everything else goes on.

A file that is not there or has not the size its log says is found before it is read. One with other bytes than were
written is found by the reader (pages carry checksums); then every file of the batch is read to find which. What is set
aside stands in table `set_aside`, with the gateways and sequences it can have held; exactly which are missing is in
`gaps`, as for anything else that did not arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from spark import amounts, schemas
from spark.delta_log import File
from spark.jobs.progress import Span, lost
from spark.tables import Lake


class Damage:
    """What a job meets in the files of its source."""

    def __init__(self, lake: Lake, source: str, job: str) -> None:
        self._lake = lake
        self._source = source
        self._place = lake.at(source)
        self._job = job
        self._notes: list[str] = []
        self._found: dict[File, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was set aside, a sentence or two each."""
        return tuple(self._notes)

    def attempts(self, span: Span) -> Iterator[Sequence[File]]:
        """The files of a batch, without those that are damaged; again, with fewer, when `noticed` has found some."""
        files = self._without(self._gone(span), span.files)
        while True:
            self._found = {}
            yield files
            if not self._found:
                return
            files = self._without(self._found, files)

    @contextmanager
    def noticed(self, files: Sequence[File]) -> Iterator[None]:
        """Around what reads them: when it fails, and some of the files are damaged, `attempts` has another one."""
        try:
            yield
        except Exception:  # Spark's own and Java's have no class in common
            self._found = {file: why for file in files if (why := file.damaged(self._place))}
            if not self._found:
                raise

    def _gone(self, span: Span) -> dict[File, str]:
        """Files of a batch that are not what the log says. Raises `SourceLost` where a vacuum has deleted one."""
        wrong = {file: why for file in span.files if (why := file.missing(self._place))}
        if wrong and len(self._lake.statistics(self._source, [file.path for file in wrong])) < len(wrong):
            raise lost(self._source, span.end.version - 1)
        return wrong

    def _without(self, damaged: dict[File, str], files: Sequence[File]) -> Sequence[File]:
        if not damaged:
            return files
        held = self._lake.statistics(self._source, [file.path for file in damaged])
        found_at = datetime.now(UTC)
        rows = [
            {"source": self._source, "path": file.path, "job": self._job, "rows": file.rows, "reason": why}
            | {"found_at": found_at, **_extremes(held.get(file.path, {}))}
            for file, why in damaged.items()
        ]
        self._lake.note("set_aside", rows)
        self._notes += [self._sentence(row) for row in rows]
        return [file for file in files if file not in damaged]

    def _sentence(self, row: dict[str, Any]) -> str:
        rows = amounts.counted(row["rows"], "row") if row["rows"] is not None else "rows"
        names = ("gateway_first", "gateway_last", "sequence_first", "sequence_last")
        first, last, low, high = (row[name] for name in names)
        whose = "" if first is None else f" of gateway {first}" if first == last else f" of gateways {first} to {last}"
        which = "" if low is None else f", sequences {low} to {high}"
        back = (
            "Put back a copy of it and run `waypost analytics rebuild`"
            if self._source in schemas.LANDED
            else f"`waypost analytics rebuild` makes {self._source} anew from what has landed"
        )
        return f"{self._place.uri}/{row['path']} is {row['reason']} and set aside: {rows}{whose}{which}. {back}"


def _extremes(held: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{column}_{end}": held.get(f"{extreme}.{column}")
        for column in ("gateway", "sequence")
        for end, extreme in (("first", "min"), ("last", "max"))
    }
