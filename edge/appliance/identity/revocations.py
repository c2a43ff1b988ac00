"""What the hub's authority has revoked, as a running gateway keeps it: whoever has a stolen key of the hub is no hub.

The list (RFC 5280 section 5) is fetched over the port of the hub, and OpenSSL looks at it in every handshake. It is
good for days, which is how long a gateway goes on with what it knew; then it connects nowhere before it has a new one.
A connection that stands is left alone: its peer was the hub when it began.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bridge.backoff import Backoff, BackoffPolicy
from bridge.proxy import PeerRoute
from edge.appliance.identity.asking import HubRequest, HubRequestFailure, PeriodicTask
from edge.appliance.identity.location import REVOKED, identity_file

log = logging.getLogger(__name__)

FETCHED_EVERY_S: Final = 4 * 3_600.0
"""So long a revocation may be news: with 100 000 gateways 7 requests a second at the hub."""
AGAIN: Final = BackoffPolicy(first_s=0.5, limit_s=15.0)
"""Pauses after failures, as the uplink's own: without a list it waits."""
LOOK_S: Final = 15.0
"""Between two looks at file and clock."""
JITTER: Final = 1 / 4
"""Share of the time by which the next one is fetched earlier, by lot."""


class HubRevocations:
    """Of one gateway's hub. `start`, later `stop`; made inside a running loop."""

    def __init__(
        self,
        data: Path,
        ways: Callable[[], Sequence[PeerRoute]],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`data`: the gateway's data directory. `ways`: to the hub whose list is looked at; none while none is.
        `now`: UTC seconds since 1970; `clock`: seconds that do not go back; `draw`: floats in [0, 1)."""
        self._file = identity_file(data).with_name(REVOKED)
        self._ways = ways
        self._now = now
        self._every_s = FETCHED_EVERY_S * (1 - JITTER * draw())
        self._backoff = Backoff(AGAIN, draw)
        self._clock = clock
        self._fetched = False
        """Since the start."""
        self._question = HubRequest(
            lambda way: _fetch(data, way),
            log,
            away="the list of what the hub has revoked is due, and the hub is away: %s",
            refused="no new list of what the hub has revoked: %s",
        )
        self._looking = PeriodicTask(self.look, "revocations of the hub")

    @property
    def trouble(self) -> str | None:
        """Why there is no new list; None: there is, or the hub is away."""
        return self._question.trouble

    def start(self) -> None:
        """Begin to look."""
        self._looking.start()

    async def stop(self) -> None:
        """End; idempotent."""
        await self._looking.stop()

    async def look(self) -> float:
        """Fetch the list when it is time; returns the seconds until the next look."""
        ways = self._ways()
        if not ways:
            self._question.trouble = None
            return LOOK_S
        if not self._is_old():
            return LOOK_S
        if not await self._question.put(ways):
            return self._backoff.failed(self._clock())
        self._fetched = True
        self._backoff.reset()
        return LOOK_S

    def _is_old(self) -> bool:
        """By the time it was written. Where the clock is behind that, a process fetches one, and no more."""
        try:
            written_at = self._file.stat().st_mtime
        except OSError:
            return True
        now = self._now()
        return now >= written_at + self._every_s or (now < written_at and not self._fetched)


def _fetch(data: Path, way: PeerRoute) -> HubRequestFailure | None:
    """In a thread; None: there is a new list. What fetches is imported when it is needed."""
    from edge.appliance.identity.exchange import HubEnrolmentClient, HubUnreachable, NotIssued, WrongHub  # noqa: PLC0415
    from edge.appliance.identity.revocation_list import ListUnusable, fetch  # noqa: PLC0415

    try:
        fetch(data, HubEnrolmentClient(way.endpoint, proxy=way.proxy))
    except HubUnreachable as error:
        return HubRequestFailure(str(error), away=True)
    except (WrongHub, NotIssued, ListUnusable, ValueError, OSError) as error:
        return HubRequestFailure(str(error), away=False)
    return None
