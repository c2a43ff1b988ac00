"""A running gateway renews its certificate in time, and its connections stay as they are.

The new one is for the next connection. What renews is imported when it is needed: it takes 10 MiB.
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
from edge.appliance.identity.location import identity_file
from edge.health.certificates import CertificateError, validity_of

log = logging.getLogger(__name__)

DUE: Final = 2 / 3
"""Share of its life after which a certificate is renewed: the rest is for a hub that is away."""
JITTER: Final = 1 / 20
"""Share of its life by which that may be earlier or later: gateways that enrolled together do not renew together."""
LOOK_S_MAX: Final = 15.0
"""Longest time without a look at clock and file, a read of 2 KiB: either may have been set meanwhile."""
AT_MOST_EVERY: Final = 1 / 10
"""Share of its life within which it is renewed once: a clock that is months ahead finds the new one old at once."""
AGAIN_S: Final = (60.0, 3_600.0)
"""First and longest pause before the next try; less for a certificate that lives less than days."""


class Renewal:
    """Of one gateway's certificate. `start`, later `stop`; made inside a running loop."""

    def __init__(
        self,
        data: Path,
        ways: Callable[[], Sequence[PeerRoute]],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`data`: the gateway's data directory. `ways`: to the hub it is shown to; none while it is shown
        to nobody. `now`: UTC seconds since 1970; `clock`: seconds that do not go back; `draw`: floats in [0, 1)."""
        self._data = data
        self._ways = ways
        self._now = now
        self._clock = clock
        self._draw = draw
        self._share = DUE + JITTER * (2 * draw() - 1)
        self._again: Backoff | None = None
        """While it is due and could not be renewed."""
        self._not_before = float("-inf")
        """The next try, by `clock`."""
        self._question = HubRequest(
            lambda way: _renew(data, way),
            log,
            away="the certificate is due for renewal, and the hub is away: %s",
            refused="the hub does not renew our certificate: %s",
        )
        self._looking = PeriodicTask(self.look, "certificate renewal")

    @property
    def trouble(self) -> str | None:
        """Why the hub does not renew it; None: it does, or has not been asked, or is away."""
        return self._question.trouble

    def start(self) -> None:
        """Begin to look."""
        self._looking.start()

    async def stop(self) -> None:
        """End; idempotent."""
        await self._looking.stop()

    async def look(self) -> float:
        """Renew it when it is time; returns the seconds until the next look."""
        ways = self._ways()
        if not ways:
            self._question.trouble = None
            return LOOK_S_MAX
        try:
            begins, ends = validity_of(identity_file(self._data))
        except (OSError, CertificateError):
            return LOOK_S_MAX  # said by who looks at certificates
        due_in_s = begins + (ends - begins) * self._share - self._now()
        if due_in_s > 0:
            self._again, self._question.trouble = None, None
            return min(due_in_s, LOOK_S_MAX)
        wait_s = self._not_before - self._clock()
        if wait_s > 0:
            return min(wait_s, LOOK_S_MAX)
        if not await self._question.put(ways):
            return self._failed(ends - begins)
        log.info("the certificate is renewed; it counts for the next connection")
        self._share = DUE + JITTER * (2 * self._draw() - 1)
        self._again = None
        self._not_before = self._clock() + (ends - begins) * AT_MOST_EVERY
        return 0.0

    def _failed(self, life_s: float) -> float:
        if self._again is None:
            first_s, limit_s = min(AGAIN_S[0], life_s / 60), min(AGAIN_S[1], life_s / 20)
            self._again = Backoff(BackoffPolicy(first_s=first_s, limit_s=limit_s), self._draw)
        wait_s = self._again.failed(self._clock())
        self._not_before = self._clock() + wait_s
        return min(wait_s, LOOK_S_MAX)


def _renew(data: Path, way: PeerRoute) -> HubRequestFailure | None:
    """In a thread; None: it is renewed."""
    from edge.appliance.identity.enrolling import renew  # noqa: PLC0415 - see above
    from edge.appliance.identity.exchange import HubEnrolmentClient, HubUnreachable, NotIssued, WrongHub  # noqa: PLC0415

    try:
        renew(data, HubEnrolmentClient(way.endpoint, proxy=way.proxy))
    except HubUnreachable as error:
        return HubRequestFailure(str(error), away=True)
    except (WrongHub, NotIssued, ValueError, OSError) as error:
        return HubRequestFailure(str(error), away=False)
    return None
