"""`waypost gateway label`: labels of gateways, used by selectors of configurations and roll-outs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import quote

import click

from cloud.fleet.audited import audited
from cloud.fleet.configuration import gateways_over_http
from cloud.fleet.place import HubPlace, hub_options, open_configurations, tenant_option
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say


@click.command()
@hub_options
@tenant_option
@json_option("gateway-labels")
@click.argument("gateway")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE...")
@audited("gateway.label", "gateway", "labels")
def label(hub: HubPlace, tenant: str, as_json: JsonOutput | None, gateway: str, labels: Sequence[str]) -> None:
    """Set or remove labels of a gateway. KEY- removes one. GATEWAY may be a pattern: 'store-*'.

    A gateway that a selector now chooses gets the selector's configuration, as a new version. One that it no longer
    chooses gets that of another matching selector, or an empty one. All changes are made, or none on an error.

    \b
    waypost gateway label --data HUBDIR 'store-*' site=berlin ring=canary floor-
    """
    from cloud.hub.desired.making import make_context, match_gateways
    from cloud.hub.labels import LabelError, format_labels, parse_changes

    if hub.client is not None:
        try:
            found = parse_changes(labels)
        except LabelError as error:
            raise CommandError(str(error), code=Exit.USAGE, error="invalid-label") from None
        names = gateways_over_http(hub.client, tenant, (gateway,))
        paths = [f"labels/{quote(name, safe='')}" for name in names]
        rows = [hub.client.ask(path, method="PATCH", body=found, tenant=tenant or None) for path in paths]
        if as_json:
            as_json.show(rows)
            return
        for row in rows:
            say(f"{row['gateway']}  {format_labels(row['labels']) or 'no labels'}")
        return
    with open_configurations(hub) as place:
        found = parse_changes(labels)
        chosen = match_gateways(place.configurations, tenant, (gateway,))
        made = place.selectors.label(tenant, chosen, found, make_context(time.time_ns() // 1_000, place.sign))
        after = place.selectors.labels(tenant)
    versions = {each.gateway: each for each in made}
    if as_json:
        numbers = {name: each.version for name, each in versions.items()}
        as_json.show([{"gateway": name, "labels": after[name], "version": numbers.get(name)} for name in chosen])
        return
    for name in chosen:
        version = versions.get(name)
        why = "" if version is None else f"  version {version.version}: {version.selector or version.note}"
        say(f"{name}  {format_labels(after[name]) or 'no labels'}{why}")
