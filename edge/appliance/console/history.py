"""Samples of the last 15 minutes, one a second, so that a console opened after an outage still shows it."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from edge.appliance.console.status import GatewayStatus, StatusSource, status_of

SAMPLES_MAX = 900
"""At one sample a second: 15 minutes, about 100 kB."""
INTERVAL_S = 1.0

Sample = tuple[float, int, int, int, bool]
"""(seconds since 1970, messages received, messages waiting for the uplink, messages acknowledged by the hub, the uplink
is connected or not configured)."""


def sample_of(status: GatewayStatus, at: float) -> Sample:
    """Return the sample of a status."""
    uplink = status.get("uplink", {})
    return (
        round(at, 3),
        status.get("messages", {}).get("received", 0),
        uplink.get("backlog_messages", 0),
        uplink.get("acked", 0),
        uplink.get("state") not in ("connecting", "paused"),
    )


class StatusHistory:
    """Samples of a status, one a second while `run` runs."""

    def __init__(self, source: StatusSource) -> None:
        self.source = source
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    @property
    def samples(self) -> list[Sample]:
        return list(self._samples)

    def take(self, at: float) -> None:
        """Take one sample, at the current time `at`."""
        self._samples.append(sample_of(status_of(self.source), at))

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.take(time.time())
            await asyncio.sleep(INTERVAL_S)
