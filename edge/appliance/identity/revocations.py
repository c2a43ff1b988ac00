"""Revocation list of the hub's authority, kept current by a running gateway: it rejects a stolen key of the hub.

The list (RFC 5280 section 5) is fetched from the port of the hub, and OpenSSL checks it in every handshake. It is valid
for days. When it has expired the gateway connects only after it has a new one. Open connections are kept: their peer
was verified when they were opened.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bridge.backoff import Backoff, BackoffPolicy
from bridge.periodic_task import PeriodicTask
from bridge.proxy import PeerRoute
from edge.appliance.identity.hub_request import HubRequest, HubRequestFailure
from edge.appliance.identity.location import REVOKED, identity_file

log = logging.getLogger(__name__)

FETCH_INTERVAL_S: Final = 4 * 3_600.0
"""Interval between two fetches, within which a revocation takes effect. 100 000 gateways make 7 requests a second."""
RETRY: Final = BackoffPolicy(first_s=0.5, limit_s=15.0)
"""Pauses after failures, as short as those of the uplink, which waits for the list."""
CHECK_INTERVAL_S: Final = 15.0
"""Interval between two checks of file and clock."""
JITTER: Final = 1 / 4
"""Largest share of the interval by which the next fetch is earlier, at random."""


class HubRevocations:
    """Keep the list of one gateway's hub current. Construct it inside a running loop; call `start`, later `stop`."""

    def __init__(
        self,
        data: Path,
        ways: Callable[[], Sequence[PeerRoute]],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`data`: the gateway's data directory. `ways`: endpoints of the hub that provides the list; empty without one.
        `now`: UTC seconds since 1970. `clock`: monotonic seconds. `draw`: random floats in [0, 1)."""
        self._file = identity_file(data).with_name(REVOKED)
        self._ways = ways
        self._now = now
        self._every_s = FETCH_INTERVAL_S * (1 - JITTER * draw())
        self._backoff = Backoff(RETRY, draw)
        self._clock = clock
        self._fetched = False
        """True when the list was fetched since the start."""
        self._request = HubRequest(
            lambda way: _fetch(data, way),
            log,
            away="the hub's revocation list is due, and the hub is away: %s",
            refused="the hub's revocation list cannot be renewed: %s",
        )
        self._task = PeriodicTask(
            "revocations of the hub", self.check, CHECK_INTERVAL_S,
            log=log, failed="the hub's revocation list is not fetched",
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why the list cannot be renewed; None: it can, or the hub is away."""
        return self._request.trouble

    def start(self) -> None:
        """Start the periodic check."""
        self._task.start()

    async def stop(self) -> None:
        """Stop the periodic check; idempotent."""
        await self._task.stop()

    async def check(self) -> float:
        """Fetch the list when it is due; return the seconds until the next check."""
        ways = self._ways()
        if not ways:
            self._request.trouble = None
            return CHECK_INTERVAL_S
        if not self._is_old():
            return CHECK_INTERVAL_S
        if not await self._request.send(ways):
            return self._backoff.failed(self._clock())
        self._fetched = True
        self._backoff.reset()
        return CHECK_INTERVAL_S

    def _is_old(self) -> bool:
        """Return True when the file is due to be replaced. If the clock is behind the time of the file, one fetch a
        process is made."""
        try:
            written_at = self._file.stat().st_mtime
        except OSError:
            return True
        now = self._now()
        return now >= written_at + self._every_s or (now < written_at and not self._fetched)


def _fetch(data: Path, way: PeerRoute) -> HubRequestFailure | None:
    """Fetch the list, in a thread; return None on success. The code that fetches is imported when it is needed."""
    from edge.appliance.identity.exchange import HubEnrolmentClient, HubUnreachable, NotIssued, WrongHub  # noqa: PLC0415
    from edge.appliance.identity.revocation_list import ListUnusable, fetch  # noqa: PLC0415

    try:
        fetch(data, HubEnrolmentClient(way.endpoint, proxy=way.proxy))
    except HubUnreachable as error:
        return HubRequestFailure(str(error), away=True)
    except (WrongHub, NotIssued, ListUnusable, ValueError, OSError) as error:
        return HubRequestFailure(str(error), away=False)
    return None
