"""Message broker of a hub: where it is, and the addresses of each tenant."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.dialer import PeerEndpoint
from bridge.hidden import hides
from edge.broker.configuration import TlsFiles

TENANT: Final = "{tenant}"
"""Part of an address that stands for the name of the tenant."""


@hides("password")
class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Message broker. Addresses are in the broker's own form, and may have `TENANT` in them."""

    endpoints: tuple[PeerEndpoint, ...]
    tenants: tuple[str, ...]
    """Tenants with applications at the broker."""
    commands: str
    """Queue from which commands are taken."""
    outcomes: str
    """Address for outcomes of commands."""
    replies: str
    """Begin of the addresses that a command may name for its outcome."""
    copies: str | None = None
    """Address for live copies; None: no copies."""
    user: str | None = None
    password: str = ""
    tls: TlsFiles | None = None


def address_of(template: str, tenant: str) -> str:
    """Return the address of a tenant."""
    return template.replace(TENANT, tenant)
