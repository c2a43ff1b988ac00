"""Next page of devices for a gateway: made and signed by the hub, or by the process that has the authority's key."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from bridge.device_pages import DevicePage, read_page
from bridge.hidden import hides
from cloud.hub.devices.pages import SignBytes, make_page, sign_page
from cloud.hub.enrolment.device_page_request import DevicePageRequest
from cloud.hub.enrolment.remote_authority import NotSigned, RemoteAuthority, SignatureDenied, TooManyWaiting
from cloud.hub.groups import Key
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import DeviceChanges, DeviceCursor
from cloud.hub.registry_thread import RegistryThread


class PagesUnavailable(Exception):
    """No gateway gets a page now; the message says why, and what to do."""


class PagesBusy(Exception):
    """Enough signatures are awaited; the page is made in some seconds."""


class PageRefused(Exception):
    """This gateway gets no page; the message says why."""


class GatewayPosition(NamedTuple):
    """Position of a gateway in its devices."""

    gateway: Key
    held: str
    """Cursor that the gateway has stored."""
    cursor: DeviceCursor
    """The same, after changes that do not concern the gateway."""
    restart: bool
    """The gateway wants all its devices again."""


@hides("page", "body")
class FoundPage(NamedTuple):
    """Outcome of a look for the next page."""

    page: DevicePage | None
    """None: the gateway has all its devices."""
    body: bytes
    """The signed page, as it is sent."""
    cursor: DeviceCursor
    """Cursor after changes that do not concern the gateway."""


class PageSource(Protocol):
    """Finds, makes and signs pages."""

    async def next_page(self, position: GatewayPosition) -> FoundPage:
        """Return the next page of a gateway. Raises `PagesUnavailable`, `PagesBusy`, `PageRefused`,
        `RegistryError`."""
        ...


class OwnPages:
    """Pages that a hub signs itself."""

    def __init__(self, reader: RegistryThread[Database], sign: SignBytes) -> None:
        """`reader` of the registry, which its owner opens. `sign`: with the authority's key."""
        self._reader = reader
        self._sign = sign

    async def next_page(self, position: GatewayPosition) -> FoundPage:
        def work(database: Database) -> FoundPage:
            found = DeviceChanges(database).read(position.gateway, position.cursor)
            if found.changes is None:
                return FoundPage(None, b"", found.cursor)
            page = make_page(position.gateway, found.changes, position.held).page
            return FoundPage(page, sign_page(page, self._sign), found.cursor)

        return await self._reader.run(work)


class AuthorityPages:
    """Pages that the process with the authority's key makes and signs.

    The hub looks first whether there is something to send, so the process is asked about gateways with changes only.
    """

    def __init__(self, reader: RegistryThread[Database], authority: RemoteAuthority) -> None:
        """`reader` of the registry and `authority`, which their owners open."""
        self._reader = reader
        self._authority = authority

    async def next_page(self, position: GatewayPosition) -> FoundPage:
        key, cursor = position.gateway, position.cursor
        found = await self._reader.run(lambda database: DeviceChanges(database).look(key, cursor))
        if not found.has_changes:
            return FoundPage(None, b"", found.cursor)
        request = DevicePageRequest(*key, position.held, position.restart)
        try:
            signed = await self._authority.device_page(request)
        except TooManyWaiting as error:
            raise PagesBusy from error
        except SignatureDenied as error:
            raise PageRefused(str(error)) from error
        except NotSigned as error:
            raise PagesUnavailable(str(error)) from error
        if signed is None:  # its devices have changed in between
            return FoundPage(None, b"", cursor)
        return FoundPage(read_page(signed.content), msgspec.json.encode(signed), cursor)
