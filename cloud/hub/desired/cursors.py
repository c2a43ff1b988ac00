"""Cursors of pages of gateways: the `next` of a page, which a request for the next one repeats as `after`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cloud.hub.groups import Key
from cloud.hub.page_position import decode_position, encode_position, wrong_position
from cloud.hub.registry.configurations import ConfigurationRecord

_Name = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z", max_length=255)]


def cursor_of(record: ConfigurationRecord) -> str:
    """Return the place of a gateway among those of all tenants."""
    return encode_position((record.tenant, record.gateway))


def key_of(after: str) -> Key | None:
    """Parse a place among the gateways of all tenants. Raises `RequestRefused`."""
    return decode_position(after, tuple[_Name, _Name]) if after else None


def name_of(after: str) -> str:
    """Parse a place among the gateways of one tenant: a name. Raises `RequestRefused`."""
    if "\0" in after:
        raise wrong_position()
    return after
