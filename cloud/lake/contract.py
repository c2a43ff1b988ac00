"""Contract of the lake: the columns of the landed tables, read from `contract.json`.

The JSON file is shared with `spark`, which has the same columns as Spark types; a test compares the two. This module
converts it to Arrow schemas, and knows nothing of how rows are written.
"""

from __future__ import annotations

import functools
from importlib import resources

import msgspec
import pyarrow as pa

ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "binary": pa.binary(),
}
"""Spark's type names to Arrow types. Timestamps are microseconds because neither Delta nor Spark knows finer ones."""


class ContractError(Exception):
    """The contract file is inconsistent: an internal error."""


class ContractColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Column: Spark's type name, and whether it may be null."""

    name: str
    type: str
    nullable: bool


class ContractTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Landed table; `partition_by` names some of its columns."""

    partition_by: tuple[str, ...]
    columns: tuple[ContractColumn, ...]

    @property
    def arrow_schema(self) -> pa.Schema:
        """Arrow schema of the table, in the contract's order."""
        return pa.schema([pa.field(c.name, ARROW_TYPES[c.type], nullable=c.nullable) for c in self.columns])


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contract file."""

    about: str
    version: int
    tables: dict[str, ContractTable]


def parse(text: bytes) -> Contract:
    """Parse a contract. Raises `ContractError` if it is malformed, has an unknown type or repeats a column."""
    try:
        contract = msgspec.json.decode(text, type=Contract)
    except msgspec.MsgspecError as error:
        raise ContractError(f"contract.json: {error}") from error
    for name, table in contract.tables.items():
        names = [column.name for column in table.columns]
        if len(set(names)) != len(names):
            raise ContractError(f"contract.json: {name}: a column is listed twice")
        if unknown := [c.name for c in table.columns if c.type not in ARROW_TYPES]:
            raise ContractError(f"contract.json: {name}: no Arrow type for {', '.join(unknown)}")
        if missing := [column for column in table.partition_by if column not in names]:
            raise ContractError(f"contract.json: {name}: partitioned by {', '.join(missing)}, which it does not have")
    return contract


@functools.cache
def contract() -> Contract:
    """Return the contract of this program."""
    return parse(resources.files(__package__).joinpath("contract.json").read_bytes())
