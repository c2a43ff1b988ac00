"""Record headers that name the schema of a payload, as two schema registries read them (decision 0017).

Confluent: `__value_schema_id` with a byte 1 and the 16 bytes of the schema's GUID. Apicurio: `apicurio.value.contentId`
with a number of 8 bytes. The payload stays as it is, and is not checked against the schema.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from bridge.connectors.kafka.record import SchemaHeaders
from bridge.connectors.settings import SchemaRegistry, TopicSchema

CONFLUENT_HEADER: Final = "__value_schema_id"
APICURIO_HEADER: Final = "apicurio.value.contentId"
_GUID_MARK: Final = b"\x01"
_NUMBER_MAX: Final = (1 << 63) - 1


def schema_headers(schemas: Sequence[TopicSchema]) -> SchemaHeaders:
    """Return the header for each topic. Raises ValueError for an identifier that its registry does not have."""
    return {schema.topic: schema_header(schema) for schema in schemas}


def schema_header(schema: TopicSchema) -> tuple[str, bytes]:
    """Return name and value of a header. Raises ValueError for an identifier that the registry does not have."""
    if schema.registry is SchemaRegistry.CONFLUENT:
        try:
            return CONFLUENT_HEADER, _GUID_MARK + uuid.UUID(schema.id).bytes
        except ValueError:
            raise ValueError(f'"{schema.id}" is not a GUID; Confluent shows it with each version of a schema') from None
    if not (schema.id.isascii() and schema.id.isdecimal()) or int(schema.id) > _NUMBER_MAX:
        raise ValueError(f'"{schema.id}" is not a content id of Apicurio, which is a number')
    return APICURIO_HEADER, int(schema.id).to_bytes(8)
