"""Landed tables: Spark's types equal the hub's contract file, column by column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark import schemas

CONTRACT = json.loads((Path(__file__).parents[2] / "cloud" / "lake" / "contract.json").read_text())


def test_landed_tables_are_the_same() -> None:
    assert set(schemas.LANDED) == set(CONTRACT["tables"])


@pytest.mark.parametrize("name", sorted(CONTRACT["tables"]))
def test_columns_types_nullability_and_partitions_are_equal(name: str) -> None:
    contract = CONTRACT["tables"][name]
    expected = [(column["name"], column["type"], column["nullable"]) for column in contract["columns"]]
    fields = schemas.LANDED[name].columns.fields
    assert [(field.name, field.dataType.simpleString(), field.nullable) for field in fields] == expected
    assert list(schemas.LANDED[name].partition_by) == contract["partition_by"]


def test_derived_tables_do_not_shadow_landed_ones() -> None:
    assert not set(schemas.LANDED) & set(schemas.DERIVED)


@pytest.mark.parametrize("table", [*schemas.LANDED.values(), *schemas.DERIVED.values()], ids=lambda table: table.name)
def test_partition_columns_exist_and_cannot_be_null(table: schemas.TableSchema) -> None:
    for column in table.partition_by:
        assert not table.columns[column].nullable
