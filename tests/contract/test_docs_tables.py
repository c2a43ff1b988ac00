"""Tables of the documentation's reference equal those of `spark.schemas`, without an import of Spark."""

from __future__ import annotations

from docs.generate import tables
from spark import schemas


def test_derived_tables_equal_the_declared_ones() -> None:
    declared = {**schemas.DERIVED, schemas.PAYLOAD_SCHEMAS.name: schemas.PAYLOAD_SCHEMAS}
    shown = {table.name: table for table in tables.derived()}
    assert set(shown) == set(declared)
    for name, table in declared.items():
        columns = [(field.name, field.dataType.simpleString(), field.nullable) for field in table.columns.fields]
        types = {"array<bigint>": "bigint[]"}
        assert [(each.name, each.type, each.nullable) for each in shown[name].columns] == [
            (column, types.get(kind, kind), nullable) for column, kind, nullable in columns
        ]
        assert shown[name].keys == table.keys
        assert shown[name].partition_by == table.partition_by
