"""The next version of the program: its registry has another column and a higher schema version."""

from __future__ import annotations

import sys
from typing import Final

import sqlalchemy as sa

from cloud.hub.registry import schema
from edge.appliance.main import main

NEWER_HUB: Final = (sys.executable, "-m", "tests.support.newer_hub")
"""Beginning of its command line."""
COLUMN: Final = "noted_by_newer"
"""Column of the table of gateways, as a new version may add one."""


def newer_hub() -> None:
    """Run the command line of the product with the schema of the next version."""
    vars(schema)["SCHEMA_VERSION"] = schema.SCHEMA_VERSION + 1  # before the parts of the hub import it
    schema.gateways.append_column(sa.Column(COLUMN, sa.BigInteger, nullable=True))
    sys.exit(main())


if __name__ == "__main__":
    newer_hub()
