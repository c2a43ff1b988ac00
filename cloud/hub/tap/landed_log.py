"""Commits of a table in order, read from its Delta log: those that landed messages, and their rows.

Only commits of the landing have rows here. Compaction, maintenance and fences leave the messages as they were; a job
that rewrites files (deletion, for example) lands nothing either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cloud.hub.tap.limits import NEWEST_STEPS, ROWS_AT_ONCE
from cloud.hub.tap.message import COLUMNS
from cloud.lake.faults import LakeError
from cloud.lake.tables import lake_errors
from cloud.place.place import LOG, LakePlace

_APPLICATION: Final = "waypost/"
"""Begin of the application ids of landings (`cloud.hub.registry.commits`)."""
_LAST_CHECKPOINT: Final = f"{LOG}/_last_checkpoint"


class TapPosition(NamedTuple):
    """Last version that was passed on."""

    version: int
    digest: str
    """SHA-256 of its log entry; empty if unknown."""


class LandedVersion(NamedTuple):
    """Version of the table."""

    position: TapPosition
    at_us: int
    """Time of the commit, UTC microseconds by the clock of its hub."""
    files: tuple[str, ...]
    """Data files with landed messages; none if the version landed nothing."""


class VersionLost(LakeError):
    """A version cannot be passed on any more, as the lake does not have it."""


class LandedLog:
    """Log of one table. Blocks; every method raises `LakeError`."""

    def __init__(self, place: LakePlace) -> None:
        """`place`: of the table."""
        self._place = place

    def identity(self) -> str:
        """Return the id of the table."""
        with lake_errors("the lake cannot be read"):
            return str(self._place.delta().metadata().id)

    def newest(self) -> int:
        """Return the newest version."""
        with lake_errors("the lake cannot be read"):
            return int(self._place.delta().version())

    def newest_after(self, version: int) -> int:
        """Return the newest version from `version` on, or one that many versions later."""
        with lake_errors("the lake cannot be read"):
            for _ in range(NEWEST_STEPS):
                if self._place.size(_entry_name(version + 1)) is None:
                    break
                version += 1
        return version

    def read(self, version: int) -> LandedVersion | None:
        """Return a version, durable; None if it does not exist yet. Raises `VersionLost` if it was deleted."""
        with lake_errors("the lake cannot be read"):
            content = self._place.read(_entry_name(version))
            if content is not None:
                self._place.sync(LOG, (_entry_name(version).removeprefix(f"{LOG}/"),))
            elif self._checkpoint() >= version:
                raise VersionLost(f"the lake has no log entry of version {version} any more: {_LATE}; {_ANOTHER_TOPIC}")
        return None if content is None else _parse(version, content)

    def check(self, position: TapPosition) -> None:
        """Check that the lake is the one that was passed on up to here. Raises `VersionLost`."""
        with lake_errors("the lake cannot be read"):
            content = self._place.read(_entry_name(position.version))
            if content is None and self._checkpoint() >= position.version:
                return  # cleaned since, as it is old
        if content is None or position.digest not in ("", _digest(content)):
            raise VersionLost(
                f"version {position.version} of the lake is not the one that was passed on: the lake was restored "
                f"from a backup, or replaced; {_ANOTHER_TOPIC}"
            )

    def rows(self, landed: LandedVersion) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a version landed, in order."""
        with lake_errors("the lake cannot be read"):
            for path in landed.files:
                with self._opened(path, landed.position.version) as opened:
                    there = [name for name in COLUMNS if name in opened.schema_arrow.names]
                    yield from opened.iter_batches(ROWS_AT_ONCE, columns=there)

    def _opened(self, path: str, version: int) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._place.source(path), page_checksum_verification=True)
        except FileNotFoundError:
            raise VersionLost(
                f"the lake has no data file {path} of version {version} any more: {_LATE}; {_ANOTHER_TOPIC}"
            ) from None

    def _checkpoint(self) -> int:
        """Return the version of the newest checkpoint; -1 without one."""
        content = self._place.read(_LAST_CHECKPOINT)
        try:
            return int(json.loads(content)["version"]) if content is not None else -1
        except (ValueError, KeyError, TypeError):
            return -1


_LATE: Final = "maintenance removed it before it was passed on"
_ANOTHER_TOPIC: Final = (
    "read the messages in between from the lake, and set another `kafka.topic`, which begins with what lands then"
)


def _entry_name(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _parse(version: int, content: bytes) -> LandedVersion:
    """Read a log entry. Raises `LakeError`."""
    files: list[str] = []
    landing, at_ms = False, 0
    try:
        for line in content.splitlines():
            action: dict[str, Any] = msgspec.json.decode(line) if line.strip() else {}
            if (info := action.get("commitInfo")) is not None:
                at_ms = int(info.get("timestamp", 0))
            elif (transaction := action.get("txn")) is not None:
                landing = landing or str(transaction["appId"]).startswith(_APPLICATION)
            elif (added := action.get("add")) is not None and added.get("dataChange", True):
                files.append(unquote(added["path"]))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise LakeError(f"the log entry of version {version} is damaged: restore it from a backup") from error
    position = TapPosition(version, _digest(content))
    return LandedVersion(position, at_ms * 1_000, tuple(files) if landing else ())
