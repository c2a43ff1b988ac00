"""Names of one device or module at Azure IoT Hub: client id, user name, topics, and the resource that tokens are for.

Specified in https://learn.microsoft.com/azure/iot/iot-mqtt-connect-to-iot-hub. The rules of the configuration use this
module too, so it imports no codec.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from bridge.connectors.settings import MqttSettings

API_VERSION: Final = "2021-04-12"
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9\-._*?!(),:=@$']{1,128}")
"""Device and module identifiers (the identity registry of IoT Hub), without ``%``: in a topic or a token it would look
like the beginning of an encoded character."""


def identifier_fault(text: str) -> str:
    """Return why the text cannot be an identifier of a device or module; empty if it can."""
    if _IDENTIFIER.fullmatch(text):
        return ""
    return "is not an identifier of IoT Hub: up to 128 letters, digits and - . _ * ? ! ( ) , : = @ $ '"


class IotHubNames(NamedTuple):
    """A device, or a module of it."""

    host: str
    """Host name of the hub."""
    device: str
    module: str | None = None

    @property
    def client_id(self) -> str:
        return self.device if self.module is None else f"{self.device}/{self.module}"

    @property
    def username(self) -> str:
        return f"{self.host}/{self.client_id}/?api-version={API_VERSION}"

    @property
    def resource(self) -> str:
        """URI that a token is for."""
        device = f"{self.host}/devices/{self.device}"
        return device if self.module is None else f"{device}/modules/{self.module}"

    @property
    def events(self) -> str:
        """Topic for messages to the cloud, before the message's properties."""
        return f"{self._topics}/messages/events"

    @property
    def inbound(self) -> str:
        """Topic filter for messages from the cloud."""
        return f"{self._topics}/messages/devicebound/#" if self.module is None else f"{self._topics}/#"

    def inbound_topic(self, levels: Sequence[str]) -> str | None:
        """Return the topic of a message for us as `inbound` matches it, by its levels before the properties; None for
        another topic. The hub may encode the identifiers in another way than we do."""
        own = ["devices", self.device]
        own += ["messages", "devicebound"] if self.module is None else ["modules", self.module]
        if [unquote(level) for level in levels[: len(own)]] != own:
            return None
        base = self.inbound.removesuffix("/#")
        return "/".join((base, *levels[len(own) :]))

    @property
    def properties_level(self) -> int:
        """Level of an inbound topic that has the message's properties: after ``messages/devicebound`` of a device, and
        ``inputs/<name>`` of a module."""
        return 4 if self.module is None else 6

    @property
    def _topics(self) -> str:
        device = f"devices/{quote(self.device, safe='')}"
        return device if self.module is None else f"{device}/modules/{quote(self.module, safe='')}"


def names_of(settings: MqttSettings, host: str) -> IotHubNames:
    """Return the names of the device in `settings`; `host` is the endpoint's. Raises ValueError without a device."""
    if settings.device is None:
        raise ValueError("no device is configured")
    return IotHubNames(settings.hub_host or host, settings.device, settings.module)
