"""Rules of a cloud service for the connections of MQTT clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bridge.connectors.settings import ClientIdentity


class PublishQuota(NamedTuple):
    """Limits of one connection. The service discards messages beyond it, without a PUBACK."""

    in_flight_max: int
    """Messages without a PUBACK."""
    messages_per_s: float
    bytes_per_s: float
    messages_at_once: int
    """Messages that may leave without a pause between them."""
    acknowledgement_timeout_s: float
    """Time after which a message without a PUBACK counts as discarded."""

    def pause_s(self, messages: int, size: int) -> float:
        """Return the pause after messages of `size` bytes together."""
        return max(messages / self.messages_per_s, size / self.bytes_per_s)


class ServiceTerms(NamedTuple):
    """Rules for the connections of one client; the defaults are those of an ordinary broker."""

    sign: Callable[[ClientIdentity], ClientIdentity] | None = None
    """Returns the identity with the password for one connection; None: the identity is the same each time."""
    renew_after_s: float | None = None
    """Age at which a connection is replaced, because its password or signature ends; None: never."""
    sign_path: Callable[[str, str], str] | None = None
    """Returns the path with a signature, for a host and a path of a WebSocket."""
    application_protocol: str | None = None
    """Name in the TLS handshake (ALPN) on port 443, where the service expects HTTP otherwise."""
    quota: PublishQuota | None = None
    disconnects: bool = False
    """The service ends the connection instead of refusing a message."""
    websocket_hint: str = ""
    """Next step for an operator when the service refuses the WebSocket."""


ORDINARY_TERMS = ServiceTerms()
