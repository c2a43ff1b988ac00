"""Names at AWS IoT Core: regions in host names, and the limits of topics.

The rules of the configuration use this module too, so it imports no codec.
"""

from __future__ import annotations

import re
from typing import Final

from bridge.connectors.limits import AWS_TOPIC_BYTES_MAX, AWS_TOPIC_SLASHES_MAX

_HOST: Final = re.compile(r"\.iot\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?$")
_INGEST: Final = re.compile(r"\$aws/rules/[^/]+/")
"""Prefix of a topic that goes to a rule directly; it does not count."""
_RESERVED: Final = "$"
_KNOWN: Final = ("$aws/", "$share/")


def region_of(host: str) -> str | None:
    """Return the region in the name of an endpoint; None when it has none, as under a domain of one's own."""
    found = _HOST.search(host)
    return found[1] if found else None


def topic_fault(topic: str) -> str:
    """Return why AWS IoT Core does not take a topic or filter; empty when it does."""
    counted = _INGEST.sub("", topic, count=1)
    size = len(counted.encode())
    if size > AWS_TOPIC_BYTES_MAX:
        return f"has {size} bytes; AWS IoT Core accepts {AWS_TOPIC_BYTES_MAX}"
    if counted.count("/") > AWS_TOPIC_SLASHES_MAX:
        return f"has {counted.count('/')} slashes; AWS IoT Core accepts {AWS_TOPIC_SLASHES_MAX}"
    if topic.startswith(_RESERVED) and not topic.startswith(_KNOWN):
        return "begins with $, which AWS IoT Core reserves"
    return ""
