"""`waypost rollout`: one configuration for many gateways, in waves, halted on failure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud.fleet.audited import audited
from cloud.fleet.configuration import (
    confirm_option,
    files_option,
    gateways_or_selector,
    note_option,
    require_one,
    restart_option,
    selector_option,
)
from cloud.fleet.place import (
    FleetError,
    config_option,
    current_user,
    data_option,
    json_option,
    open_configurations,
    parse_duration,
    tenant_option,
)
from edge.output.amounts import counted

if TYPE_CHECKING:
    from cloud.hub.registry.rollouts import RolloutRecord
    from cloud.hub.rollout import RolloutMember

rollout_argument = click.argument("rollout_id", metavar="ID")


@click.group()
def rollout() -> None:
    """Roll out a configuration in waves. A wave starts when the one before has succeeded."""


@rollout.command()
@data_option
@config_option
@tenant_option
@files_option
@note_option
@confirm_option
@restart_option
@selector_option
@click.option(
    "--waves",
    default="1,10%,100%",
    show_default=True,
    help="Cumulative size of each wave: a number, a share, or a label, as in ring=canary,10%,100%.",
)
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
@json_option
@gateways_or_selector
@audited("rollout.start", "selector", "gateways")
def start(
    data: Path,
    config: Path | None,
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
    as_json: bool,
    gateways: Sequence[str],
) -> None:
    """Start a roll-out. The hub continues it, also after a restart. Connected gateways go first.

    With --selector, gateways that get such labels later get the same configuration once the roll-out is done.

    \b
    waypost rollout start --data HUBDIR -f forwarders.yaml --waves 1,10%,100% --soak 10m 'store-*'
    waypost rollout start --data HUBDIR -f forwarders.yaml --waves ring=canary,100% -l site=berlin
    """
    from bridge.resources.parse import read
    from cloud.hub.desired.making import RolloutTarget, check_resources, confirm_fault, start_rollout
    from cloud.hub.labels import parse_selector
    from cloud.hub.registry.configurations import WantedConfiguration
    from cloud.hub.rollout import RolloutPace
    from edge.configuration.kinds import KINDS

    require_one(gateways, selector)
    confirm_s = parse_duration(confirm)
    if fault := confirm_fault(confirm_s):
        raise FleetError(f"--confirm {confirm}: {fault}", code=2)
    pace = RolloutPace(parse_duration(soak), parse_duration(away), failures)
    with open_configurations(data, config) as place:
        wanted = WantedConfiguration(
            tenant, "", check_resources(read(KINDS, names)), confirm_s, restart, current_user(), note
        )
        chosen = RolloutTarget(gateways, parse_selector(selector) if selector is not None else None)
        now_us = time.time_ns() // 1_000
        record = start_rollout(place.tables, wanted, chosen, waves, pace, now_us)
        members = place.rollouts.members(record.id)
    _say([(record, members)], as_json)


@rollout.command()
@data_option
@config_option
@tenant_option
@json_option
@click.argument("rollout_id", metavar="[ID]", required=False)
def status(data: Path, config: Path | None, tenant: str, as_json: bool, rollout_id: str | None) -> None:
    """Show roll-outs, or one with its gateways."""
    with open_configurations(data, config) as place:
        found = [each for each in place.rollouts.all(tenant) if rollout_id in (None, each.id)]
        shown = [(each, place.rollouts.members(each.id)) for each in found]
    if rollout_id is not None and not found:
        raise FleetError(f"no roll-out {rollout_id} of tenant {tenant}")
    _say(shown, as_json, each_gateway=rollout_id is not None)


@rollout.command()
@data_option
@config_option
@rollout_argument
@audited("rollout.pause", "rollout_id")
def pause(data: Path, config: Path | None, rollout_id: str) -> None:
    """Pause a roll-out. Nothing more is sent, and gateways that have not fetched the version do not get it."""
    with open_configurations(data, config) as place:
        place.rollouts.pause(rollout_id)
    _say_state(rollout_id, "paused")


@rollout.command()
@data_option
@config_option
@rollout_argument
@audited("rollout.resume", "rollout_id")
def resume(data: Path, config: Path | None, rollout_id: str) -> None:
    """Resume a paused or halted roll-out. It leaves out the gateways that failed."""
    with open_configurations(data, config) as place:
        place.rollouts.resume(rollout_id, time.time_ns() // 1_000)
    _say_state(rollout_id, "running")


@rollout.command()
@data_option
@config_option
@rollout_argument
@click.option("--take-back", is_flag=True, help="Send gateways with the version their previously confirmed one.")
@audited("rollout.abort", "rollout_id")
def abort(data: Path, config: Path | None, rollout_id: str, take_back: bool) -> None:
    """Abort a roll-out. Gateways keep the version they have taken, unless --take-back is given."""
    with open_configurations(data, config) as place:
        if take_back:
            back = place.rollouts.take_back(rollout_id, current_user(), time.time_ns() // 1_000, place.sign)
        else:
            place.rollouts.abort(rollout_id)
            back = []
    taken_back = f", taken back from {counted(len(back), 'gateway')}" if take_back else ""
    _say_state(rollout_id, f"aborted{taken_back}")


def _say(
    shown: Sequence[tuple[RolloutRecord, Sequence[RolloutMember]]], as_json: bool, *, each_gateway: bool = False
) -> None:
    from cloud.hub.desired.shown import member_row, rollout_row
    from edge.output.terminal import say, say_json

    rows = [rollout_row(*each) for each in shown]
    if as_json:
        for row, (_, members) in zip(rows, shown, strict=True):
            row["members"] = [member_row(each) for each in members]
        say_json(rows)
        return
    for row in rows:
        counts = ", ".join(f"{count} {phase}" for phase, count in row["gateways"].items())
        why = f": {row['why']}" if row["why"] else ""
        chosen = f"  {row['selector']}" if row["selector"] else ""
        say(f"{row['id']}  {row['state']}{chosen}  wave {row['wave']} of {row['waves']}  {counts}{why}")
    for _, members in shown if each_gateway else ():
        for each in members:
            version = f"version {each.version}" if each.version is not None else ""
            say(f"  {each.gateway}  wave {each.wave + 1}  {each.phase.value}  {version}  {each.why}".rstrip())
    if not rows:
        say("no roll-out")


def _say_state(rollout_id: str, state: str) -> None:
    from edge.output.terminal import say

    say(f"{rollout_id}: {state}")
