"""Limits of the bundles that a hub serves."""

from __future__ import annotations

from typing import Final

BUNDLE_BYTES_MAX: Final = 1 << 30
"""Largest bundle: a slot holds 768 MiB, and a usual bundle has 170 MiB."""

BUNDLES_MAX: Final = 20
"""Bundles in the folder, which is on the disk of registry and lake: 3.4 GiB at the usual size."""

FREE_BYTES_MIN: Final = 2 << 30
"""Free bytes that stay after a bundle was added: a full disk stops landings."""

COPIED_BYTES: Final = 1 << 20
"""Bytes that are copied at a time when a bundle is added."""

DOWNLOADS_MAX: Final = 64
"""Requests for bundles that are answered at once, each with `READ_BYTES` in memory and as much in its connection. A
gateway that is refused asks again within 5 s to 5 min."""

DOWNLOADS_OF_TENANT_MAX: Final = 32
"""Such requests of one tenant's gateways: half, so that others find room."""

DOWNLOADS_OF_GATEWAY_MAX: Final = 2
"""Such requests of one gateway: one, and the previous one while the hub has not noticed that its connection broke."""

READ_BYTES: Final = 128 << 10
"""Bytes that are read and sent at a time, in 0.2 ms of the event loop with TLS."""

DOWNLOAD_BYTES_A_SECOND: Final = 32 << 20
"""Bytes of bundles that a hub sends in a second, to all gateways together: some 5 % of a core, so that landings
continue. 10 000 gateways that fetch 23 MiB each take two hours, if `DOWNLOADS_MAX` of their links carry that much: with
links of 1 Mbit/s, eight hours."""

DOWNLOAD_BURST_S: Final = 0.25
"""Seconds of that rate that may be sent at once."""

READERS: Final = 2
"""Threads that read bundles: a folder on a slow disk or network does not take the threads of other parts."""
