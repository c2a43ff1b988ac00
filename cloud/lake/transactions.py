"""All transactions in the log of a Delta table. delta-rs answers only for an application with a known id, and reads the
whole log for each answer.

The newest checkpoint has the last transaction of each application up to its version; the entries after it have the
later ones (Delta protocol, "Transaction Identifiers").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from cloud.place.place import LOG, LakePlace

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
"""Checkpoint as one file, or a part of it and the number of parts."""


ENTRIES_READ_MAX: Final = 40
"""Entries read one by one, some 20 ms each in a bucket. For more, reading begins with a checkpoint; there is one every
20 versions."""
_LAST_CHECKPOINT: Final = f"{LOG}/_last_checkpoint"


class LogIncomplete(OSError):
    """The log lacks entries after its newest checkpoint."""


class TransactionLog:
    """Last transaction of each application in a table; reads only entries that are new to it."""

    def __init__(self, place: LakePlace) -> None:
        self._place = place
        self._version = -1
        self._found: dict[str, int] = {}

    def note(self, version: int, transactions: Mapping[str, int]) -> None:
        """Take the transactions of an entry that its writer knows, if it is the next one."""
        if 0 <= self._version == version - 1:
            self._found.update(transactions)
            self._version = version

    def read(self, version: int) -> Mapping[str, int]:
        """Return the transactions up to a version of the table. Raises OSError, `pyarrow.ArrowException`."""
        if version == self._version:
            return self._found
        near = self._version >= 0 and 0 < version - self._version <= ENTRIES_READ_MAX and self._is_continued()
        if not near or not self._read_entries(version):
            self._read_checkpoint(version)
            if not self._read_entries(version):
                raise LogIncomplete(f"{self._place.uri}/{LOG} lacks entries after version {self._version}")
        return self._found

    def _is_continued(self) -> bool:
        """Return whether the last entry that was read is still there. Old ones are deleted, and then a writer that
        stood still may have taken the next number, which no reader sees."""
        return self._place.size(f"{LOG}/{self._version:020}.json") is not None

    def _read_checkpoint(self, version: int) -> None:
        """Begin with the newest checkpoint up to a version."""
        at, files = self._last_checkpoint(version) or _newest_checkpoint(self._place.names(LOG), version)
        found: dict[str, int] = {}
        for name in files:
            with pq.ParquetFile(self._place.source(f"{LOG}/{name}")) as file:
                found.update(_in_checkpoint(file))
        self._version, self._found = at, found

    def _last_checkpoint(self, version: int) -> tuple[int, list[str]] | None:
        """Return version and files of the checkpoint that the log names as its last one (Delta protocol, "Last
        Checkpoint File"); None without it, or if it is of a later version. It saves a list of all entries."""
        content = self._place.read(_LAST_CHECKPOINT)
        try:
            named = json.loads(content or b"{}")
            at, parts = int(named["version"]), named.get("parts")
        except (ValueError, KeyError, TypeError):
            return None
        count = int(parts) if parts is not None else 0
        ends = [f".{part + 1:010}.{count:010}" for part in range(count)] or [""]
        files = [f"{at:020}.checkpoint{end}.parquet" for end in ends]
        there = at <= version and all(self._place.size(f"{LOG}/{name}") is not None for name in files)
        return (at, files) if there else None

    def _read_entries(self, version: int) -> bool:
        """Read the entries up to a version; return False if one is missing."""
        for number in range(self._version + 1, version + 1):
            entry = self._place.read(f"{LOG}/{number:020}.json")
            if entry is None:
                return False
            self._found.update(_in_entry(entry))
            self._version = number
        return True


def _newest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """Return the version and the files of the newest complete checkpoint up to a version; -1 without one."""
    complete: dict[int, list[str]] = {-1: []}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is None or int(match[1]) > version:
            continue
        if match[3] is None:
            complete[int(match[1])] = [name]
        else:
            whole = parts.setdefault((int(match[1]), int(match[3])), [])
            whole.append(name)
            if len(whole) == int(match[3]):
                complete.setdefault(int(match[1]), whole)
    newest = max(complete)
    return newest, complete[newest]


def _in_checkpoint(file: pq.ParquetFile) -> Iterator[tuple[str, int]]:
    if "txn" not in file.schema_arrow.names:
        return
    for batch in file.iter_batches(columns=["txn"]):
        for action in pa.table({"txn": batch.column(0)})["txn"].drop_null().to_pylist():
            yield from _named(action)


def _in_entry(entry: bytes) -> Iterator[tuple[str, int]]:
    for line in entry.splitlines():
        if b'"txn"' in line:
            yield from _named(json.loads(line).get("txn"))


def _named(action: Any) -> Iterator[tuple[str, int]]:
    if action is not None and action.get("appId") is not None:
        yield action["appId"], int(action["version"])
