"""`waypost config`: configurations of gateways, set from the hub, and the gateways' reports."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from cloud.fleet.audited import audited
from cloud.fleet.place import (
    ConfigurationAccess,
    HubPlace,
    current_user,
    hub_options,
    open_configurations,
    parse_duration,
    tenant_option,
)
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import word

if TYPE_CHECKING:
    from cloud.hub.registry.configurations import Configurations, VersionRecord
    from edge.remote.client import ConsoleClient

STATES: Final = Listing(
    "configuration",
    "gateway",
    ("tenant", "gateway", "state", "wanted", "version", "why", "kept"),
    ("trying", "reported_at"),
    "no gateway has a configuration from the hub",
)
VERSIONS: Final = Listing(
    "version",
    "version",
    ("version", "made_at", "made_by", "confirmed_at", "failure", "note"),
    ("gateway", "rollout", "selector"),
    "the gateway has no version",
)
SELECTORS: Final = Listing(
    "selector",
    "selector",
    ("tenant", "selector", "said_at", "made_by", "note", "rollout"),
    empty="no selector has a configuration",
)

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
@hub_options
@tenant_option
@files_option
@note_option
@confirm_option
@restart_option
@selector_option
@click.option("--dry-run", is_flag=True, help="Check the configuration and list the gateways; send nothing.")
@json_option("version")
@gateways_or_selector
@audited("configuration.set", "selector", "gateways")
def apply(
    hub: HubPlace,
    tenant: str,
    names: Sequence[str],
    note: str,
    confirm: str,
    restart: bool,
    selector: str | None,
    dry_run: bool,
    as_json: JsonOutput | None,
    gateways: Sequence[str],
) -> None:
    """Make the next version for gateways. All of them get it, or none on an error.

    A running hub sends it within a second; gateways that are away get it when they connect. Messages are not affected.
    With --selector it also applies to gateways that get such labels later. If several configurations apply to a
    gateway, by name or by selectors, the latest one counts.
    """
    from bridge.resources.parse import read
    from cloud.hub.bundles.checking import require_bundles
    from cloud.hub.desired.making import check_resources, confirm_fault, set_wanted, set_wanted_for_selector
    from cloud.hub.registry.configurations import WantedConfiguration
    from edge.configuration.kinds import KINDS

    confirm_s = parse_duration(confirm)
    if fault := confirm_fault(confirm_s):
        raise CommandError(f"--confirm {confirm}: {fault}", code=Exit.USAGE, error="invalid-value")
    if hub.client is not None:
        setting = {"confirm": f"{confirm_s:.0f}", "restart": "1" if restart else None, "why": note or None}
        made_there = _apply_over_http(hub.client, names, tenant, gateways, selector, setting, dry_run=dry_run)
        _say_made(made_there, as_json)
        return
    with open_configurations(hub) as place:
        resources = read(KINDS, names)
        documents = check_resources(resources)
        require_bundles(resources, place.bundles)
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


def yaml_of(names: Sequence[str]) -> bytes:
    """Return the resources of files, after a check, as one YAML text for a request. Raises CommandError."""
    from bridge.resources.errors import ConfigurationRejected
    from bridge.resources.parse import read, to_yaml
    from cloud.hub.desired.making import check_resources
    from edge.configuration.kinds import KINDS

    try:
        documents = check_resources(read(KINDS, names))
    except ConfigurationRejected as rejected:
        hint = f"{counted(len(rejected.errors), 'problem')}; nothing was sent"
        raise CommandError(str(rejected), hint, code=Exit.USAGE, error="configuration-rejected") from None
    return "---\n".join(to_yaml(each) for each in documents).encode()


def gateways_over_http(client: ConsoleClient, tenant: str, patterns: Sequence[str]) -> list[str]:
    """Return the gateways that match patterns. Raises CommandError."""
    if not any(set(pattern) & set("*?[") for pattern in patterns):
        return list(dict.fromkeys(patterns))
    rows = client.pages("labels", "gateways", {"tenant": tenant or None})
    found = [row["gateway"] for row in rows if any(fnmatchcase(row["gateway"], each) for each in patterns)]
    if not found:
        raise CommandError(f"no gateway matches {', '.join(patterns)}", error="gateway-not-found")
    return found


def _apply_over_http(
    client: ConsoleClient,
    names: Sequence[str],
    tenant: str,
    gateways: Sequence[str],
    selector: str | None,
    setting: dict[str, Any],
    *,
    dry_run: bool,
) -> list[tuple[str, int | None]]:
    """Make versions at the console of a hub, of all gateways or of none."""
    require_one(gateways, selector)
    body, of = yaml_of(names), tenant or None
    chosen: dict[str, Any] = {"selector": selector, "gateways": ",".join(gateways) or None}
    if dry_run:
        plan = client.ask("plans", method="POST", body=body, tenant=of, **chosen)
        more = plan["changed"] - len(plan["gateways"])
        if more:
            say(f"note: {counted(more, 'more gateway')} would change", err=True)
        return [(name, None) for name in plan["gateways"]]
    made = client.ask("configurations", method="POST", body=body, tenant=of, **chosen, **setting)["gateways"]
    return [(each["gateway"], each["version"]) for each in made]


@config.command()
@hub_options
@tenant_option
@output_option("selector")
def selectors(hub: HubPlace, tenant: str, form: str) -> None:
    """List selectors with a configuration. The latest is first."""
    from cloud.hub.desired.shown import selector_row

    if hub.client is not None:
        rows = hub.client.find("selectors", {"tenant": tenant or None})["selectors"]
    else:
        with open_configurations(hub) as place:
            rows = [selector_row(each) for each in place.selectors.all(tenant)]
    print_listing(SELECTORS, rows, form)


@config.command()
@hub_options
@tenant_option
@json_option("version")
@click.argument("selector")
@audited("configuration.end", "selector")
def delete(hub: HubPlace, tenant: str, as_json: JsonOutput | None, selector: str) -> None:
    """Delete the configuration of a selector. Its gateways get the latest one of other matching selectors."""
    from cloud.hub.desired.making import make_context
    from cloud.hub.labels import parse_selector

    if hub.client is not None:
        rows = hub.client.ask("configurations", method="DELETE", tenant=tenant or None, selector=selector)["gateways"]
        _say_made([(each["gateway"], each["version"]) for each in rows], as_json)
        return
    with open_configurations(hub) as place:
        how = make_context(time.time_ns() // 1_000, place.sign)
        made = place.selectors.delete(tenant, str(parse_selector(selector)), how)
    _say_made([(each.gateway, each.version) for each in made], as_json)


@config.command()
@hub_options
@tenant_option
@note_option
@click.option("--to", "number", type=click.IntRange(min=1), help="Version. Default: the last good one.")
@json_option("version")
@gateways_argument
@audited("configuration.roll-back", "gateways")
def rollback(
    hub: HubPlace,
    tenant: str,
    note: str,
    number: int | None,
    as_json: JsonOutput | None,
    gateways: Sequence[str],
) -> None:
    """Send an earlier version again, as a new one.

    Without --to it is the newest version that was in force and good before the newest one. A version that failed, or
    that a roll-back left, is passed over. A gateway that has gone back already stays there, so the command can be
    repeated; --to goes further back.

    Over HTTP (--hub, or a context) the gateways get it one after the other. On an error those before have it; they are
    listed.
    """
    from cloud.hub.desired.making import match_gateways, roll_back
    from cloud.hub.desired.shown import version_row

    made: list[dict[str, Any]] = []
    try:
        if hub.client is not None:
            _roll_back_over_http(hub.client, tenant, gateways, number, note, made)
        else:
            with open_configurations(hub) as place:
                known, now_us = place.configurations, time.time_ns() // 1_000
                names = match_gateways(known, tenant, gateways)
                back = roll_back(known, tenant, names, number, current_user(), note, now_us, place.sign)
            made += [{**_went_back(version_row(each.record)), "why": each.why, "made": each.is_new} for each in back]
    finally:
        if made:
            _say_rolled_back(made, as_json)


def _roll_back_over_http(
    client: ConsoleClient,
    tenant: str,
    gateways: Sequence[str],
    number: int | None,
    note: str,
    made: list[dict[str, Any]],
) -> None:
    """Roll gateways back at the console of a hub; each is added to `made`."""
    for name in gateways_over_http(client, tenant, gateways):
        path = f"configurations/{quote(name, safe='')}/rollback"
        try:
            row = client.ask(path, method="POST", tenant=tenant or None, to=number, why=note or None)
        except CommandError as error:
            if error.error == "outcome-unknown":
                error.hint = f"repeat it for {word(name)}: a gateway that has gone back stays there"
            raise
        made.append({**_went_back(row), "why": row["why"], "made": row["made"]})


def _went_back(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("gateway", "version", "repeats")}


def _say_rolled_back(made: Sequence[dict[str, Any]], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show(made)
        return
    for each in made:
        if each["made"]:
            say(f"{each['gateway']}: version {each['version']}, back to version {each['repeats']}: {each['why']}")
        else:
            say(f"{each['gateway']}: stays at version {each['version']}: {each['why']}; --to goes further back")


@config.command("list")
@hub_options
@tenant_option
@output_option("configuration")
def list_states(hub: HubPlace, tenant: str, form: str) -> None:
    """List wanted versions and those in force. Shows the reason where they differ."""
    from cloud.hub.desired.shown import gateway_row

    if hub.client is not None:
        rows = list(hub.client.pages("configurations", "gateways", {"tenant": tenant or None}))
    else:
        with open_configurations(hub) as place:
            rows = [gateway_row(each) for each in place.configurations.gateways(tenant)]
    print_listing(STATES, rows, form)


@config.command()
@hub_options
@tenant_option
@click.option("--version", "number", type=click.IntRange(min=1), help="Version. Default: the newest.")
@json_option("resource")
@click.argument("gateway")
def get(hub: HubPlace, tenant: str, number: int | None, as_json: JsonOutput | None, gateway: str) -> None:
    """Print a version as YAML. It can be applied again, and may contain secrets."""
    from bridge.resources.parse import to_yaml

    if hub.client is not None:
        document = hub.client.ask(f"configurations/{quote(gateway, safe='')}", tenant=tenant or None)
        if number is not None and number != document["wanted"]:
            what = f"over HTTP only the newest version is shown, {document['wanted']}"
            raise CommandError(
                what,
                "on the machine of the hub `waypost config get` shows earlier ones too",
                error="version-not-found",
            )
        say("note: secrets are left out over HTTP", style="yellow", err=True)
        resources = document["resources"]
    else:
        with open_configurations(hub) as place:
            resources = list(_version(place.configurations, tenant, gateway, number).desired.resources)
    if as_json:
        as_json.show(resources)
    else:
        say("---\n".join(to_yaml(document) for document in resources), nl=False)


@config.command()
@hub_options
@tenant_option
@output_option("version")
@click.argument("gateway")
def history(hub: HubPlace, tenant: str, form: str, gateway: str) -> None:
    """List the versions of a gateway. They have their outcomes; the newest is first."""
    from cloud.hub.desired.shown import version_row

    if hub.client is not None:
        rows = hub.client.ask(f"configurations/{quote(gateway, safe='')}", tenant=tenant or None)["versions"]
    else:
        with open_configurations(hub) as place:
            rows = [version_row(each) for each in place.configurations.versions(tenant, gateway)]
    print_listing(VERSIONS, rows, form)


@config.command()
@hub_options
@tenant_option
@files_option
@json_option("change")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there are differences, for scripts.")
@click.argument("gateway")
def diff(
    hub: HubPlace,
    tenant: str,
    names: Sequence[str],
    as_json: JsonOutput | None,
    exit_code: bool,
    gateway: str,
) -> None:
    """Show what a file would change. It is a unified diff of YAML, without secrets, with the newest version."""
    from bridge.resources.diff import masked, unified
    from bridge.resources.parse import read
    from bridge.resources.plan import ResourceChange, key_of
    from cloud.hub.desired.making import check_resources
    from edge.configuration.kinds import KINDS

    if hub.client is not None:
        what = "over HTTP secrets are left out, so a difference cannot be shown"
        raise CommandError(
            what,
            "waypost config get shows the version; --dry-run of apply checks the file",
            error="no-data-directory",
            code=Exit.USAGE,
        )
    with open_configurations(hub) as place:
        after = {key_of(each): each for each in check_resources(read(KINDS, names))}
        versions = place.configurations.versions(tenant, gateway)
    before = {key_of(each): each for each in versions[0].desired.resources} if versions else {}
    changes = [ResourceChange(*key, before.get(key), after.get(key)) for key in sorted({*before, *after})]
    differing = [change for change in changes if change.before != change.after]
    if as_json:
        shown = [(each, each.before, each.after) for each in differing]
        as_json.show(
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
    """Return the gateways of names or of a selector. Raises CommandError if both or neither are given."""
    from cloud.hub.desired.making import choose_gateways, match_gateways
    from cloud.hub.labels import parse_selector

    require_one(gateways, selector)
    if selector is None:
        return match_gateways(place.configurations, tenant, gateways)
    return choose_gateways(place.configurations, place.selectors.labels(tenant), tenant, parse_selector(selector))


def require_one(gateways: Sequence[str], selector: str | None) -> None:
    """Check that names or a selector are given, not both. Raises CommandError."""
    if bool(gateways) is (selector is not None):
        raise CommandError("name gateways, or choose them with --selector", code=Exit.USAGE, error="gateway-not-named")


def _version(known: Configurations, tenant: str, gateway: str, number: int | None) -> VersionRecord:
    found = known.versions(tenant, gateway)
    chosen = next((each for each in found if number in (None, each.version)), None)
    if chosen is None:
        which = "no version" if number is None else f"no version {number}; older versions are deleted"
        raise CommandError(f"gateway {gateway} of tenant {tenant} has {which}", error="version-not-found")
    return chosen


def _say_made(made: Sequence[tuple[str, int | None]], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show([{"gateway": name, "version": version} for name, version in made])
        return
    if not made:
        say("no gateway needs a new version now")
    for name, version in made:
        say(f"{name}: {f'version {version}' if version is not None else 'valid (dry run)'}")
