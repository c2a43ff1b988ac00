"""The lake contract: one file, read equally by the writing side and the reading side."""

from __future__ import annotations

import importlib.util

import pyarrow as pa
import pytest
from deltalake import Schema

from cloud.lake.contract import ContractError, contract, parse

TELEMETRY = [
    *("tenant", "gateway", "epoch", "address", "sequence", "device", "event_time", "received_at", "ingested_at"),
    *("clock_quality", "lane", "content_type", "properties", "body", "ingest_date", "client_id"),
    *("origin_gateway", "origin_epoch", "origin_address", "origin_sequence", "origin_received_at", "relayed_by"),
]
TABLES = {"telemetry", "ledger", "manifests", "clock_offsets", "gateway_status", "quarantine"}


def test_telemetry_has_the_columns_of_the_design() -> None:
    names = [column.name for column in contract().tables["telemetry"].columns]
    assert names == TELEMETRY
    assert set(contract().tables) == TABLES


@pytest.mark.parametrize("name", contract().tables)
def test_every_table_is_partitioned_by_ingest_date_only(name: str) -> None:
    table = contract().tables[name]
    assert table.partition_by == ("ingest_date",)
    assert table.arrow_schema.field("ingest_date").type == pa.date32()
    assert not table.arrow_schema.field("ingested_at").nullable


@pytest.mark.parametrize("name", contract().tables)
def test_delta_keeps_every_type(name: str) -> None:
    """Types survive Delta unchanged: none is widened or narrowed."""
    schema = contract().tables[name].arrow_schema
    assert pa.schema(Schema.from_arrow(schema).to_arrow()).names == schema.names
    delta = {field.name: str(field.type) for field in Schema.from_arrow(schema).fields}
    words = {"bigint": "long"}
    for column in contract().tables[name].columns:
        assert f'"{words.get(column.type, column.type)}"' in delta[column.name]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", "contract.json"),
        (b'{"about":"","version":1,"tables":{"t":{"partition_by":[],"columns":[],"more":1}}}', "unknown field"),
        (
            b'{"about":"","version":1,"tables":{"t":{"partition_by":[],"columns":'
            b'[{"name":"a","type":"decimal","nullable":true}]}}}',
            "no Arrow type",
        ),
        (
            b'{"about":"","version":1,"tables":{"t":{"partition_by":["b"],"columns":'
            b'[{"name":"a","type":"string","nullable":true}]}}}',
            "partitioned by b",
        ),
        (
            b'{"about":"","version":1,"tables":{"t":{"partition_by":[],"columns":'
            b'[{"name":"a","type":"string","nullable":true},{"name":"a","type":"string","nullable":true}]}}}',
            "twice",
        ),
    ],
)
def test_inconsistent_contract_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(ContractError, match=problem):
        parse(text)


@pytest.mark.skipif(importlib.util.find_spec("spark.schemas") is None, reason="the analytics extra is not there")
@pytest.mark.parametrize("name", contract().tables)
def test_spark_reads_what_the_hub_writes(name: str) -> None:
    """`spark.schemas` agrees on every column: name, type, order, nullability. Types only, no JVM."""
    table = next(table for table in vars(importlib.import_module("spark.schemas")).values() if _is_table(table, name))
    theirs = [(field.name, field.dataType.simpleString(), field.nullable) for field in table.columns.fields]
    ours = [(c.name, c.type, c.nullable) for c in contract().tables[name].columns]
    assert theirs == ours
    assert table.partition_by == contract().tables[name].partition_by


def _is_table(value: object, name: str) -> bool:
    return getattr(value, "name", None) == name and hasattr(value, "columns")
