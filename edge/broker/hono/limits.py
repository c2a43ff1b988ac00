"""Every bound of the device API: name, unit, reason."""

from __future__ import annotations

from typing import Final

PLANS_CACHED_MAX: Final = 64
"""Topics of one connection whose translation is remembered; a device uses two or three, a gateway one a device and
endpoint, and what is not remembered is only slower."""

PLAN_PROPERTIES_BYTES_MAX: Final = 256
"""Publish properties up to this size are remembered with their topic: larger ones differ from message to message."""

BAG_FIELDS_MAX: Final = 16
"""Properties in the bag of a topic or in a query; Hono knows five."""

DEVICE_CHARACTERS_MAX: Final = 255
"""Characters of a tenant's or device's identifier."""

COMMAND_CHARACTERS_MAX: Final = 255
"""Characters of a command's name: it is the end of a topic name, and an HTTP header."""

CORRELATION_BYTES_MAX: Final = 512
"""Bytes of an application's correlation identifier and of its reply identifier: both travel in the request identifier,
which devices keep and which is a level of a topic name."""

CONTENT_TYPE_CHARACTERS_MAX: Final = 255
"""Characters of a content type."""

TTL_S_MAX: Final = 0xFFFF_FFFF
"""What a Message Expiry Interval can say (MQTT 5 section 3.3.2.3.3)."""

TTD_S_MAX: Final = 300
"""Longest time a request may wait for a command; a longer `hono-ttd` is answered after this."""

COMMAND_SUBSCRIPTIONS_MAX: Final = 100
"""Command and error filters of one connection: a device has one of each, a gateway may have one a device."""

ACTS_FOR_MAX: Final = 1_000
"""Devices a gateway may list by name; one with more acts for all (``*``)."""

CORS_S_MAX: Final = 600
"""Seconds for which a browser may remember what pages of another origin are allowed (Access-Control-Max-Age)."""
