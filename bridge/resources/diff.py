"""Changes as a person reads them: a unified diff of YAML that shows no secret."""

from __future__ import annotations

import difflib
from typing import Any, Final

from bridge.resources.parse import to_yaml
from bridge.resources.plan import Change

SECRETS: Final = ("password",)
"""Keys whose values are not shown."""
HIDDEN: Final = "********"


def masked(value: Any) -> Any:
    """A document with the values of its secrets hidden."""
    if isinstance(value, dict):
        return {key: HIDDEN if key in SECRETS and item is not None else masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value


def unified(change: Change) -> str:
    """What changes in one resource."""
    before, after = (to_yaml(masked(document)) if document else "" for document in (change.before, change.after))
    name = f"{change.kind}/{change.name}"
    if before == after:
        return f"{name}: only a password changes\n"
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name} (applied)", f"{name} (given)", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
