"""A table as the newest segment of its log has it: the last checkpoint and the entries since.

delta-rs makes objects of all files of a table whenever it opens it, and again with every commit: 35 ms for a year of
hours, a file each. Who folds a few rows into such a table asks for its markers and for the files of some partitions.
Only that is read here, as columns of the checkpoint, and one entry is added.

What is read is the plainest log, which is that of all tables a Waypost makes in a folder. Any other, and whatever is
wrong with one, is left to delta-rs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction

from cloud.place.folder import Folder
from cloud.place.place import LOG, Place

CHECKPOINT_EVERY: Final = 100
"""Commits, the first included, after which delta-rs makes a checkpoint with its own, unless a table says otherwise."""
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_ENTRY: Final = re.compile(r"([0-9]{20})\.json")
_PLAIN_READER, _PLAIN_WRITER = 1, 2
"""Versions of Delta's protocol up to which a table has no features but those below."""
_LEFT_PROPERTIES: Final = frozenset(
    {"delta.appendOnly", "delta.checkpointInterval", "delta.setTransactionRetentionDuration"}
)
"""Properties that say something of what is done here, and which no Waypost sets."""
_INVARIANTS: Final = "delta.invariants"
"""In a schema: of what is written it has to be made sure that it fulfils a condition."""
_FAILURES: Final = (OSError, pa.ArrowException, msgspec.MsgspecError, KeyError)
"""What reading a log raises that is not as it should be."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What a table is, as its log says; what is kept of it."""

    id: str
    schema_string: str
    partition_columns: list[str]
    configuration: dict[str, str | None]


class File(msgspec.Struct, frozen=True, rename="camel"):
    """A data file: `path` as the log spells it, `partition_values` by column, `stats` as JSON."""

    path: str
    size: int
    partition_values: dict[str, str | None]
    stats: str | None = None


class _Remove(msgspec.Struct):
    path: str


class _Transaction(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _Protocol(msgspec.Struct, rename="camel"):
    min_reader_version: int
    min_writer_version: int


class _Action(msgspec.Struct, rename="camel"):
    meta_data: Metadata | None = None
    protocol: _Protocol | None = None
    txn: _Transaction | None = None
    add: File | None = None
    remove: _Remove | None = None


_TOLD: Final = (
    "metaData.id",
    "metaData.schemaString",
    "metaData.partitionColumns",
    "metaData.configuration",
    "protocol.minReaderVersion",
    "protocol.minWriterVersion",
    "txn.appId",
    "txn.version",
)
"""Columns of a checkpoint: what it says but for files."""
_FILES: Final = ("add.path", "add.size", "add.partitionValues", "add.stats")
_decoder = msgspec.json.Decoder(_Action)


class LogSegment:
    """A table at a version; what is asked of it is named as delta-rs names it. Made by `opened`."""

    def __init__(self, place: Place, checkpoint: int | None) -> None:
        self._place = place
        self._checkpoint = checkpoint
        self._version = -1 if checkpoint is None else checkpoint
        self._metadata: Metadata | None = None
        self._protocol: _Protocol | None = None
        self._entry: bytes | None = None
        """That of this version, once it has been read."""
        self._transactions: dict[str, int] = {}
        self._added: dict[str, File] = {}
        """By path, files of entries since the checkpoint."""
        self._removed: set[str] = set()
        """Paths of files that entries since the checkpoint took away."""

    @classmethod
    def opened(cls, table: Place) -> LogSegment | None:
        """The table here as it is now. None where there is none, or it is left to delta-rs."""
        if not isinstance(table, Folder):  # of a store entries are not read one after the other
            return None
        names = table.names(LOG)
        segment = cls(table, _newest(_CHECKPOINT, names))
        try:
            segment._read_checkpoint()
            segment._go_on()
        except _FAILURES:
            return None
        return segment if segment._is_plain() and segment.version() >= (_newest(_ENTRY, names) or 0) else None

    @property
    def table_uri(self) -> str:
        """Where the table is."""
        return self._place.uri

    def version(self) -> int:
        """The version it is of."""
        return self._version

    def metadata(self) -> Metadata:
        """What the table is."""
        if self._metadata is None:
            raise KeyError("metaData")
        return self._metadata

    def protocol(self) -> ProtocolVersions:
        """What who reads and writes the table has to know: nothing more than the first that did."""
        return ProtocolVersions(_PLAIN_READER, _PLAIN_WRITER, None, None)

    def schema(self) -> deltalake.Schema:
        """The table's columns."""
        return deltalake.Schema.from_json(self.metadata().schema_string)

    def transaction_version(self, application: str) -> int | None:
        """The last version of `application` that it has taken."""
        return self._transactions.get(application)

    def is_brought_up_to_date(self) -> bool:
        """Go on by the entries that have come since. False where it has to be opened anew: the log is another one than
        it was, as somebody has cleared the table and made it anew, or cannot be read any more."""
        try:
            if self._entry is None or self._place.read(_entry(self._version)) != self._entry:
                return False
            self._go_on()
        except _FAILURES:
            return False
        return self._is_plain()

    def files(self, partitions: Collection[tuple[object, ...]], types: Mapping[str, pa.DataType]) -> Sequence[File]:
        """Those of these partitions: values of its columns, which have these types.

        Raises `OSError`, and what pyarrow raises.
        """
        wanted = {
            column: pa.array(values).cast(types[column])
            for column, values in zip(types, zip(*partitions, strict=True), strict=False)
        }
        since = self._removed | self._added.keys()
        return [file for file in self._kept(wanted) if file.path not in since] + _of(list(self._added.values()), wanted)

    def enter(
        self,
        info: Mapping[str, object],
        transaction: tuple[str, int],
        added: Sequence[AddAction],
        removed: Sequence[RemoveAction],
    ) -> bool:
        """Make this the entry of the next version, if there is none. False where there is; and for a version of which
        delta-rs makes a checkpoint when it commits it, as it is to do. Raises `OSError`: it may be there then or not.
        """
        version = self._version + 1
        if (version + 1) % CHECKPOINT_EVERY == 0:
            return False
        name, content = _entry(version), _content(info, transaction, added, removed)
        # Of several who put it one does. Who is told that there is one may have put it: what is there tells.
        return self._place.put_new(name, content) or self._place.read(name) == content

    def _read_checkpoint(self) -> None:
        if self._checkpoint is None:
            return
        self._entry = self._place.read(_entry(self._checkpoint))
        with self._opened_checkpoint(self._checkpoint) as file:
            rows = file.read(columns=list(_TOLD))
        for name in rows.column_names:
            for value in pc.drop_null(rows[name]).to_pylist(maps_as_pydicts="strict"):
                self._apply(msgspec.convert({name: value}, _Action))

    def _opened_checkpoint(self, version: int) -> pq.ParquetFile:
        return pq.ParquetFile(self._place.source(f"{LOG}/{version:020}.checkpoint.parquet"))

    def _go_on(self) -> None:
        while (content := self._place.read(_entry(self._version + 1))) is not None:
            for action in [_decoder.decode(line) for line in _lines(content)]:
                self._apply(action)
            self._version, self._entry = self._version + 1, content

    def _kept(self, wanted: Mapping[str, pa.Array]) -> list[File]:
        """Files that the checkpoint has of these values of the partition's columns."""
        if self._checkpoint is None:
            return []
        with self._opened_checkpoint(self._checkpoint) as file:
            partitions = file.read(columns=["add.partitionValues"])["add"].combine_chunks()
            chosen = pc.indices_nonzero(pc.is_valid(partitions))
            partitions = pc.drop_null(partitions).field("partitionValues")
            for column, values in wanted.items():
                is_one = pc.is_in(_values(partitions, column).cast(values.type), values)
                chosen, partitions = chosen.filter(is_one), partitions.filter(is_one)
            if not len(chosen):  # what is said of files is most of a checkpoint
                return []
            found = file.read(columns=list(_FILES))["add"].take(chosen)
        return [msgspec.convert(each, File) for each in found.to_pylist(maps_as_pydicts="strict")]

    def _apply(self, action: _Action) -> None:
        self._metadata = action.meta_data or self._metadata
        self._protocol = action.protocol or self._protocol
        if action.txn is not None:
            self._transactions[action.txn.app_id] = action.txn.version
        if action.remove is not None:
            self._added.pop(action.remove.path, None)
            self._removed.add(action.remove.path)
        if action.add is not None:
            self._added[action.add.path] = action.add
            self._removed.discard(action.add.path)

    def _is_plain(self) -> bool:
        protocol, metadata = self._protocol, self._metadata
        if protocol is None or metadata is None:
            return False
        if protocol.min_reader_version > _PLAIN_READER or protocol.min_writer_version > _PLAIN_WRITER:
            return False
        return _INVARIANTS not in metadata.schema_string and not _LEFT_PROPERTIES & metadata.configuration.keys()


Opened: TypeAlias = deltalake.DeltaTable | LogSegment
"""A table that was opened, with its files or without."""


def _newest(kind: re.Pattern[str], names: Sequence[str]) -> int | None:
    return max((int(found[1]) for found in map(kind.fullmatch, names) if found is not None), default=None)


def _entry(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def _lines(content: bytes) -> list[bytes]:
    """Of an entry; a power cut leaves an empty one."""
    lines = content.splitlines()
    if not lines:
        raise msgspec.DecodeError("an entry that is empty")
    return lines


def _values(partitions: pa.MapArray, column: str) -> pa.Array:
    """Of each file the value of this column of its partition."""
    found = partitions.items.filter(pc.equal(partitions.keys, column))
    # As a rule each has one, and it need not be looked for file by file.
    return found if len(found) == len(partitions) else pc.map_lookup(partitions, pa.scalar(column), "first")


def _of(files: Sequence[File], wanted: Mapping[str, pa.Array]) -> list[File]:
    """Those of these values of the partition's columns."""
    for column, values in wanted.items():
        found = pa.array([file.partition_values.get(column) for file in files], pa.string()).cast(values.type)
        files = [file for file, is_one in zip(files, pc.is_in(found, values).to_pylist(), strict=True) if is_one]
    return list(files)


def _content(
    info: Mapping[str, object],
    transaction: tuple[str, int],
    added: Sequence[AddAction],
    removed: Sequence[RemoveAction],
) -> bytes:
    """An entry, as delta-rs writes it."""
    application, version = transaction
    actions: list[dict[str, Any]] = [{"commitInfo": info}, {"txn": {"appId": application, "version": version}}]
    for each in removed:
        action = {"path": each.path, "dataChange": each.data_change, "deletionTimestamp": each.deletion_timestamp}
        action |= {"extendedFileMetadata": True, "partitionValues": each.partition_values, "size": each.size}
        actions.append({"remove": action})
    for file in added:
        action = {"path": quote(file.path, safe="/="), "partitionValues": file.partition_values, "size": file.size}
        action |= {"modificationTime": file.modification_time, "dataChange": file.data_change, "stats": file.stats}
        actions.append({"add": action})
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)
