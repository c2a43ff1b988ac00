"""Limits of updates."""

from __future__ import annotations

from typing import Final

HEALTHY_S: Final = 60.0
"""Time for which a new system has to be healthy without a break: one that restarts within it is not kept."""

TRIAL_S: Final = 900.0
"""Time limit of a trial, from the start of the new system: an uplink over a mobile network takes minutes, and so does
reading a full store on a Raspberry Pi 3. A system that cannot even decide is rolled back by a timer of systemd after
20 minutes (`waypost-trial-overdue.timer`)."""

CHECK_INTERVAL_S: Final = 5.0
"""Interval between two checks of the gateway's condition."""

FILE_BYTES_MAX: Final = 64 << 10
"""Largest size of the record of an update; a full one has 1 KiB."""

ATTEMPTS_MAX: Final = 3
"""Attempts of one update that power, RAUC or an outage of the hub interrupted. The limit spares a card that cannot be
written, and ends an update that breaks the uplink itself after three trials."""

FOLLOW_INTERVAL_S: Final = 2.0
"""Interval between two checks of the wanted system and its progress: some stat(2) and small files."""

READ_BYTES: Final = 64 << 10
"""Bytes of a bundle that are read at a time."""

SYNC_BYTES: Final = 4 << 20
"""Bytes between two syncs of a download: the most that a power cut loses."""

ANSWER_S: Final = 30.0
"""Time limit of a connection to a bundle's server, and of each part of its answer."""

RETRY_S: Final = (5.0, 15.0, 60.0, 300.0)
"""Pauses before the next attempts of a download; the last one repeats."""

WRONG_DOWNLOADS_MAX: Final = 2
"""Downloads with a wrong checksum after which a bundle is refused: once, a server may replace the file half-way."""

INDEX_ATTEMPTS_MAX: Final = 3
"""Failures of a server's index of a bundle's blocks, after which all of the bundle is fetched. A server that restarts
or replaces its files answers again within the pauses."""
