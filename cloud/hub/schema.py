"""The registry's tables, and how those of an older program become these."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

SCHEMA_VERSION = 3
"""Raised with every change of the tables below."""

metadata = sa.MetaData()

schema_version = sa.Table(
    "schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("registry_id", sa.String(32), nullable=False),
)
tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
)
gateways = sa.Table(
    "gateways",
    metadata,
    sa.Column("tenant", sa.String(255), sa.ForeignKey("tenants.name"), primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("first_seen", sa.BigInteger, nullable=False),
    sa.Column("last_seen", sa.BigInteger, nullable=False),
    sa.Column("connected", sa.Boolean, nullable=False),
    sa.Column("remote", sa.String(255), nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("landed", sa.BigInteger, nullable=False),
)
marks = sa.Table(
    "marks",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("mark", sa.BigInteger, nullable=False),
    sa.Column("spans", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=True),
)
ledgered = sa.Table(
    "ledgered",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("address", sa.Text, primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
)
lineages = sa.Table(
    "lineages",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("openings", sa.LargeBinary, nullable=False),
    sa.Column("ends", sa.LargeBinary, nullable=True),
)
commits = sa.Table(
    "commits",
    metadata,
    sa.Column("table_name", sa.String(64), primary_key=True),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=True),
    sa.Column("moves", sa.LargeBinary, key="ranges", nullable=False),
)


def migrate(tx: sa.Connection) -> None:
    """Add the tables and columns an older version did not have; every version has only added some that may be null."""
    before = {table.name: table for table in metadata.sorted_tables if sa.inspect(tx).has_table(table.name)}
    metadata.create_all(tx)
    for table in before.values():
        there = {column["name"] for column in sa.inspect(tx).get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                tx.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {CreateColumn(column).compile(tx.engine)}"))
