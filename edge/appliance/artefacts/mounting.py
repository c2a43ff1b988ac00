"""Routes of artefacts in the web application of a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.appliance.artefacts.ddi import DdiApi
from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.reporting import UpdateReporting
from edge.appliance.artefacts.routes import DeviceArtefactApi, DeviceGate
from edge.appliance.artefacts.serving import ArtefactServing
from edge.broker.http.access import HttpAccess
from edge.broker.http.api import HttpDeviceApi
from edge.broker.http.reporting import ReportingDevices
from edge.broker.http.route import HttpRoute

if TYPE_CHECKING:
    from edge.broker.hono.service import DeviceService


def artefact_routes(
    data: Path, keeper: ArtefactKeeper, api: HttpDeviceApi, access: HttpAccess, service: DeviceService | None
) -> list[HttpRoute]:
    """Return the routes of the artefacts of a gateway for its devices. `service`: of Hono's device API, if the space
    has it."""
    devices: DeviceGate = ReportingDevices(api, access)
    if service is not None:
        from edge.broker.hono.http import HonoApi  # noqa: PLC0415 - only where the space has the device API
        from edge.broker.hono.reporting import ReportingHonoDevices  # noqa: PLC0415

        if isinstance(api, HonoApi):
            devices = ReportingHonoDevices(api, service, access)
    serving = ArtefactServing(keeper, UpdateReporting(data, keeper, devices))
    keeper.call_when_stopped(serving.close)
    return [*DeviceArtefactApi(serving, devices).routes, *DdiApi(serving, devices).routes]
