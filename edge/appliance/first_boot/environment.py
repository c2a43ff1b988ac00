"""Settings of a gateway in a container: environment variables in place of a card's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bridge.proxy import parse_proxy
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.parse import to_yaml
from edge.card.resource import Card, read
from edge.card.text import document

NAME: Final = "WAYPOST_NAME"
HUB: Final = "WAYPOST_HUB"
"""URLs of one hub, separated by spaces: the first one, and those for failover."""
TOKEN: Final = "WAYPOST_TOKEN"  # noqa: S105 - the name of a variable
FORWARD: Final = "WAYPOST_FORWARD"
"""Topic filters, separated by spaces."""
PROXY: Final = "WAYPOST_PROXY"
KEEP_FREE: Final = "WAYPOST_KEEP_FREE"
SOURCE: Final = "the environment"


def card_of(variables: Mapping[str, str]) -> Card | None:
    """Return the settings of the variables, checked like a card's file; None without a name of the gateway.

    An empty variable counts as not set. Raises ConfigurationRejected.
    """
    given = {name: variables[name] for name in (NAME, HUB, TOKEN, FORWARD, PROXY, KEEP_FREE) if variables.get(name)}
    if NAME not in given:
        return None
    spec: dict[str, Any] = {"hostname": "gateway"}  # required, and not applied to the machine
    if not given.keys().isdisjoint((HUB, TOKEN, FORWARD)):
        spec["hub"] = _hub(given)
    if KEEP_FREE in given:
        spec["data"] = {"keepFree": given[KEEP_FREE]}
    return read(to_yaml(document(given[NAME], spec)).encode(), SOURCE)


def _hub(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the hub. Raises ConfigurationRejected."""
    hub: dict[str, Any] = {}
    if urls := given.get(HUB, "").split():
        hub["url"], *further = urls
        if further:
            hub["failover"] = further
    if TOKEN in given:
        hub["token"] = given[TOKEN]
    if FORWARD in given:
        hub["forward"] = given[FORWARD].split()
    if PROXY in given:
        try:
            proxy = msgspec.structs.asdict(parse_proxy(given[PROXY]))
        except ValueError as error:
            raise ConfigurationRejected([ConfigurationError(SOURCE, 0, PROXY, str(error))]) from None
        hub["proxy"] = {key: value for key, value in proxy.items() if value is not None}
    return hub
