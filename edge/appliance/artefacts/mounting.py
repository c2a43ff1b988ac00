"""Artefacts for the devices of a gateway: the parts that its web application and its broker use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.appliance.artefacts.answering import ArtefactAnswering
from edge.appliance.artefacts.ddi import DdiApi
from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.nodes import ArtefactNodes
from edge.appliance.artefacts.reporting import UpdateReporting
from edge.appliance.artefacts.routes import DeviceArtefactApi, DeviceGate
from edge.appliance.artefacts.serving import ArtefactServing
from edge.appliance.artefacts.topics import ArtefactTopics
from edge.broker.http.access import HttpAccess
from edge.broker.http.api import HttpDeviceApi
from edge.broker.http.reporting import ReportingDevices
from edge.broker.http.route import HttpRoute
from edge.broker.limits import Limits
from edge.broker.router.router import Router

if TYPE_CHECKING:
    from edge.broker.hono.service import DeviceService


class MountedArtefacts:
    """Artefacts of one gateway for its devices. Closed with the keeper."""

    def __init__(self, data: Path, keeper: ArtefactKeeper) -> None:
        self._serving = ArtefactServing(keeper, UpdateReporting(data, keeper))
        self._keeper = keeper
        self._answering: ArtefactAnswering | None = None
        keeper.call_when_stopped(self._serving.close)

    def routes(self, api: HttpDeviceApi, access: HttpAccess, service: DeviceService | None) -> list[HttpRoute]:
        """Return the routes for devices. `service`: of Hono's device API, if the space has it."""
        devices: DeviceGate = ReportingDevices(api, access)
        if service is not None:
            from edge.broker.hono.http import HonoApi  # noqa: PLC0415 - only where the space has the device API
            from edge.broker.hono.reporting import ReportingHonoDevices  # noqa: PLC0415

            if isinstance(api, HonoApi):
                devices = ReportingHonoDevices(api, service, access)
        return [*DeviceArtefactApi(self._serving, devices).routes, *DdiApi(self._serving, devices).routes]

    def topics(self, router: Router) -> ArtefactTopics:
        """Return the topics for devices that speak only MQTT."""
        return ArtefactTopics(self._answers(router), router)

    def nodes(self, router: Router) -> ArtefactNodes:
        """Return the nodes for devices that speak only AMQP."""
        return ArtefactNodes(self._answers(router), router)

    def _answers(self, router: Router) -> ArtefactAnswering:
        """Return the answers over MQTT and AMQP, always the same: they have one limit."""
        if self._answering is None:
            sink = ReportingDevices(HttpDeviceApi(router, Limits()), HttpAccess())
            self._answering = ArtefactAnswering(self._serving, sink)
            self._keeper.call_when_stopped(self._answering.close)  # before the serving is closed
        return self._answering
