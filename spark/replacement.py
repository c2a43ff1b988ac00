"""Rows added to a Delta table, or put in place of files of it, in one commit of Spark's connector.

This is the part of the connector that its own commands are made of. What it promises them holds: the commit is there
whole or not at all, and when somebody else has meanwhile removed one of the files, or has taken the same transaction,
it is refused. Unlike its commands it is asked first, within the commit, whether the table is what the rows go on from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from spark.age import Begun
from spark.delta_log import File
from spark.folding import Held
from spark.transaction import ROWS, There, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Replacement:
    """A commit that is being made."""

    def __init__(self, session: SparkSession, uri: str, transaction: Transaction) -> None:
        self._session = session
        self._uri = uri
        self._marker = transaction
        jvm: Any = session._jvm
        self._jvm, self._delta = jvm, jvm.org.apache.spark.sql.delta
        with self._active():
            self._transaction = self._delta.DeltaLog.forTable(session._jsparkSession, uri).startTransaction()
        applied = int(self._transaction.txnVersion(transaction.application))
        self.there = There(str(self._transaction.metadata().id()), int(self._transaction.readVersion()), applied)
        """The table as this found it. What it says of the transaction's application holds until the commit, or that is
        refused."""

    def held(self, partition: tuple[str, str] | None) -> list[Held]:
        """All files of the table, or those of a partition (column, value). Who adds one meanwhile refuses this."""
        with self._active():
            found = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(self._transaction.filterFiles())
            files = [json.loads(file.json())["add"] for file in found]
        if partition is not None:
            column, value = partition
            files = [each for each in files if each["partitionValues"][column] == value]
        return [
            Held(each["path"], File(unquote(each["path"]), each["size"]), each["partitionValues"]) for each in files
        ]

    def commit(self, rows: DataFrame, files: Sequence[Held], changed: int | None = None) -> None:
        """Write `rows` in place of `files`; the table has taken the transaction then.

        `changed`: how many of the rows are new or others, where not all are. Raises what the connector raises, and
        `WrittenTooLongAgo`.
        """
        begun, now_ms = Begun(), time.time_ns() // 1_000_000
        marker = {"appId": self._marker.application, "version": self._marker.version, "lastUpdated": now_ms}
        said: list[dict[str, Any]] = [{"txn": marker}]
        said += [{"remove": _removed(held, now_ms)} for held in files]
        utilities: Any = self._jvm.org.apache.spark.api.python.PythonUtils
        read = [self._delta.actions.Action.fromJson(json.dumps(action)) for action in said]
        with self._active():
            written = self._transaction.writeFiles(rows._jdf)
            actions = written.appendedAll(utilities.toSeq(read))
            operation = getattr(self._delta, "DeltaOperations$ManualUpdate$")
            tags = utilities.toScalaMap({} if changed is None else {ROWS: str(changed)})
            begun.require_recent(self._uri)
            self._transaction.commit(actions, getattr(operation, "MODULE$"), tags)

    @contextmanager
    def _active(self) -> Iterator[None]:
        """The connector asks the thread's session for settings."""
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(self._session._jsparkSession)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


def _removed(held: Held, now_ms: int) -> dict[str, Any]:
    return {
        "path": held.name,
        "deletionTimestamp": now_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": dict(held.partition),
        "size": held.file.size,
    }
