"""Places and faults of the links of simulated devices, over any protocol."""

from __future__ import annotations

import enum
import ssl
from typing import NamedTuple

from bridge.hidden import hides


class DeviceLinkFault(enum.Enum):
    """Reason for which a link has ended, or was not made."""

    UNREACHABLE = "unreachable"
    """No gateway answers there."""
    CLOSED = "closed"
    """The gateway has closed the connection, or the network has."""
    NO_ANSWER = "no-answer"
    """The gateway did not answer in time."""
    NOT_MQTT = "not-mqtt"
    """The server does not speak MQTT."""
    NOT_TRUSTED = "not-trusted"
    """The certificate of the gateway is not trusted."""
    LOGIN_REFUSED = "login-refused"
    """The gateway refused user or password."""
    BUSY = "busy"
    """The gateway refused the connection for now."""
    SUBSCRIPTION_REFUSED = "subscription-refused"
    """The gateway refused a subscription."""


class LinkLost(Exception):
    """The link has ended, or was not made."""

    def __init__(self, fault: DeviceLinkFault, words: str = "") -> None:
        super().__init__(words or fault.value)
        self.fault = fault


class LinkPlace(NamedTuple):
    """Listener of a gateway."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@hides("password")
class LinkLogin(NamedTuple):
    """Login of a device. Without a user it logs in with its name, which a development gateway accepts."""

    device: str
    user: str = ""
    password: str = ""
    keeps_session: bool = False
    """True: messages for the device wait while it is away."""
