"""Requests of hubs without the authority's key for pages of devices, and how they are answered.

`cloud.hub.devices.page_signer` makes the pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec
import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.enrolment.limits import PAGE_REQUEST_CHARACTERS_MAX
from cloud.hub.enrolment.signature_request import UNKNOWN_REQUEST, SignatureRefused
from cloud.hub.peers import gateway_fault, tenant_fault
from cloud.hub.registry.signatures import PAGE_REQUEST_TAG

NO_PAGE: Final = ""
"""Answer to a request for a gateway that has all its devices."""


class DevicePageRequest(msgspec.Struct, frozen=True, tag=PAGE_REQUEST_TAG, omit_defaults=True):
    """Request for the next page of devices of a gateway."""

    tenant: str
    gateway: str
    held: str
    """Cursor that the gateway has stored; empty: none."""
    restart: bool = False
    """The gateway wants all its devices again."""


@hides("text")
class AnsweredPage(NamedTuple):
    """Answer to a request for a page."""

    text: str
    """JSON of a `SignedDevicePage`; `NO_PAGE` without one."""
    about: str
    """Short description of the page, for the log."""


class PageSigner(Protocol):
    """Makes and signs pages of devices, for one thread. `close` at the end."""

    def answer(self, request: DevicePageRequest) -> AnsweredPage:
        """Return the page that a request is for. Raises `SignatureRefused`, `RegistryError`."""
        ...

    def close(self) -> None:
        """Close the registry."""
        ...


OpenPageSigner: TypeAlias = Callable[[sa.URL, str, Callable[[bytes], bytes]], PageSigner]
"""Returns a signer for a registry, its id, and a function that signs with the authority's key."""


def read_page_request(text: str) -> DevicePageRequest:
    """Decode and check a request. Raises `SignatureRefused`."""
    if len(text) > PAGE_REQUEST_CHARACTERS_MAX:
        raise SignatureRefused(f"the request has more than {PAGE_REQUEST_CHARACTERS_MAX} characters")
    try:
        request = msgspec.json.decode(text, type=DevicePageRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SignatureRefused(f"{UNKNOWN_REQUEST}: {error}") from None
    if fault := tenant_fault(request.tenant) or gateway_fault(request.gateway):
        raise SignatureRefused(fault)
    return request
