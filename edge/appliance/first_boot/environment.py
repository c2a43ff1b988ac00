"""The settings of a gateway in a container: its environment says what a card's file says elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bridge.resources.parse import to_yaml
from edge.card.resource import Card, read
from edge.card.text import document

NAME: Final = "WAYPOST_NAME"
HUB: Final = "WAYPOST_HUB"
TOKEN: Final = "WAYPOST_TOKEN"  # noqa: S105 - the name of a variable
FORWARD: Final = "WAYPOST_FORWARD"
"""Filters, with spaces between them."""
KEEP_FREE: Final = "WAYPOST_KEEP_FREE"
SOURCE: Final = "the environment"


def card_of(variables: Mapping[str, str]) -> Card | None:
    """What the variables say, under the rules of a card's file; None where they name no gateway. A variable that is
    empty is not set. Raises ConfigurationRejected."""
    given = {name: variables[name] for name in (NAME, HUB, TOKEN, FORWARD, KEEP_FREE) if variables.get(name)}
    if NAME not in given:
        return None
    spec: dict[str, Any] = {"hostname": "gateway"}  # nobody gives it to the machine
    if not given.keys().isdisjoint((HUB, TOKEN, FORWARD)):
        hub: dict[str, Any] = {key: given[name] for key, name in (("url", HUB), ("token", TOKEN)) if name in given}
        if FORWARD in given:
            hub["forward"] = given[FORWARD].split()
        spec["hub"] = hub
    if KEEP_FREE in given:
        spec["data"] = {"keepFree": given[KEEP_FREE]}
    return read(to_yaml(document(given[NAME], spec)).encode(), SOURCE)
