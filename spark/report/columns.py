"""Check the types of a table's columns after drawing has failed, to find the table that caused it.

Another program may have written a derived table. delta-rs and pyarrow report some errors themselves. A number that has
become a text fails later, where it is added up or printed.
"""

from __future__ import annotations

from collections.abc import Container

import deltalake
from deltalake.exceptions import TableNotFoundError

from cloud.place.place import LakeLocation, place_of
from spark import table_errors

FAILURES = (TypeError, ValueError, AttributeError)
"""Exceptions that a value of an unexpected type causes."""


def find_mistyped(lake: LakeLocation, without: Container[str]) -> table_errors.TableUnreadable | None:
    """Return the first table with a column of a type that differs from its contract; None if all types are correct.

    Tables in `but` are skipped. Raises `TableUnreadable` for a table that cannot be opened.
    """
    from spark import schemas  # noqa: PLC0415 - Spark's types are half a second that a report must not pay

    place, contracts = place_of(lake), {**schemas.LANDED, **schemas.DERIVED}
    for name in place.tables():
        if name in without or name not in contracts:
            continue
        wanted = _types(deltalake.Schema.from_json(contracts[name].columns.json()))
        try:
            with table_errors.translate_errors(name):
                found = _types(place.at(name).delta().schema())
        except TableNotFoundError:
            continue
        for column, kind in found.items():
            if wanted.get(column, kind) != kind:
                wrong = f"column {column} is {kind} and should be {wanted[column]}"
                return table_errors.make_unreadable(name, ValueError(wrong), "columns")
    return None


def _types(schema: deltalake.Schema) -> dict[str, str]:
    """Return types by column, in the protocol's words."""
    return {field.name: str(getattr(field.type, "type", field.type)) for field in schema.fields}
