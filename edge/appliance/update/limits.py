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

INSTALLED_MAX: Final = 3
"""Starts of one update that the power, RAUC or an outage of the hub cut off. A card that cannot be written is
not worn out by it, and an update that breaks the uplink itself is abandoned after three trials."""

FOLLOWED_S: Final = 2.0
"""Seconds between looks at what is wanted and how far it is: some stat(2) and small files."""

READ_BYTES: Final = 64 << 10
"""Of a bundle that is fetched, at a time."""

SYNCED_BYTES: Final = 4 << 20
"""So much is written before it is on disk and noted: so much a power cut takes."""

ANSWER_S: Final = 30.0
"""For a connection to where a bundle is, and for each part of its answer."""

AGAIN_S: Final = (5.0, 15.0, 60.0, 300.0)
"""Before the next try to fetch; the last for as long as it takes."""

FETCHED_WRONG_MAX: Final = 2
"""So often a bundle may be another one than it should be: once a server may have changed it half-way."""
