"""Last will of an AMQP client: a message that is published when its connection ends without a close.

AMQP 1.0 has no wills, so a client sends it in the properties of its open (section 2.7.1):

| property | type | meaning |
|---|---|---|
| `x-opt-will-address` | string | address of the will; a client without it has no will |
| `x-opt-will-body` | binary or string | its payload; empty without it |
| `x-opt-mqtt-qos` | 0, 1 or 2 | as in the annotation of a message; 1 without it |
| `x-opt-retain-message` | boolean | as in the annotation of a message |

A close of the client deletes the will, unless the close has an error or answers a close of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bridge.message import DURABLE, RETAIN, Run
from edge.broker.amqp.addressing import AttachRefused, check_to
from edge.broker.limits import WILL_BYTES_MAX
from edge.broker.message.translation import QOS_ANNOTATION, RETAIN_ANNOTATION

ADDRESS_PROPERTY: Final = "x-opt-will-address"
BODY_PROPERTY: Final = "x-opt-will-body"


def will_of(properties: Mapping[Any, Any], device: str) -> Run | None:
    """Return the will in the properties of an open. Raises `AttachRefused` if it is invalid."""
    address = properties.get(ADDRESS_PROPERTY)
    if address is None:
        return None
    if not isinstance(address, str):
        raise AttachRefused("amqp:invalid-field", f"{ADDRESS_PROPERTY} is not a string")
    body = properties.get(BODY_PROPERTY, b"")
    body = body.encode() if isinstance(body, str) else body
    if not isinstance(body, bytes) or len(body) > WILL_BYTES_MAX:
        raise AttachRefused("amqp:invalid-field", f"{BODY_PROPERTY} is not a binary of up to {WILL_BYTES_MAX} bytes")
    qos = properties.get(QOS_ANNOTATION, 1)
    if isinstance(qos, bool) or qos not in (0, 1, 2):
        raise AttachRefused("amqp:invalid-field", f"{QOS_ANNOTATION} is not 0, 1 or 2")
    flags = int(qos) | (DURABLE if qos else 0) | (RETAIN if properties.get(RETAIN_ANNOTATION) is True else 0)
    return Run(check_to(str(address)), device, flags, b"", [body])
