"""Pages of devices that the process with the authority's key makes and signs for hubs that lack it.

A hub does not say what is signed. It names a gateway and the cursor that this gateway has stored; the authority reads
the devices in the registry by itself, makes the page and signs that. So a hub in wrong hands gets no page with other
devices than those of the registry, and none that skips changes: a page continues the cursor that it was requested with,
and a gateway takes it only if it has that cursor.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa

from bridge.device_pages import DevicePage
from cloud.hub.devices.pages import SignBytes, make_page, read_cursor, sign_page
from cloud.hub.enrolment.device_page_request import NO_PAGE, AnsweredPage, DevicePageRequest
from cloud.hub.enrolment.signature_request import SignatureRefused
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import DeviceChanges
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)


class DevicePageSigner:
    """Makes and signs pages, for the thread that creates it (`cloud.hub.enrolment.device_page_request.PageSigner`)."""

    def __init__(self, registry: sa.URL, registry_id: str, sign: SignBytes) -> None:
        """`sign`: with the authority's key."""
        self._database = Database(registry, reading=True)
        self._registry_id = registry_id
        self._sign = sign

    def close(self) -> None:
        self._database.close()

    def answer(self, request: DevicePageRequest) -> AnsweredPage:
        try:
            return self._make(request)
        except RegistryError:
            raise
        except Exception as error:  # of one gateway: the others get their pages
            name = (request.tenant, request.gateway)
            log.exception("tenant %s, gateway %s: the page of its devices cannot be made", *name)
            raise SignatureRefused(f"its page cannot be made: {type(error).__name__}") from error

    def _make(self, request: DevicePageRequest) -> AnsweredPage:
        key = (request.tenant, request.gateway)
        cursor = read_cursor(request.held, self._registry_id)
        if request.restart:
            cursor = cursor.restarted(self._registry_id)
        found = DeviceChanges(self._database).read(key, cursor)
        if found.changes is None:
            return AnsweredPage(NO_PAGE, "nothing")
        page = make_page(key, found.changes, request.held).page
        return AnsweredPage(sign_page(page, self._sign).decode(), _description(page))


def _description(page: DevicePage) -> str:
    count, gone = len(page.entries), len(page.removed)
    return f"{count} devices of {page.devices_of}, {gone} removed, for gateway {page.gateway} of tenant {page.tenant}"
