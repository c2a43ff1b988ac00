"""Differences between two snapshots of a gateway's status, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge.output.text import line


def merge(old: Any, patch: Any) -> Any:
    """Return a document with a JSON Merge Patch applied (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def sentences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield what happened between two snapshots: problems, the uplink, connections, refused messages."""
    before, after = _problems(old), _problems(new)
    for name, what in after.items():
        if name not in before:
            yield f"{what['severity']} began: {line(what['name'])}: {line(what['what'])}"
    for name, what in before.items():
        if name not in after:
            yield f"{what['severity']} ended: {line(what['name'])}: {line(what['what'])}"
    states = [each.get("uplink", {}).get("state", "-") for each in (old, new)]
    if states[0] != states[1]:
        yield f"uplink: {states[0]} -> {states[1]}"
    for protocol, count in new.get("clients", {}).items():
        was = old.get("clients", {}).get(protocol, 0)
        if was != count:
            yield f"{protocol} clients: {was:,} -> {count:,}"
    refused = new.get("messages", {}).get("refused", 0) - old.get("messages", {}).get("refused", 0)
    if refused > 0:
        yield f"messages refused: {refused:,} more"


def _problems(status: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(each["name"], each["what"]): each for each in status.get("problems", ())}
