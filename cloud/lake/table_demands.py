"""Demands of a Delta table on a program that appends to it: its columns, and features of its protocol.

Another engine may change a table of the lake: add a constraint, map columns, upgrade the protocol. The landing writes
its own log entries, so it decides itself which of these an append meets (Delta protocol, "Table Features"). It accepts
what delta-rs can write; features that are listed and not used demand nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from cloud.lake.lake import TableRefusal
from cloud.lake.limits import WRITER_VERSION_FEATURES

DELETION_VECTORS: Final = "deletionVectors"
"""Feature of tables with files of which some rows are deleted. Appends need not know them; compaction skips them."""

_MET: Final = frozenset(
    {"appendOnly", "changeDataFeed", DELETION_VECTORS, "timestampNtz", "v2Checkpoint", "variantType"}
)
"""Features that an append of plain rows always meets."""
_HARMLESS_TO_FENCES: Final = frozenset(
    {"rowTracking", "domainMetadata", "clustering", "allowColumnDefaults", "icebergCompatV1", "icebergCompatV2"}
)
"""Features that an append does not meet, and an entry without rows does."""
_BY_VERSION: Final = (
    (2, ("appendOnly", "invariants")),
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (5, ("columnMapping",)),
    (6, ("identityColumns",)),
)
"""Features that each writer version has added, until tables began to list them."""


def refusal_of(delta: DeltaTable, wanted: pa.Schema) -> TableRefusal | None:
    """Return why rows with these columns cannot be appended to a table as it was last read; None if they can."""
    features, schema = features_of(delta), json.loads(delta.schema().to_json())
    configuration = delta.metadata().configuration
    unmet = [feature for feature in features if not _meets(feature, configuration, schema)]
    if unmet:
        why = f"has {_named(unmet)}, which hubs cannot write"
        fences = all(feature in _UNUSED or feature in _HARMLESS_TO_FENCES for feature in unmet)
        return TableRefusal(why, _next_step(unmet[0], configuration), fences)
    return _other_columns(delta, wanted)


def features_of(delta: DeltaTable) -> list[str]:
    """Return the features that a table demands of its writers."""
    protocol = delta.protocol()
    if protocol.min_writer_version < WRITER_VERSION_FEATURES:
        return [name for version, names in _BY_VERSION if version <= protocol.min_writer_version for name in names]
    if protocol.min_writer_version > WRITER_VERSION_FEATURES:
        return [f"writer version {protocol.min_writer_version}"]
    return sorted(protocol.writer_features or ())


def delta_fields(schema: pa.Schema) -> list[Any]:
    """Return Arrow columns as those of a Delta table."""
    return list(Schema.from_arrow(schema).fields)


def _other_columns(delta: DeltaTable, wanted: pa.Schema) -> TableRefusal | None:
    """Compare the columns. Newer programs and other engines may have added some that rows need not have."""
    fields, mine = delta.schema().fields, delta_fields(wanted)
    found = [(field.name, str(field.type)) for field in fields]
    first = [(field.name, str(field.type)) for field in mine]
    step = "restore the table, or give the hub another lake"
    if found[: len(first)] != first:
        return TableRefusal(f"has other columns than this program writes: {found}", step, fences=True, columns=True)
    needed = [field.name for field in fields[len(first) :] if not field.nullable]
    if needed:
        return TableRefusal(
            f"has the further column {needed[0]}, which must not be null", step, fences=True, columns=True
        )
    return None


def _meets(feature: str, configuration: Mapping[str, str | None], schema: Any) -> bool:
    if feature in _MET:
        return True
    unused = _UNUSED.get(feature)
    return unused is not None and unused(configuration, schema)


def _without_constraints(configuration: Mapping[str, str | None], _schema: Any) -> bool:
    return not any(_constraints(configuration))


def _without_mapping(configuration: Mapping[str, str | None], _schema: Any) -> bool:
    return configuration.get("delta.columnMapping.mode") in (None, "none")


def _without_key(prefix: str) -> Callable[[Mapping[str, str | None], Any], bool]:
    def unused(_configuration: Mapping[str, str | None], schema: Any) -> bool:
        return not any(key.startswith(prefix) for key in _keys(schema))

    return unused


_UNUSED: Final = {
    "invariants": _without_key("delta.invariants"),
    "checkConstraints": _without_constraints,
    "generatedColumns": _without_key("delta.generationExpression"),
    "columnMapping": _without_mapping,
    "identityColumns": _without_key("delta.identity."),
}
"""Features that demand something of rows only while a property or column uses them."""


def _keys(value: Any) -> Iterator[str]:
    """Yield all keys in a JSON document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def _constraints(configuration: Mapping[str, str | None]) -> Iterator[str]:
    prefix = "delta.constraints."
    return (key.removeprefix(prefix) for key in sorted(configuration) if key.startswith(prefix))


def _named(features: list[str]) -> str:
    named = ", ".join(features)
    return f"the Delta feature {named}" if len(features) == 1 else f"the Delta features {named}"


def _next_step(feature: str, configuration: Mapping[str, str | None]) -> str:
    if feature == "checkConstraints":
        return f"drop the constraint (ALTER TABLE … DROP CONSTRAINT {next(_constraints(configuration))})"
    return (
        f"take it back (in Spark: ALTER TABLE … DROP FEATURE {feature}), or update the hubs to a version that knows it"
    )
