"""Entries in the log of a Delta table that the landing writes itself, and what it has to know of those of others.

An append conflicts with no other append, compaction or deletion. So a writer that has read the log once has to know
about later entries only: whether one changes the table itself, and whether one fences its own application.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from deltalake.transaction import AddAction

from cloud.lake.lake import TransactionId

FENCED: Final = "/fenced"
"""Suffix of an application id: its transaction is the last commit that was fenced."""


class EntryNews(NamedTuple):
    """Parts of an entry that concern a writer who appends."""

    transactions: Mapping[str, int]
    changes_table: bool
    """True if columns, properties or protocol have changed."""
    added: Sequence[str] = ()
    """Paths of the data files that it adds, as written in the log."""


def read_entry(content: bytes) -> EntryNews:
    """Read an entry of any program. Raises ValueError, TypeError or KeyError for a damaged one."""
    transactions: dict[str, int] = {}
    changes_table = False
    added: list[str] = []
    for line in content.splitlines():
        if not line.strip():
            continue
        action = json.loads(line)
        if not isinstance(action, dict):
            raise TypeError("an action of a log entry is not an object")
        changes_table = changes_table or "metaData" in action or "protocol" in action
        if (transaction := action.get("txn")) is not None:
            transactions[str(transaction["appId"])] = int(transaction["version"])
        if (file := action.get("add")) is not None:
            added.append(str(file["path"]))
    return EntryNews(transactions, changes_table, added)


def append_entry(added: AddAction, transaction: TransactionId | None) -> bytes:
    """Return an entry that adds one data file, with the transaction that identifies it."""
    actions = [_info("WRITE", {"mode": "Append"})]
    if transaction is not None:
        actions.append({"txn": {"appId": transaction.application, "version": transaction.commit}})
    actions.append({"add": add_action(added, data_change=True)})
    return as_entry(actions)


def fence_entry(transactions: Mapping[TransactionId, int]) -> bytes:
    """Return an entry that changes no rows and fences applications, each up to a transaction.

    The value of each is its last transaction in the table, repeated so that a concurrent commit of the application
    conflicts.
    """
    actions = [_info("FENCE", {})]
    for fenced, last in transactions.items():
        numbers = {fenced.application: last, fenced.application + FENCED: fenced.commit}
        actions += [{"txn": {"appId": name, "version": at}} for name, at in numbers.items()]
    return as_entry(actions)


def add_action(added: AddAction, *, data_change: bool) -> dict[str, Any]:
    """Return the action that adds a data file."""
    return {
        "path": added.path,
        "partitionValues": dict(added.partition_values),
        "size": added.size,
        "modificationTime": added.modification_time,
        "dataChange": data_change,
        "stats": added.stats,
    }


def as_entry(actions: list[dict[str, Any]]) -> bytes:
    """Return actions as the content of an entry."""
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def _info(operation: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    at_ms = time.time_ns() // 1_000_000
    about = {"timestamp": at_ms, "operation": operation, "operationParameters": dict(parameters)}
    return {"commitInfo": {**about, "isBlindAppend": operation == "WRITE"}}
