"""Devices that report over HTTP, in a space without a device API: a user is each device that it may report for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.requests import Request

from edge.broker.http.access import HttpAccess
from edge.broker.http.api import DEVICE_CHARACTERS_MAX, STATUS, HttpDeviceApi
from edge.broker.http.messages import BadRequest, parse_single
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import Ended, substitute
from edge.broker.model.refusals import RefusalCause


class AdmittedDevice(NamedTuple):
    """Device of a request."""

    name: str
    ended: asyncio.Future[Ended]
    """Done when its user is refused during the request."""


class ReportingDevices:
    """Authenticates devices, and publishes their reports."""

    def __init__(self, api: HttpDeviceApi, access: HttpAccess) -> None:
        self._api = api
        self._access = access

    @asynccontextmanager
    async def admitted(self, request: Request, device: str, report_address: str) -> AsyncIterator[AdmittedDevice]:
        """Authenticate the client of a request, which is or acts for a device (empty: its user is it). Yield it.
        `report_address`: with ``%u`` for the device; the user must have the right to send there. Raises
        RequestRefused."""
        async with self._access.admitted(request) as (grant, ended):
            if grant is None and not device:
                raise RequestRefused(400, "without authentication the device is missing: add ?device=")
            device = device or (grant.user if grant is not None else "")
            address = address_of_reports(report_address, device)
            if grant is not None and not grant.may_send(address):
                self._access.record(request, RefusalCause.NOT_ALLOWED_TO_SEND, grant.user, address)
                raise RequestRefused(403, f"{grant.user} is not {device[:64]}, as it must not send to {address[:100]}")
            yield AdmittedDevice(device, ended)

    async def publish(self, device: str, report_address: str, body: bytes) -> bool:
        """Publish a report of a device in JSON; it is on disk on return. Return False if no subscriber or forwarder
        takes it. Raises RequestRefused."""
        fields = {"content-type": "application/json"}
        try:
            message = parse_single(address_of_reports(report_address, device), body, {}, fields)
        except BadRequest as error:
            raise RequestRefused(error.status, str(error)) from None
        publishing = await self._api.published(device, [message], "")
        if publishing.refusals:
            why = publishing.refusals[0]
            raise RequestRefused(STATUS[why], why.value)
        return not publishing.unrouted


def address_of_reports(pattern: str, device: str) -> str:
    """Return the address for reports of a device. Raises RequestRefused for a name that is not one level."""
    address = substitute(pattern, device, "")
    if address is None or not device.isprintable() or len(device) > DEVICE_CHARACTERS_MAX:
        what = f"a device's name has up to {DEVICE_CHARACTERS_MAX} characters, and no '/', '+' and '#'"
        raise RequestRefused(400, f"{what}, unlike {device[:64]!r}")
    return address
