"""`waypost config`: configurations of gateways, set from the hub, and the gateways' reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud.fleet.audited import audited
from cloud.fleet.place import (
    ConfigurationAccess,
    FleetError,
    config_option,
    current_user,
    data_option,
    json_option,
    open_configurations,
    parse_duration,
    tenant_option,
)

if TYPE_CHECKING:
    from cloud.hub.registry.configurations import Configurations, VersionRecord

files_option = click.option(
    "-f",
    "--filename",
    "names",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="YAML to read; - is standard input.",
)
gateways_argument = click.argument("gateways", nargs=-1, required=True, metavar="GATEWAY...")
gateways_or_selector = click.argument("gateways", nargs=-1, metavar="[GATEWAY...]")
selector_option = click.option(
    "-l", "--selector", metavar="SELECTOR", help="Choose gateways by labels: site=berlin,ring!=canary."
)
note_option = click.option("--why", "note", default="", help="Reason, for the history.")
confirm_option = click.option(
    "--confirm",
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Trial time: without the hub's confirmation within it, the gateway restores the former version.",
)
restart_option = click.option("--restart", is_flag=True, help="Allow gateways to restart if a change needs it.")


@click.group()
def config() -> None:
    """Configure gateways from the hub. Versions are signed, tried, and confirmed or rolled back.

    A version holds all resources that the hub sets on a gateway; it overlays the gateway's own ones. GATEWAY may be a
    pattern: 'store-*'.
    """


@config.command()
@data_option
@config_option
@tenant_option
@files_option
@note_option
@confirm_option
@restart_option
@selector_option
@click.option("--dry-run", is_flag=True, help="Check the configuration and list the gateways; send nothing.")
@json_option
@gateways_or_selector
@audited("configuration.set", "selector", "gateways")
def apply(
    data: Path,
    config: Path | None,
    tenant: str,
    names: Sequence[str],
    note: str,
    confirm: str,
    restart: bool,
    selector: str | None,
    dry_run: bool,
    as_json: bool,
    gateways: Sequence[str],
) -> None:
    """Make the next version for gateways. All of them get it, or none on an error.

    A running hub sends it within a second; gateways that are away get it when they connect. Messages are not affected.
    With --selector it also applies to gateways that get such labels later. If several configurations apply to a
    gateway, by name or by selectors, the latest one counts.
    """
    from bridge.resources.parse import read
    from cloud.hub.desired.making import check_resources, confirm_fault, set_wanted, set_wanted_for_selector
    from cloud.hub.registry.configurations import WantedConfiguration
    from edge.configuration.kinds import KINDS

    confirm_s = parse_duration(confirm)
    if fault := confirm_fault(confirm_s):
        raise FleetError(f"--confirm {confirm}: {fault}", code=2)
    with open_configurations(data, config) as place:
        documents = check_resources(read(KINDS, names))
        chosen = chosen_gateways(place, tenant, gateways, selector)
        if dry_run:
            _say_made([(name, None) for name in chosen], as_json)
            return
        now_us = time.time_ns() // 1_000
        one = WantedConfiguration(tenant, "", documents, confirm_s, restart, current_user(), note, selector=selector)
        if selector is not None:
            made = set_wanted_for_selector(place.selectors, one, now_us, place.sign)
        else:
            wanted = [one._replace(gateway=name) for name in chosen]
            made = set_wanted(place.configurations, wanted, now_us, place.sign)
    _say_made([(each.gateway, each.version) for each in made], as_json)


@config.command()
@data_option
@config_option
@tenant_option
@json_option
def selectors(data: Path, config: Path | None, tenant: str, as_json: bool) -> None:
    """List selectors with a configuration. The latest is first."""
    from cloud.hub.desired.shown import selector_row
    from edge.output.terminal import say, say_json

    with open_configurations(data, config) as place:
        rows = [selector_row(each) for each in place.selectors.all(tenant)]
    if as_json:
        say_json(rows)
        return
    for row in rows:
        rollout = f"roll-out {row['rollout']}" if row["rollout"] else ""
        say("  ".join(word for word in (row["selector"], row["said_at"], row["made_by"], row["note"], rollout) if word))
    if not rows:
        say("no selector has a configuration")


@config.command()
@data_option
@config_option
@tenant_option
@json_option
@click.argument("selector")
@audited("configuration.end", "selector")
def delete(data: Path, config: Path | None, tenant: str, as_json: bool, selector: str) -> None:
    """Delete the configuration of a selector. Its gateways get the latest one of other matching selectors."""
    from cloud.hub.desired.making import make_context
    from cloud.hub.labels import parse_selector

    with open_configurations(data, config) as place:
        how = make_context(time.time_ns() // 1_000, place.sign)
        made = place.selectors.delete(tenant, str(parse_selector(selector)), how)
    _say_made([(each.gateway, each.version) for each in made], as_json)


@config.command()
@data_option
@config_option
@tenant_option
@note_option
@click.option(
    "--to", "number", type=click.IntRange(min=1), help="Version. Default: the last one confirmed before the newest."
)
@json_option
@gateways_argument
@audited("configuration.roll-back", "gateways")
def rollback(
    data: Path,
    config: Path | None,
    tenant: str,
    note: str,
    number: int | None,
    as_json: bool,
    gateways: Sequence[str],
) -> None:
    """Send an earlier version again, as a new one."""
    from cloud.hub.desired.making import find_earlier, match_gateways, repeat_version, set_wanted

    with open_configurations(data, config) as place:
        known = place.configurations
        found = [find_earlier(known, tenant, name, number) for name in match_gateways(known, tenant, gateways)]
        wanted = [repeat_version(each, current_user(), note) for each in found]
        made = set_wanted(known, wanted, time.time_ns() // 1_000, place.sign)
    _say_made([(each.gateway, each.version) for each in made], as_json)


@config.command("list")
@data_option
@config_option
@tenant_option
@json_option
def list_states(data: Path, config: Path | None, tenant: str, as_json: bool) -> None:
    """List wanted versions and those in force. Shows the reason where they differ."""
    from cloud.hub.desired.shown import gateway_row
    from edge.output.terminal import say, say_json

    with open_configurations(data, config) as place:
        rows = [gateway_row(each) for each in place.configurations.gateways(tenant)]
    if as_json:
        say_json(rows)
        return
    for row in rows:
        kept = f"; overridden there: {', '.join(row['kept'])}" if row["kept"] else ""
        why = f"  {row['why']}" if row["why"] else ""
        say(f"{row['gateway']}  {row['state']}  wanted {row['wanted']}, in force {row['version']}{why}{kept}")
    if not rows:
        say("no gateway has a configuration from the hub")


@config.command()
@data_option
@config_option
@tenant_option
@click.option("--version", "number", type=click.IntRange(min=1), help="Version. Default: the newest.")
@json_option
@click.argument("gateway")
def get(data: Path, config: Path | None, tenant: str, number: int | None, as_json: bool, gateway: str) -> None:
    """Print a version as YAML. It can be applied again, and may contain secrets."""
    from bridge.resources.parse import to_yaml
    from edge.output.terminal import say, say_json

    with open_configurations(data, config) as place:
        record = _version(place.configurations, tenant, gateway, number)
    resources = record.desired.resources
    if as_json:
        say_json(resources)
    else:
        say("---\n".join(to_yaml(document) for document in resources), nl=False)


@config.command()
@data_option
@config_option
@tenant_option
@json_option
@click.argument("gateway")
def history(data: Path, config: Path | None, tenant: str, as_json: bool, gateway: str) -> None:
    """List the versions of a gateway. They have their outcomes; the newest is first."""
    from cloud.hub.desired.shown import version_row
    from edge.output.terminal import say, say_json

    with open_configurations(data, config) as place:
        rows = [version_row(each) for each in place.configurations.versions(tenant, gateway)]
    if as_json:
        say_json(rows)
        return
    for row in rows:
        outcome = row["failure"] or (f"confirmed {row['confirmed_at']}" if row["confirmed_at"] else "not confirmed")
        rollout = f"roll-out {row['rollout']}" if row["rollout"] else ""
        words = (str(row["version"]), row["made_at"], row["made_by"], outcome, row["note"], rollout)
        say("  ".join(word for word in words if word))
    if not rows:
        say(f"gateway {gateway} of tenant {tenant} has no version")


@config.command()
@data_option
@config_option
@tenant_option
@files_option
@json_option
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there are differences, for scripts.")
@click.argument("gateway")
def diff(
    data: Path,
    config: Path | None,
    tenant: str,
    names: Sequence[str],
    as_json: bool,
    exit_code: bool,
    gateway: str,
) -> None:
    """Show what a file would change. It is a unified diff of YAML, without secrets, with the newest version."""
    from bridge.resources.diff import masked, unified
    from bridge.resources.parse import read
    from bridge.resources.plan import ResourceChange, key_of
    from cloud.hub.desired.making import check_resources
    from edge.configuration.kinds import KINDS
    from edge.output.terminal import say, say_json

    with open_configurations(data, config) as place:
        after = {key_of(each): each for each in check_resources(read(KINDS, names))}
        versions = place.configurations.versions(tenant, gateway)
    before = {key_of(each): each for each in versions[0].desired.resources} if versions else {}
    changes = [ResourceChange(*key, before.get(key), after.get(key)) for key in sorted({*before, *after})]
    differing = [change for change in changes if change.before != change.after]
    if as_json:
        shown = [(each, each.before, each.after) for each in differing]
        say_json(
            [
                {
                    "kind": each.kind,
                    "name": each.name,
                    "change": each.verb,
                    "before": old and masked(KINDS, old),
                    "after": new and masked(KINDS, new),
                }
                for each, old, new in shown
            ]
        )
    else:
        for change in differing:
            say(unified(KINDS, change), nl=False)
    if exit_code and differing:
        click.get_current_context().exit(1)


def chosen_gateways(
    place: ConfigurationAccess, tenant: str, gateways: Sequence[str], selector: str | None
) -> list[str]:
    """Return the gateways of names or of a selector. Raises FleetError if both or neither are given."""
    from cloud.hub.desired.making import choose_gateways, match_gateways
    from cloud.hub.labels import parse_selector

    require_one(gateways, selector)
    if selector is None:
        return match_gateways(place.configurations, tenant, gateways)
    return choose_gateways(place.configurations, place.selectors.labels(tenant), tenant, parse_selector(selector))


def require_one(gateways: Sequence[str], selector: str | None) -> None:
    """Check that names or a selector are given, not both. Raises FleetError."""
    if bool(gateways) is (selector is not None):
        raise FleetError("name gateways, or choose them with --selector", code=2)


def _version(known: Configurations, tenant: str, gateway: str, number: int | None) -> VersionRecord:
    found = known.versions(tenant, gateway)
    chosen = next((each for each in found if number in (None, each.version)), None)
    if chosen is None:
        which = "no version" if number is None else f"no version {number}; older versions are deleted"
        raise FleetError(f"gateway {gateway} of tenant {tenant} has {which}")
    return chosen


def _say_made(made: Sequence[tuple[str, int | None]], as_json: bool) -> None:
    from edge.output.terminal import say, say_json

    if as_json:
        say_json([{"gateway": name, "version": version} for name, version in made])
        return
    if not made:
        say("no gateway needs a new version now")
    for name, version in made:
        say(f"{name}: {f'version {version}' if version is not None else 'valid (dry run)'}")
