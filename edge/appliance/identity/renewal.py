"""A running gateway renews its certificate in time, and its connections stay as they are.

The new one is for the next connection. What renews is imported when it is needed: it takes 10 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bridge.backoff import Backoff, BackoffPolicy
from bridge.resources.endpoint import Endpoint
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


class Failure(NamedTuple):
    """A certificate could not be renewed."""

    words: str
    away: bool
    """Nobody answered, or the connection broke."""


class Renewal:
    """Of one gateway's certificate. `start`, later `stop`; made inside a running loop."""

    def __init__(
        self,
        data: Path,
        endpoints: Callable[[], Sequence[Endpoint]],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`data`: the gateway's data directory. `endpoints`: of the hub it is shown to; none while it is shown
        to nobody. `now`: UTC seconds since 1970; `clock`: seconds that do not go back; `draw`: floats in [0, 1)."""
        self.trouble: str | None = None
        """Why the hub does not renew it; None: it does, or has not been asked, or is away."""
        self._data = data
        self._endpoints = endpoints
        self._now = now
        self._clock = clock
        self._draw = draw
        self._share = DUE + JITTER * (2 * draw() - 1)
        self._again: Backoff | None = None
        """While it is due and could not be renewed."""
        self._not_before = float("-inf")
        """The next try, by `clock`."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="certificate renewal")

    async def stop(self) -> None:
        """End; idempotent. A renewal under way goes on in its thread: what it brings is written whole."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(await self.look())

    async def look(self) -> float:
        """Renew it when it is time; returns the seconds until the next look."""
        endpoints = self._endpoints()
        if not endpoints:
            self.trouble = None
            return LOOK_S_MAX
        try:
            begins, ends = validity_of(identity_file(self._data))
        except (OSError, CertificateError):
            return LOOK_S_MAX  # said by who looks at certificates
        due_in_s = begins + (ends - begins) * self._share - self._now()
        if due_in_s > 0:
            self._again, self.trouble = None, None
            return min(due_in_s, LOOK_S_MAX)
        wait_s = self._not_before - self._clock()
        if wait_s > 0:
            return min(wait_s, LOOK_S_MAX)
        if not await self._renewed(endpoints):
            return self._failed(ends - begins)
        self._share = DUE + JITTER * (2 * self._draw() - 1)
        self._again, self.trouble = None, None
        self._not_before = self._clock() + (ends - begins) * AT_MOST_EVERY
        return 0.0

    def _failed(self, life_s: float) -> float:
        if self._again is None:
            first_s, limit_s = min(AGAIN_S[0], life_s / 60), min(AGAIN_S[1], life_s / 20)
            self._again = Backoff(BackoffPolicy(first_s=first_s, limit_s=limit_s), self._draw)
        wait_s = self._again.failed(self._clock())
        self._not_before = self._clock() + wait_s
        return min(wait_s, LOOK_S_MAX)

    async def _renewed(self, endpoints: Sequence[Endpoint]) -> bool:
        """Ask one endpoint after the other; True when there is a new certificate."""
        for endpoint in endpoints:
            outcome = await asyncio.to_thread(_renew, self._data, endpoint)
            if outcome is None:
                log.info("the certificate is renewed; it counts for the next connection")
                return True
            if outcome.away:
                log.info("the certificate is due for renewal, and the hub is away: %s", outcome.words)
                continue
            if outcome.words != self.trouble:
                log.warning("the hub does not renew our certificate: %s", outcome.words)
            self.trouble = outcome.words
        return False


def _renew(data: Path, endpoint: Endpoint) -> Failure | None:
    """In a thread; None: it is renewed."""
    from edge.appliance.identity.enrolling import renew  # noqa: PLC0415 - see above
    from edge.appliance.identity.exchange import Exchange, HubUnreachable, NotIssued, WrongHub  # noqa: PLC0415

    try:
        renew(data, Exchange(endpoint))
    except HubUnreachable as error:
        return Failure(str(error), away=True)
    except (WrongHub, NotIssued, ValueError, OSError) as error:
        return Failure(str(error), away=False)
    return None
