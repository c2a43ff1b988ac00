"""Registered schemas of a lake: table `payload_schemas`, read and written without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime

import deltalake
import msgspec
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from cloud.place.place import LakeLocation, place_of
from spark import schemas, table_errors
from spark.decoding.schema import BadSchema, PayloadSchema

SCHEMAS_MAX = 1_000
"""Schemas of one lake: each worker holds them all, and a new address is compared with each."""
_TABLE = schemas.PAYLOAD_SCHEMAS


class UnknownSchema(LookupError):
    """No schema is registered for this pattern."""


def load_schemas(table: LakeLocation, version: int | None = None) -> list[PayloadSchema]:
    """Return the valid schemas, now or at a version of the table, in the order of registration.

    None are returned if the table does not exist. Raises `TableUnreadable`.
    """
    try:
        with table_errors.translate_errors(_TABLE.name):
            rows = place_of(table).delta(version).to_pyarrow_dataset().to_table(use_threads=False).to_pylist()
    except TableNotFoundError:
        return []
    found: dict[tuple[str | None, str], PayloadSchema] = {}
    for row in sorted(rows, key=lambda row: row["registered_at"]):
        key = (row["tenant"], row["pattern"])
        found.pop(key, None)
        if row["document"] is not None:
            found[key] = msgspec.json.decode(row["document"], type=PayloadSchema)
    return list(found.values())


def register(table: LakeLocation, schema: PayloadSchema, now: datetime) -> None:
    """Register a schema, replacing one for the same tenant and pattern. Raises `BadSchema`."""
    schema.check()
    current = load_schemas(table)
    if len(current) >= SCHEMAS_MAX and not _has(current, schema.pattern, schema.tenant):
        raise BadSchema(f"there are {SCHEMAS_MAX} schemas already: remove one, or use patterns")
    _append(table, schema.pattern, schema.tenant, msgspec.json.encode(schema).decode(), now)


def remove(table: LakeLocation, pattern: str, tenant: str | None, now: datetime) -> None:
    """Remove a schema. Raises `UnknownSchema`."""
    if not _has(load_schemas(table), pattern, tenant):
        raise UnknownSchema(pattern)
    _append(table, pattern, tenant, None, now)


def _has(current: list[PayloadSchema], pattern: str, tenant: str | None) -> bool:
    return any((one.pattern, one.tenant) == (pattern, tenant) for one in current)


def _append(table: LakeLocation, pattern: str, tenant: str | None, document: str | None, now: datetime) -> None:
    columns = _TABLE.arrow
    row = {"pattern": pattern, "tenant": tenant, "document": document, "registered_at": now.astimezone(UTC)}
    place, rows = place_of(table), pa.Table.from_pylist([row], schema=columns)
    deltalake.write_deltalake(place.uri, rows, mode="append", storage_options=place.storage_options)
