"""Statements of a registry, collected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from cloud.hub.registry.registry import Registry

STATEMENTS_MAX = 4
"""Statements of a landing, whatever the number of its gateways."""


@contextmanager
def counted(registry: Registry) -> Iterator[list[str]]:
    """Collect the statements of a registry: one for each row of those with many."""
    found: list[str] = []

    def add(_tx: Any, _cursor: Any, text: str, values: Any, _context: Any, many: bool) -> None:
        if not text.startswith("BEGIN"):
            found.extend([text] * (len(values) if many else 1))

    engine = registry._database._engine
    sa.event.listen(engine, "before_cursor_execute", add)
    yield found
    sa.event.remove(engine, "before_cursor_execute", add)
