"""Devices of Hono's device API that report over HTTP: a report is an event of its device."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from bridge.artefacts.report import REPORT_TYPE
from bridge.message import AMQP, DURABLE, Run
from edge.broker.hono import messages
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.http import HonoApi
from edge.broker.hono.service import DeviceService
from edge.broker.hono.topics import DeviceEndpoint
from edge.broker.http.access import HttpAccess
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import AdmittedDevice
from edge.broker.model.authorization import Grant


class ReportingHonoDevices:
    """Authenticates devices of the tenant, and publishes their reports."""

    def __init__(self, api: HonoApi, service: DeviceService, access: HttpAccess) -> None:
        self._api = api
        self._service = service
        self._access = access

    @asynccontextmanager
    async def admitted(self, request: Request, device: str, _report_address: str) -> AsyncIterator[AdmittedDevice]:
        """Authenticate a client that is a device of the tenant, or acts for one (empty: it is the device). Yield the
        device. Raises RequestRefused."""
        async with self._access.admitted(request) as (grant, ended):
            try:
                found = self._device(grant, device)
            except DeviceError as error:
                raise RequestRefused(error.status, str(error)) from None
            yield AdmittedDevice(found, ended)

    async def publish(self, device: str, _report_address: str, body: bytes) -> bool:
        """Publish a report of a device in JSON as its event; it is on disk on return. Raises RequestRefused."""
        address = self._service.address(DeviceEndpoint.EVENT)
        source = messages.MessageSource(device, messages.HTTP_ADAPTER, "/artefacts")
        message = messages.encode_bare_message(
            to=address,
            body=body,
            now_ns=self._service.router.now_ns(),
            application=messages.upload_properties(source, None),
            content_type=REPORT_TYPE,
        )
        run = Run(address, device, AMQP | DURABLE | 1, messages.header(durable=True, ttl_s=None), [message])
        try:
            await self._api.publish_run(run, 1)
        except DeviceError as error:
            raise RequestRefused(error.status, str(error)) from None
        return True

    def _device(self, grant: Grant | None, device: str) -> str:
        """Return the device of a client. Raises DeviceError."""
        tenant = self._service.tenant
        if grant is None:
            return tenant.device(None, tenant.name, device)
        principal = tenant.principal(grant.user)
        if principal is None:
            raise DeviceError(403, f"{grant.user} is not a device of tenant {tenant.name}")
        return tenant.device(principal, "", device)
