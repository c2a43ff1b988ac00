"""Bounds of what one message may become, with unit and reason."""

from __future__ import annotations

from typing import Final

BODY_BYTES_MAX: Final = 256 * 1024
"""Bytes of a body that is read. As objects it takes up to forty times as much; a gateway takes messages of 16 MiB."""

GZIP_MEMBERS_MAX: Final = 16
"""Members of one gzip body. Programs write one, tools that append write some; what follows a member is copied, so
thousands of empty ones would take seconds."""

VALUES_MAX: Final = 1_024
"""Values of one message; a body with more is more likely a document than readings."""

DEPTH_MAX: Final = 16
"""Levels of nesting. Deeper documents are seen from broken encoders only."""

METRIC_CHARACTERS_MAX: Final = 256
"""Characters of a value's path in its document, of its unit and of its device: they are written out with each value, so
1 024 values of one body are at most as much text again as the body may be."""

EXPONENT_MAX: Final = 400
"""Decimal exponent of a CBOR decimal fraction. Beyond it nothing is finite as a double, and working out the digits of
10^100000000 takes minutes."""

ADDRESSES_REMEMBERED: Final = 4_096
"""Addresses whose decoder a worker remembers: a search through all registered patterns costs 1 µs a pattern."""

DESCRIPTOR_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a registered Protobuf descriptor set: every worker holds it, and a row of a table has it."""
