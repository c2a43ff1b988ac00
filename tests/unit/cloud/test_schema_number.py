"""The tables of the registry and their number change together.

Two branches that take the same next number merge without a conflict, and a registry that the first one made never gets
the tables of the second. The digest is on one line with the number, so the second branch meets a conflict.
"""

from __future__ import annotations

import hashlib

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from cloud.hub.registry.schema import SCHEMA_VERSION, metadata

TABLES_OF_VERSION = (37, "cf5886d5a815ca3f")
"""Schema version, and the digest of its tables. Whoever changes the tables takes the next number on main."""


def digest_of_tables() -> str:
    """Return a digest of all statements that make the tables and indexes."""
    dialect = sqlite.dialect()
    statements: list[str] = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)))
        statements += sorted(str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes)
    return hashlib.sha256("\n".join(statements).encode()).hexdigest()[:16]


def test_tables_change_with_their_number() -> None:
    assert (SCHEMA_VERSION, digest_of_tables()) == TABLES_OF_VERSION
