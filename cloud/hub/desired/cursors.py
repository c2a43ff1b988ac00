"""Cursors of pages of gateways: the `next` of a page, which a request for the next one repeats as `after`."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec

from cloud.hub.groups import Key
from cloud.hub.registry.configurations import ConfigurationRecord
from edge.broker.http.refusal import RequestRefused

_Name = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z", max_length=255)]


def cursor_of(record: ConfigurationRecord) -> str:
    """Return the place of a gateway among those of all tenants."""
    return base64.urlsafe_b64encode(msgspec.json.encode((record.tenant, record.gateway))).decode()


def key_of(after: str) -> Key | None:
    """Parse a place among the gateways of all tenants. Raises `RequestRefused`."""
    if not after:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(after), type=tuple[_Name, _Name])
    except (binascii.Error, ValueError):
        raise _refused() from None


def name_of(after: str) -> str:
    """Parse a place among the gateways of one tenant: a name. Raises `RequestRefused`."""
    if "\0" in after:
        raise _refused()
    return after


def _refused() -> RequestRefused:
    return RequestRefused(400, "after must be the `next` of the page before")
