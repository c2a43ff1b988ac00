"""Registries as older programs have written them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.contract.registry.conftest import Place

GOLDEN = Path(__file__).parents[1] / "golden" / "registry"


def statements(dialect: str, version: int) -> Iterator[str]:
    """Yield the statements of a golden file for a dialect, in an order that foreign keys allow."""
    text = (GOLDEN / f"version{version}.sql").read_text()
    found = [each.strip() for each in re.findall(r"^(?:CREATE|INSERT).*?;$", text, re.MULTILINE | re.DOTALL)]
    for each in sorted(found, key=lambda each: '"tenants"' not in each and "TABLE tenants" not in each):
        yield each if dialect == "sqlite" else translated(each)


def translated(statement: str) -> str:
    """Translate a statement to PostgreSQL."""
    return statement.replace("BLOB", "BYTEA").replace("X'", r"'\x").replace(",1,'10.0", ",true,'10.0")


def written_by(place: Place, version: int) -> Place:
    """Fill an empty database as an older program did."""
    for statement in statements(place.url.get_backend_name(), version):
        place.execute(statement.replace(":", r"\:"))
    return place
