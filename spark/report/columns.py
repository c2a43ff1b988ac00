"""Whether the columns of a table are of the types they should be: asked when drawing has failed, to learn whose fault
that is.

Another program may have written a derived table. What delta-rs and pyarrow find wrong they say; a number that has
become a text fails wherever it is added up or written out.
"""

from __future__ import annotations

from collections.abc import Container

import deltalake
from deltalake.exceptions import TableNotFoundError

from cloud.place.place import Somewhere, place_of
from spark import table_errors

FAILURES = (TypeError, ValueError, AttributeError)
"""What a value of another type leads to."""


def find_mistyped(lake: Somewhere, without: Container[str]) -> table_errors.TableUnreadable | None:
    """The first table, but for those, that has a column of another type than its contract; None: all are as they should
    be. Raises `TableUnreadable` for one that cannot be opened."""
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
    """Types by column, in the protocol's words."""
    return {field.name: str(getattr(field.type, "type", field.type)) for field in schema.fields}
