"""Add forwarders to the hub: `waypost bridge forward FILTER`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridge.resources.parse import parse, to_yaml
from bridge.resources.plan import ResourceChange
from bridge.resources.resource import of_kind
from edge.appliance.resource_commands import explained
from edge.configuration.first_gateway import addresses
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.configuration.resources import AddressSpec, GatewaySpec
from edge.output.errors import CommandError, Exit
from edge.output.text import word


def add_forwarders(data: Path, filters: Sequence[str]) -> tuple[int, list[ResourceChange]]:
    """Apply an Address for each filter that forwards it to the hub; return the version and the changes.

    Raises CommandError: no hub is configured, an Address has the filter already, or a filter is not valid.
    """
    repository = Repository(data)
    with explained("applied"):
        known = repository.load().resources
        gateways = [one.spec for one in known if isinstance(one.spec, GatewaySpec)]
        if not any(gateway.hub is not None for gateway in gateways):
            step = f"enrol at a hub: waypost enrol --data {word(data)} --help"
            raise CommandError("this gateway has no hub to forward to", hint=step, code=Exit.USAGE, error="no-hub")
        own = ((one, spec) for one, spec in of_kind(known, AddressSpec) if spec.address_space is None)
        named = {spec.address: one.name for one, spec in own}
        for pattern in filters:
            if pattern in named:
                name = word(named[pattern])
                step = f"add a forwarder to it: waypost get Address {name} --data {word(data)} -o yaml"
                raise CommandError(
                    f"Address {name} has {pattern} already", hint=step, code=Exit.USAGE, error="address-exists"
                )
        documents = addresses(filters, named.values())
        text = "---\n".join(to_yaml(document) for document in documents)
        return repository.apply(parse(KINDS, text, "waypost bridge forward"))
