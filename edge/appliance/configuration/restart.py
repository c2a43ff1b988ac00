"""What of a configuration only a start of the gateway takes up; the rest is followed while it runs."""

from __future__ import annotations

from typing import Final

from edge.appliance.configuration.validate import LISTENERS
from edge.broker.configuration import BrokerConfiguration

_PLACES: Final = {
    "space": "the AddressSpace's name",
    "gateway": "the Gateway's name",
    "host_names": "spec.listeners.hostNames",
    "tls": "spec.listeners.tls",
    "limits": "spec.limits",
    "legacy_dollar_topics": "spec.mqtt.legacyDollarTopics",
}
"""Where a person wrote what these attributes of the broker's configuration are."""


def after_restart(before: BrokerConfiguration, after: BrokerConfiguration) -> list[str]:
    """One sentence for each change that counts from the next start on."""
    names = [name for name in (*LISTENERS, *_PLACES) if getattr(before, name) != getattr(after, name)]
    places = [_PLACES.get(name) or f"spec.listeners.{_camel(name)}" for name in names]
    if _tenant(before) != _tenant(after):
        places.append("the AddressSpace's deviceApi")
    return [f"{place} changed: takes effect after a restart of the gateway" for place in places]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _tenant(configuration: BrokerConfiguration) -> str | None:
    return configuration.device_api.tenant if configuration.device_api is not None else None
