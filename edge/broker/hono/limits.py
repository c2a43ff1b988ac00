"""Limits of the device API."""

from __future__ import annotations

from typing import Final

PLANS_CACHED_MAX: Final = 64
"""Topics of one connection with a cached translation. A device uses two or three, a gateway one for each device and
endpoint; topics beyond this are only slower."""

PLAN_PROPERTIES_BYTES_MAX: Final = 256
"""Largest PUBLISH properties in that cache; larger ones differ for each message."""

BAG_FIELDS_MAX: Final = 16
"""Properties in the bag of a topic or in a query; Hono has five."""

DEVICE_CHARACTERS_MAX: Final = 255
"""Length of the identifier of a tenant or device."""

COMMAND_CHARACTERS_MAX: Final = 255
"""Length of a command's name, which is the end of a topic name and an HTTP header."""

CORRELATION_BYTES_MAX: Final = 512
"""Length of an application's correlation identifier, and of its reply identifier. The request identifier contains both,
and is a level of a topic name that devices have to store."""

CONTENT_TYPE_CHARACTERS_MAX: Final = 255
"""Length of a content type."""

TTL_S_MAX: Final = 0xFFFF_FFFF
"""Largest Message Expiry Interval (MQTT 5 section 3.3.2.3.3)."""

TTD_S_MAX: Final = 300
"""Longest wait of a request for a command in seconds; a longer `hono-ttd` is reduced to it."""

COMMAND_SUBSCRIPTIONS_MAX: Final = 100
"""Filters for commands and errors of one connection: two of a device, perhaps one for each device of a gateway."""

ACTS_FOR_MAX: Final = 1_000
"""Devices that a gateway lists by name; beyond that use ``*`` for all."""

CORS_S_MAX: Final = 600
"""Seconds that a browser may cache the result of a CORS preflight (Access-Control-Max-Age)."""
