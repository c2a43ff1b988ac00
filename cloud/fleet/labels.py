"""`waypost fleet label`: labels of gateways, by which configurations and roll-outs choose them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from cloud.fleet.place import config_option, configured, data_option, json_option, tenant_option


@click.command()
@data_option
@config_option
@tenant_option
@json_option
@click.argument("gateway")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE...")
def label(data: Path, config: Path | None, tenant: str, as_json: bool, gateway: str, labels: Sequence[str]) -> None:
    """Give a gateway labels, or take them away (KEY-). GATEWAY may be a pattern: 'store-*'.

    A gateway that a selector chooses now gets what that has at once, as a new version; one that it chooses no more gets
    what was said last for others that do, or nothing. All that, or nothing when anything is wrong.

    \b
    waypost fleet label --data HUBDIR 'store-*' site=berlin ring=canary floor-
    """
    from cloud.hub.desired.making import making_of, named
    from cloud.hub.labels import changes, shown
    from edge.output.terminal import say, say_json

    with configured(data, config) as place:
        found = changes(labels)
        chosen = named(place.configurations, tenant, (gateway,))
        made = place.selectors.label(tenant, chosen, found, making_of(time.time_ns() // 1_000, place.sign))
        after = place.selectors.labels(tenant)
    versions = {each.gateway: each for each in made}
    if as_json:
        numbers = {name: each.version for name, each in versions.items()}
        say_json([{"gateway": name, "labels": after[name], "version": numbers.get(name)} for name in chosen])
        return
    for name in chosen:
        version = versions.get(name)
        why = "" if version is None else f"  version {version.version}: {version.selector or version.note}"
        say(f"{name}  {shown(after[name]) or 'no labels'}{why}")
