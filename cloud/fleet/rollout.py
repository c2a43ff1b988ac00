"""`waypost rollout`: one configuration for many gateways, in waves, halted on failure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from cloud.fleet.audited import audited, change_of
from cloud.fleet.configuration import (
    confirm_option,
    files_option,
    gateways_or_selector,
    note_option,
    require_one,
    restart_option,
    selector_option,
    yaml_of,
)
from cloud.fleet.place import (
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

if TYPE_CHECKING:
    from cloud.hub.registry.rollouts import RolloutRecord
    from cloud.hub.rollout import RolloutMember

ROLLOUTS: Final = Listing(
    "rollout",
    "id",
    ("id", "tenant", "state", "selector", "wave", "waves", "gateways"),
    ("why", "made_at", "made_by", "note"),
    "no roll-out",
)

rollout_argument = click.argument("rollout_id", metavar="ID")

waves_option = click.option(
    "--waves",
    default="1,10%,100%",
    show_default=True,
    help="Cumulative size of each wave: a number, a share, or a label, as in ring=canary,10%,100%.",
)


@click.group()
def rollout() -> None:
    """Roll out a configuration in waves. A wave starts when the one before has succeeded."""


@rollout.command()
@hub_options
@tenant_option
@files_option
@note_option
@confirm_option
@restart_option
@selector_option
@waves_option
@click.option(
    "--soak",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Time that a wave must stay connected before the next one starts.",
)
@click.option(
    "--away",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Do not wait for a gateway that is away for this long.",
)
@click.option(
    "--failures",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Halt when more gateways than this fail.",
)
@json_option("rollout")
@gateways_or_selector
@audited("rollout.start", "selector", "gateways")
def start(
    hub: HubPlace,
    tenant: str,
    names: Sequence[str],
    note: str,
    confirm: str,
    restart: bool,
    selector: str | None,
    waves: str,
    soak: str,
    away: str,
    failures: int,
    as_json: JsonOutput | None,
    gateways: Sequence[str],
) -> None:
    """Start a roll-out. The hub continues it, also after a restart. Connected gateways go first.

    With --selector, gateways that get such labels later get the same configuration once the roll-out is done.

    \b
    waypost rollout start --data HUBDIR -f forwarders.yaml --waves 1,10%,100% --soak 10m 'store-*'
    waypost rollout start --data HUBDIR -f forwarders.yaml --waves ring=canary,100% -l site=berlin
    """
    from bridge.resources.parse import read
    from cloud.hub.bundles.checking import require_bundles
    from cloud.hub.desired.making import RolloutTarget, check_resources, confirm_fault, start_rollout
    from cloud.hub.labels import parse_selector
    from cloud.hub.registry.configurations import WantedConfiguration
    from cloud.hub.rollout import RolloutPace
    from edge.configuration.kinds import KINDS

    require_one(gateways, selector)
    confirm_s = parse_duration(confirm)
    if fault := confirm_fault(confirm_s):
        raise CommandError(f"--confirm {confirm}: {fault}", code=Exit.USAGE, error="invalid-value")
    pace = RolloutPace(parse_duration(soak), parse_duration(away), failures)
    if hub.client is not None:
        query: dict[str, Any] = {
            "gateways": ",".join(gateways) or None,
            "selector": selector,
            "waves": waves,
            "failures": failures,
        }
        query |= {"soak": int(pace.soak_s), "away": int(pace.away_s), "confirm": int(confirm_s)}
        query |= {"tenant": tenant or None, "why": note or None, "restart": "1" if restart else None}
        row = hub.client.ask("rollouts", method="POST", body=yaml_of(names), **query)
        _say([row], as_json)
        return
    with open_configurations(hub) as place:
        resources = read(KINDS, names)
        documents = check_resources(resources)
        require_bundles(resources, place.bundles)
        wanted = WantedConfiguration(tenant, "", documents, confirm_s, restart, current_user(), note)
        chosen = RolloutTarget(gateways, parse_selector(selector) if selector is not None else None)
        now_us = time.time_ns() // 1_000
        record = start_rollout(place.tables, wanted, chosen, waves, pace, now_us)
        row = _row(record, place.rollouts.members(record.id))
    _say([row], as_json)


@rollout.command()
@hub_options
@tenant_option
@output_option("rollout")
@click.argument("rollout_id", metavar="[ID]", required=False)
def status(hub: HubPlace, tenant: str, form: str, rollout_id: str | None) -> None:
    """Show roll-outs, or one with its gateways."""
    if hub.client is not None and rollout_id is not None:
        rows = [hub.client.ask(f"rollouts/{quote(rollout_id, safe='')}")]
    elif hub.client is not None:
        rows = list(hub.client.pages("rollouts", "rollouts", {"tenant": tenant or None}))
    else:
        with open_configurations(hub) as place:
            found = [each for each in place.rollouts.all(tenant) if rollout_id in (None, each.id)]
            rows = [_row(each, place.rollouts.members(each.id)) for each in found]
    if rollout_id is not None and not rows:
        raise CommandError(f"no roll-out {rollout_id} of tenant {tenant}", error="rollout-not-found")
    if form == "table":
        _say(rows, None, each_gateway=rollout_id is not None)
    else:
        print_listing(ROLLOUTS, rows, form)


@rollout.command()
@hub_options
@rollout_argument
@audited("rollout.pause", "rollout_id")
def pause(hub: HubPlace, rollout_id: str) -> None:
    """Pause a roll-out. Nothing more is sent, and gateways that have not fetched the version do not get it."""
    if _stepped(hub, rollout_id, "pause"):
        return
    with open_configurations(hub) as place:
        change_of(place.rollouts.pause(rollout_id).tenant)
    _say_state(rollout_id, "paused")


@rollout.command()
@hub_options
@rollout_argument
@audited("rollout.resume", "rollout_id")
def resume(hub: HubPlace, rollout_id: str) -> None:
    """Resume a paused or halted roll-out. It leaves out the gateways that failed."""
    if _stepped(hub, rollout_id, "resume"):
        return
    with open_configurations(hub) as place:
        change_of(place.rollouts.resume(rollout_id, time.time_ns() // 1_000).tenant)
    _say_state(rollout_id, "running")


@rollout.command()
@hub_options
@rollout_argument
@click.option("--take-back", is_flag=True, help="Send gateways with the version their previously confirmed one.")
@audited("rollout.abort", "rollout_id")
def abort(hub: HubPlace, rollout_id: str, take_back: bool) -> None:
    """Abort a roll-out. Gateways keep the version they have taken, unless --take-back is given."""
    if not take_back and _stepped(hub, rollout_id, "abort"):
        return
    with open_configurations(hub) as place:
        if take_back:
            back = place.rollouts.take_back(rollout_id, current_user(), time.time_ns() // 1_000, place.sign)
            changed = place.rollouts.get(rollout_id)
        else:
            changed, back = place.rollouts.abort(rollout_id), []
        change_of("" if changed is None else changed.tenant)
    taken_back = f", taken back from {counted(len(back), 'gateway')}" if take_back else ""
    _say_state(rollout_id, f"aborted{taken_back}")


def _stepped(hub: HubPlace, rollout_id: str, step: str) -> bool:
    """Change the state of a roll-out over HTTP; return False for a hub on this machine."""
    if hub.client is None:
        return False
    row = hub.client.ask(f"rollouts/{quote(rollout_id, safe='')}/{step}", method="POST")
    _say_state(rollout_id, row["state"])
    return True


def _row(record: RolloutRecord, members: Sequence[RolloutMember]) -> dict[str, Any]:
    from cloud.hub.desired.shown import member_row, rollout_row

    return {**rollout_row(record, members), "members": [member_row(each) for each in members]}


def _say(rows: Sequence[dict[str, Any]], as_json: JsonOutput | None, *, each_gateway: bool = False) -> None:
    if as_json:
        as_json.show(rows)
        return
    for row in rows:
        counts = ", ".join(f"{count} {phase}" for phase, count in row["gateways"].items())
        why = f": {row['why']}" if row["why"] else ""
        chosen = f"  {row['selector']}" if row["selector"] else ""
        say(f"{row['id']}  {row['state']}{chosen}  wave {row['wave']} of {row['waves']}  {counts}{why}")
        for each in row["members"] if each_gateway else ():
            version = f"version {each['version']}" if each["version"] is not None else ""
            say(f"  {each['gateway']}  wave {each['wave']}  {each['phase']}  {version}  {each['why']}".rstrip())
    if not rows:
        say("no roll-out")


def _say_state(rollout_id: str, state: str) -> None:
    say(f"{rollout_id}: {state}")
