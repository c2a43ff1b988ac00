"""`waypost gateway label`: labels of gateways, used by selectors of configurations and roll-outs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from cloud.fleet.audited import audited
from cloud.fleet.place import config_option, data_option, json_option, open_configurations, tenant_option


@click.command()
@data_option
@config_option
@tenant_option
@json_option
@click.argument("gateway")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE...")
@audited("gateway.label", "gateway", "labels")
def label(data: Path, config: Path | None, tenant: str, as_json: bool, gateway: str, labels: Sequence[str]) -> None:
    """Set or remove labels of a gateway. KEY- removes one. GATEWAY may be a pattern: 'store-*'.

    A gateway that a selector now chooses gets the selector's configuration, as a new version. One that it no longer
    chooses gets that of another matching selector, or an empty one. All changes are made, or none on an error.

    \b
    waypost gateway label --data HUBDIR 'store-*' site=berlin ring=canary floor-
    """
    from cloud.hub.desired.making import make_context, match_gateways
    from cloud.hub.labels import format_labels, parse_changes
    from edge.output.terminal import say, say_json

    with open_configurations(data, config) as place:
        found = parse_changes(labels)
        chosen = match_gateways(place.configurations, tenant, (gateway,))
        made = place.selectors.label(tenant, chosen, found, make_context(time.time_ns() // 1_000, place.sign))
        after = place.selectors.labels(tenant)
    versions = {each.gateway: each for each in made}
    if as_json:
        numbers = {name: each.version for name, each in versions.items()}
        say_json([{"gateway": name, "labels": after[name], "version": numbers.get(name)} for name in chosen])
        return
    for name in chosen:
        version = versions.get(name)
        why = "" if version is None else f"  version {version.version}: {version.selector or version.note}"
        say(f"{name}  {format_labels(after[name]) or 'no labels'}{why}")
