"""How long an update is tried."""

from __future__ import annotations

from typing import Final

HEALTHY_S: Final = 60.0
"""Seconds without a break it has to be well: a gateway that ends and starts again within them is not kept."""

TRIAL_S: Final = 900.0
"""Seconds from the start of the new system in which that has to be: an uplink over a mobile network takes minutes, and
a Raspberry Pi 3 reads a full store as long. A system that cannot even decide is given up by a timer of systemd after
20 minutes (`waypost-trial-overdue.timer`)."""

LOOK_S: Final = 5.0
"""Seconds between looks."""

FILE_BYTES_MAX: Final = 64 << 10
"""Of the record of an update: a full one has 1 KiB."""
