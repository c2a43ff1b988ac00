"""Work of a tap process, as the hub hands it over on its standard input: msgpack. It may hold passwords."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.hidden import hides
from cloud.hub.tap.topic_settings import TopicSettings

LENGTH_BYTES: Final = 4
"""Length of the job, big endian."""


@hides("registry")
class TapJob(msgspec.Struct, frozen=True):
    """Work of one process."""

    hub: str
    """Writer id of the hub."""
    lake: str
    """Path or URI of the lake."""
    table: str
    registry: str
    """URL of the registry, with its password."""
    topic: TopicSettings
