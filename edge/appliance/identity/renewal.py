"""Renewal of a running gateway's certificate. Open connections are kept; new ones use the new certificate.

The code that renews is imported when it is needed, as it takes 10 MiB.
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
from edge.appliance.identity.location import identity_file
from edge.health.certificates import CertificateError, validity_of

log = logging.getLogger(__name__)

DUE: Final = 2 / 3
"""Share of its validity after which a certificate is renewed: the rest is a margin for a hub that is away."""
JITTER: Final = 1 / 20
"""Largest random shift of the renewal, as a share of the validity, so that gateways that enrolled together do not
renew together."""
CHECK_INTERVAL_S_MAX: Final = 15.0
"""Longest time between two checks of clock and file (2 KiB), as either may have changed."""
RENEWAL_SHARE_MIN: Final = 1 / 10
"""Share of its validity within which it is renewed at most once: to a clock that is months ahead the new one is old
at once."""
RETRY_S: Final = (60.0, 3_600.0)
"""First and longest pause before the next attempt; shorter for a certificate that is valid for less than days."""


class Renewal:
    """Renew the certificate of one gateway. Construct it inside a running loop; call `start`, later `stop`."""

    def __init__(
        self,
        data: Path,
        ways: Callable[[], Sequence[PeerRoute]],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`data`: the gateway's data directory. `ways`: endpoints of the hub that gets the certificate; empty without
        one. `now`: UTC seconds since 1970. `clock`: monotonic seconds. `draw`: random floats in [0, 1)."""
        self._data = data
        self._ways = ways
        self._now = now
        self._clock = clock
        self._draw = draw
        self._share = DUE + JITTER * (2 * draw() - 1)
        self._again: Backoff | None = None
        """Backoff while the renewal is due and has failed."""
        self._not_before = float("-inf")
        """Time of the next attempt, by `clock`."""
        self._request = HubRequest(
            lambda way: _renew(data, way),
            log,
            away="the certificate is due for renewal, and the hub is away: %s",
            refused="the hub does not renew our certificate: %s",
        )
        self._task = PeriodicTask(
            "certificate renewal", self.check, CHECK_INTERVAL_S_MAX, log=log, failed="the certificate is not renewed"
        )

    @property
    def trouble(self) -> str | None:
        """Reason why the hub refuses the renewal; None: it does not, was not asked, or is away."""
        return self._request.trouble

    def start(self) -> None:
        """Start the periodic check."""
        self._task.start()

    async def stop(self) -> None:
        """Stop the periodic check; idempotent."""
        await self._task.stop()

    async def check(self) -> float:
        """Renew the certificate when it is due; return the seconds until the next check."""
        ways = self._ways()
        if not ways:
            self._request.trouble = None
            return CHECK_INTERVAL_S_MAX
        try:
            begins, ends = validity_of(identity_file(self._data))
        except (OSError, CertificateError):
            return CHECK_INTERVAL_S_MAX  # reported by `edge.health.certificates`
        due_in_s = begins + (ends - begins) * self._share - self._now()
        if due_in_s > 0:
            self._again, self._request.trouble = None, None
            return min(due_in_s, CHECK_INTERVAL_S_MAX)
        wait_s = self._not_before - self._clock()
        if wait_s > 0:
            return min(wait_s, CHECK_INTERVAL_S_MAX)
        if not await self._request.send(ways):
            return self._failed(ends - begins)
        log.info("the certificate was renewed; the next connection uses it")
        self._share = DUE + JITTER * (2 * self._draw() - 1)
        self._again = None
        self._not_before = self._clock() + (ends - begins) * RENEWAL_SHARE_MIN
        return 0.0

    def _failed(self, life_s: float) -> float:
        if self._again is None:
            first_s, limit_s = min(RETRY_S[0], life_s / 60), min(RETRY_S[1], life_s / 20)
            self._again = Backoff(BackoffPolicy(first_s=first_s, limit_s=limit_s), self._draw)
        wait_s = self._again.failed(self._clock())
        self._not_before = self._clock() + wait_s
        return min(wait_s, CHECK_INTERVAL_S_MAX)


def _renew(data: Path, way: PeerRoute) -> HubRequestFailure | None:
    """Renew the certificate, in a thread; return None on success."""
    from edge.appliance.identity.enrolling import renew  # noqa: PLC0415 - see above
    from edge.appliance.identity.exchange import HubEnrolmentClient, HubUnreachable, NotIssued, WrongHub  # noqa: PLC0415

    try:
        renew(data, HubEnrolmentClient(way.endpoint, proxy=way.proxy))
    except HubUnreachable as error:
        return HubRequestFailure(str(error), away=True)
    except (WrongHub, NotIssued, ValueError, OSError) as error:
        return HubRequestFailure(str(error), away=False)
    return None
