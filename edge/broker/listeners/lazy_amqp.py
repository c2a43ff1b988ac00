"""The drivers of AMQP connections, made when the first one comes.

AMQP takes 2 MiB of code (Proton's engine and what is around it), a twentieth of an idle gateway, which many never use.
So the first to come waits while it is imported, beside the event loop, and others are served meanwhile. That it can be
imported is found out when the gateway starts (`edge.appliance.parts`).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from bridge.transport.connection import Connection
from bridge.transport.driver import Driver, Meter
from edge.broker.amqp.administration import Administration
from edge.broker.limits import Limits
from edge.broker.listeners.tcp import Gone
from edge.broker.model.tracing import UNTRACED, Tracer
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Gate

if TYPE_CHECKING:
    from edge.broker.amqp.interception import LinkInterception
    from edge.broker.listeners.amqp import AmqpDrivers

AMQP: Final = "edge.broker.listeners.amqp"
"""The module that imports all of it."""


class LazyAmqpDrivers:
    """`edge.broker.listeners.amqp.AmqpDrivers`, from the first connection on."""

    def __init__(
        self,
        limits: Limits,
        container_id: str,
        router: Router,
        gate: Gate,
        interception: Callable[[], LinkInterception | None],
        administration: Administration | None,
        loop: asyncio.AbstractEventLoop,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """`interception` makes who steps in between clients and the router, None where nobody does; for the others see
        `AmqpDrivers`."""
        self.container_id = container_id
        self._limits = limits
        self._router = router
        self._gate = gate
        self._interception = interception
        self._administration = administration
        self._loop = loop
        self._tracer = tracer
        self._drivers: AmqpDrivers | None = None

    def rename(self, container_id: str) -> None:
        """Show this container-id of the broker to connections from now on."""
        self.container_id = container_id
        if self._drivers is not None:
            self._drivers.rename(container_id)

    async def load(self) -> None:
        """Import what the first connection needs, beside the loop. Raises ImportError, or what a module raises."""
        if self._drivers is None:
            await asyncio.to_thread(importlib.import_module, AMQP)

    def serve(
        self, gone: Gone, identity: str | None, around: Callable[[Connection], Connection], meter: Meter
    ) -> Driver:
        """See `edge.broker.listeners.listeners.Drivers`."""
        return self._made().serve(gone, identity, around, meter)

    def turn_away(self, gone: Gone, around: Callable[[Connection], Connection]) -> Driver:
        """See `edge.broker.listeners.listeners.Drivers`."""
        return self._made().turn_away(gone, around)

    def shut_down(self, drivers: Iterable[Driver]) -> None:
        """Say good-bye over those of these connections that are AMQP's."""
        if self._drivers is not None:
            self._drivers.shut_down(drivers)

    def _made(self) -> AmqpDrivers:
        if self._drivers is not None:
            return self._drivers
        from bridge.engine.loops import LOOPS  # noqa: PLC0415 - see above
        from edge.broker.amqp.arrivals import Arrivals  # noqa: PLC0415
        from edge.broker.amqp.interception import NO_INTERCEPTION  # noqa: PLC0415
        from edge.broker.listeners.amqp import AmqpDrivers  # noqa: PLC0415

        self._drivers = AmqpDrivers(
            self._limits,
            self.container_id,
            self._router,
            self._gate,
            self._interception() or NO_INTERCEPTION,
            self._administration,
            self._loop.time,
            Arrivals(LOOPS, self._router),
            self._tracer,
        )
        return self._drivers
