"""SQL of searches for devices and device tenants: filters on fields of JSON documents, order, and pages.

A field is a path into the document, as ``("ext", "site")``. The databases have different functions for JSON, and agree
on the rules here: a filter matches a value of the same type, a missing field matches nothing and sorts first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

FieldPath = tuple[str, ...]
FieldValue = str | int | float | bool
ANY: Final = "*"
"""Wildcard for any number of characters."""
ONE: Final = "?"
"""Wildcard for one character."""
_LISTS: Final = frozenset({"via", "viaGroups", "memberOf", "authorities", "adapters", "trusted-ca"})
"""Fields with a list: the next part of a path is a place in it."""


class FieldFilter(NamedTuple):
    """Condition on a field. A text may have wildcards."""

    path: FieldPath
    value: FieldValue


class FieldOrder(NamedTuple):
    """Order by a field."""

    path: FieldPath
    descending: bool = False


class SearchPage(NamedTuple):
    """Part of the found rows."""

    limit: int
    offset: int = 0
    after: str = ""
    """Only rows with a higher id."""


class SearchQuery(NamedTuple):
    """Search for rows."""

    page: SearchPage
    filters: Sequence[FieldFilter] = ()
    orders: Sequence[FieldOrder] = ()
    """Order of the rows; at last by id."""
    gateways: bool | None = None
    """True: only devices that act for others; False: only other devices; None: both."""

    @property
    def is_page_by_id(self) -> bool:
        """True if an index finds the page: no document is read for another one."""
        return not (self.filters or self.orders or self.page.offset) and self.gateways is None


class UnsearchableField(ValueError):
    """The field cannot be searched or sorted by; the message says why."""


class SearchedTable(NamedTuple):
    """Columns of a table with documents."""

    id: sa.Column[Any]
    document: sa.Column[Any]
    columns: Mapping[FieldPath, sa.Column[Any]]
    """Columns of fields that are not in the document."""
    sorted_only: frozenset[FieldPath] = frozenset()
    """Fields that rows can be sorted by, and not filtered."""


def conditions(dialect: str, table: SearchedTable, query: SearchQuery) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of the filters. Raises `UnsearchableField`."""
    found = [_condition(dialect, table, each) for each in query.filters]
    for each in query.filters:
        column = table.columns.get(each.path)
        if column is table.id and isinstance(each.value, str) and (prefix := _literal_prefix(each.value)):
            found += [column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1)]  # the index finds these
    return found


def order_by(dialect: str, table: SearchedTable, orders: Sequence[FieldOrder]) -> list[sa.ColumnElement[Any]]:
    """Return the order of the rows. Raises `UnsearchableField`."""
    found: list[sa.ColumnElement[Any]] = []
    for each in orders:
        value = table.columns[each.path] if each.path in table.columns else _value(dialect, table.document, each.path)
        found.append(value.desc().nulls_last() if each.descending else value.asc().nulls_first())
    return [*found, table.id.asc()]


def _condition(dialect: str, table: SearchedTable, wanted: FieldFilter) -> sa.ColumnElement[bool]:
    if wanted.path in table.sorted_only:
        raise UnsearchableField(f"/{'/'.join(wanted.path)} can be sorted by, and not filtered")
    column = table.columns.get(wanted.path)
    if column is not None:
        return _matches(dialect, column, wanted.value) if isinstance(wanted.value, str) else sa.false()
    if dialect == "postgresql":
        return _on_postgresql(table.document, wanted)
    return _on_sqlite(table.document, wanted)


def _on_sqlite(document: sa.Column[Any], wanted: FieldFilter) -> sa.ColumnElement[bool]:
    path, value = _sqlite_path(wanted.path), wanted.value
    kind = sa.func.json_type(document, path)
    if isinstance(value, bool):
        return kind == ("true" if value else "false")
    found = sa.func.json_extract(document, path)
    if isinstance(value, str):
        return (kind == "text") & _matches("sqlite", found, value)
    return kind.in_(("integer", "real")) & (found == value)


def _on_postgresql(document: sa.Column[Any], wanted: FieldFilter) -> sa.ColumnElement[bool]:
    found = _value("postgresql", document, wanted.path)
    if not isinstance(wanted.value, str):
        return found == sa.cast(sa.literal(json.dumps(wanted.value), sa.Text), JSONB)
    text = sa.func.jsonb_extract_path_text(sa.cast(document, JSONB), *wanted.path)
    return (sa.func.jsonb_typeof(found) == "string") & _matches("postgresql", text, wanted.value)


def _value(dialect: str, document: sa.Column[Any], path: FieldPath) -> sa.ColumnElement[Any]:
    if dialect == "postgresql":
        return sa.func.jsonb_extract_path(sa.cast(document, JSONB), *path, type_=JSONB)
    return sa.func.json_extract(document, _sqlite_path(path))


def _matches(dialect: str, column: sa.ColumnElement[Any], text: str) -> sa.ColumnElement[bool]:
    """Return the comparison with a text that may have wildcards."""
    if ANY not in text and ONE not in text:
        return column == text
    if dialect == "postgresql":
        escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return column.like(escaped.replace(ANY, "%").replace(ONE, "_"), escape="\\")
    return column.op("GLOB", is_comparison=True)(text.replace("[", "[[]"))


def _literal_prefix(text: str) -> str:
    """Return the part of a pattern before its first wildcard."""
    return text[: min(text.find(each) if each in text else len(text) for each in (ANY, ONE))]


def _sqlite_path(path: FieldPath) -> str:
    """Return a path in the words of SQLite, which has no escape for a quote in a name. Raises `UnsearchableField`."""
    found, before = "$", ""
    for part in path:
        if '"' in part or "\\" in part:
            raise UnsearchableField('a field whose name has a " or \\ cannot be searched')
        found += f"[{part}]" if before in _LISTS and part.isascii() and part.isdigit() else f'."{part}"'
        before = part
    return found
