"""Examples of resources on pages, applied to a gateway that `waypost init` made and that is connected to a hub.

`waypost apply` replaces a resource as a whole, so an example that leaves something out removes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.resources.parse import parse
from bridge.resources.resource import Resource, of_kind
from edge.appliance.identity.location import hub_tls, identity_file
from edge.appliance.initial.defaults import AMQP, HTTP, HTTPS, MQTT
from edge.configuration.effective import build_configuration
from edge.configuration.first_gateway import FirstGateway, yaml_of
from edge.configuration.forwarders import HUB_CONNECTOR
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.configuration.resources import GatewaySpec, HubPart
from tests.support.checkout import ROOT
from tests.support.pages import BLOCK, OTHER_KINDS, PAGES, name

FIRST = FirstGateway(
    name="hall",
    mqtt=MQTT,
    amqp=AMQP,
    http=HTTP,
    https=HTTPS,
    hub=("amqps://hub.example:5671",),
    hub_tls=hub_tls(identity_file(Path("/var/lib/waypost"))),
    forward=("plant/#",),
)
"""Gateway of the tutorials and of the how-to pages."""


def examples() -> Iterator[tuple[str, str]]:
    """Yield (page, text) of every example of a gateway's resources."""
    folders = ("bridge", "edge", "cloud/hub", "cloud/deploy", "images", "firmware_examples")
    for page in (*PAGES, *(each for folder in folders for each in (ROOT / folder).rglob("README.md"))):
        for language, text in BLOCK.findall(page.read_text()):
            if language == "yaml" and "apiVersion" in text and not OTHER_KINDS.search(text):
                yield name(page), text


EXAMPLES = list(examples())


@pytest.mark.parametrize(
    ("page", "text"), EXAMPLES, ids=[f"{page}-{number}" for number, (page, _) in enumerate(EXAMPLES)]
)
def test_example_keeps_what_init_made(page: str, text: str, tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.apply(parse(KINDS, yaml_of(FIRST), "init"))
    before = repository.load().resources
    repository.apply(parse(KINDS, text, page))
    after = repository.load().resources
    assert hub_forwarders(before) == {"default.plant/to-hub": ("plant/#", "plant/#")}
    assert hub_forwarders(before).items() <= hub_forwarders(after).items()
    old, new = hub_of(before), hub_of(after)
    assert (new.url, new.tls) == (old.url, old.tls)
    assert set(build_configuration(before).listeners) <= set(build_configuration(after).listeners)


def hub_forwarders(resources: tuple[Resource, ...]) -> dict[str, tuple[str, str]]:
    """Return (filter, remote address) of each forwarder to the hub."""
    every = build_configuration(resources).forwarders
    return {one.name: (one.filter, one.remote_address) for one in every if one.connector == HUB_CONNECTOR}


def hub_of(resources: tuple[Resource, ...]) -> HubPart:
    [(_, spec)] = of_kind(resources, GatewaySpec)
    assert spec.hub is not None
    return spec.hub
