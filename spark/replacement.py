"""Files of a Delta table replaced by rows, in one commit of Spark's connector.

This is the part of the connector that its own commands are made of. What it promises them holds: the commit is there
whole or not at all, and when somebody else has meanwhile removed one of the files, or has taken the same transaction,
it is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from spark.folding import Held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = "waypost.rows"
"""A tag of the commit: how many of the rows are new or others than before."""


class Replacement:
    """A commit that is being made. `version`: of the table as it was when this began."""

    def __init__(self, session: SparkSession, uri: str) -> None:
        self._session = session
        jvm: Any = session._jvm
        self._jvm, self._delta = jvm, jvm.org.apache.spark.sql.delta
        with self._active():
            self._transaction = self._delta.DeltaLog.forTable(session._jsparkSession, uri).startTransaction()
        self.version: int = self._transaction.readVersion()

    def taken(self, application: str) -> int:
        """The last version of `application` that the table has taken, or -1. Another taken meanwhile refuses this."""
        return int(self._transaction.txnVersion(application))

    def commit(self, rows: DataFrame, files: Sequence[Held], application: str, version: int, changed: int) -> None:
        """Write `rows` in place of `files`; the table has taken `version` of `application` then.

        `changed`: how many of the rows are new or others. Raises what the connector raises.
        """
        now_ms = time.time_ns() // 1_000_000
        said: list[dict[str, Any]] = [{"txn": {"appId": application, "version": version, "lastUpdated": now_ms}}]
        said += [{"remove": _removed(held, now_ms)} for held in files]
        utilities: Any = self._jvm.org.apache.spark.api.python.PythonUtils
        read = [self._delta.actions.Action.fromJson(json.dumps(action)) for action in said]
        with self._active():
            written = self._transaction.writeFiles(rows._jdf)
            actions = written.appendedAll(utilities.toSeq(read))
            operation = getattr(self._delta, "DeltaOperations$ManualUpdate$")
            tags = utilities.toScalaMap({ROWS: str(changed)})
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
