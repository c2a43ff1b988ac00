"""Bounds on the result of one message, with unit and reason."""

from __future__ import annotations

from typing import Final

BODY_BYTES_MAX: Final = 256 * 1024
"""Bytes of a body that is read. As objects it takes up to forty times as much; a gateway accepts messages of 16 MiB."""

GZIP_MEMBERS_MAX: Final = 16
"""Members of one gzip body. Programs write one, tools that append write several.

What follows a member is copied, so thousands of empty ones would take seconds.
"""

VALUES_MAX: Final = 1_024
"""Values of one message; a body with more is more likely a document than readings."""

DEPTH_MAX: Final = 16
"""Levels of nesting. Only broken encoders were seen to write deeper documents."""

METRIC_CHARACTERS_MAX: Final = 256
"""Characters of a value's path, unit and device.

They are stored with each value, so 1 024 values of one body have at most as much text as the body may have.
"""

EXPONENT_MAX: Final = 400
"""Decimal exponent of a CBOR decimal fraction. Beyond it no double is finite, and 10^100000000 takes minutes."""

ADDRESSES_REMEMBERED: Final = 4_096
"""Addresses for which a worker caches the decoder: a search costs 1 µs per registered pattern."""

DESCRIPTOR_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a registered Protobuf descriptor set: every worker holds it, and it is stored in a table row."""
