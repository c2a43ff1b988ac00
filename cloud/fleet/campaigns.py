"""`waypost campaign`: one version of an artefact for many devices, in waves, halted on failure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

import click
import msgspec

from cloud.fleet.audited import audited, change_of, subject_of
from cloud.fleet.place import DEFAULT_TENANT, HubPlace, current_user, hub_of, hub_options, parse_duration, tenant_option
from cloud.fleet.rollout import waves_option
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say

if TYPE_CHECKING:
    from cloud.hub.registry.campaigns import Campaigns
    from cloud.hub.registry.database import Database
    from edge.remote.client import ConsoleClient

CAMPAIGNS: Final = Listing(
    "campaign",
    "id",
    ("id", "artefact", "version", "state", "wave", "waves", "devices"),
    ("why", "tenant", "selector", "made_by", "note"),
    "no campaign",
)
DEVICES: Final = Listing(
    "campaign-device", "device", ("device", "wave", "phase", "report", "why"), ("since",), "no device"
)
PHASES: Final = (
    "waiting", "sent", "away", "confirmed", "done", "failed", "superseded", "forgotten", "left-out",
)  # fmt: skip
_PAGE_ROWS: Final = 500
campaign_argument = click.argument("campaign_id", metavar="ID")


class CampaignPlace(Protocol):
    """Campaigns of a hub, as documents of the API. Methods raise CommandError."""

    def start(self, tenant: str, new: dict[str, Any]) -> dict[str, Any]:
        """Start a campaign."""

    def list(self, tenant: str) -> Iterator[dict[str, Any]]:
        """Yield campaigns, the newest first."""

    def show(self, campaign: str) -> dict[str, Any]:
        """Return a campaign."""

    def devices(self, campaign: str, phase: str | None) -> Iterator[dict[str, Any]]:
        """Yield the devices of a campaign."""

    def step(self, campaign: str, step: str) -> dict[str, Any]:
        """Pause, resume or stop a campaign."""


class _RemoteCampaigns:
    """Campaigns over HTTP."""

    def __init__(self, client: ConsoleClient) -> None:
        self._client = client

    def start(self, tenant: str, new: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._client.ask("campaigns", method="POST", body=new, tenant=tenant or None)
        return found

    def list(self, tenant: str) -> Iterator[dict[str, Any]]:
        yield from self._client.pages("campaigns", "campaigns", {"tenant": tenant or None})

    def show(self, campaign: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.ask(f"campaigns/{quote(campaign, safe='')}")
        return found

    def devices(self, campaign: str, phase: str | None) -> Iterator[dict[str, Any]]:
        yield from self._client.pages(f"campaigns/{quote(campaign, safe='')}/devices", "devices", {"phase": phase})

    def step(self, campaign: str, step: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.ask(f"campaigns/{quote(campaign, safe='')}/{step}", method="POST")
        return found


class _LocalCampaigns:
    """Campaigns in the data directory of a hub."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def _campaigns(self) -> Campaigns:
        from cloud.hub.registry.campaigns import Campaigns

        return Campaigns(self._database)

    def start(self, tenant: str, new: dict[str, Any]) -> dict[str, Any]:
        from cloud.hub.campaigns.documents import NewCampaign
        from cloud.hub.campaigns.http import draft_of
        from cloud.hub.campaigns.starting import find_devices, start_campaign

        try:
            asked = msgspec.convert(new, NewCampaign)
        except msgspec.ValidationError as error:
            raise CommandError(f"not allowed: {error}", error="invalid-value", code=Exit.USAGE) from None
        draft = draft_of(tenant or DEFAULT_TENANT, current_user(), asked)
        labelled = find_devices(self._database, draft)
        record = start_campaign(self._campaigns, draft, labelled)
        return self.show(record.id)

    def list(self, tenant: str) -> Iterator[dict[str, Any]]:
        after: tuple[int, str] | None = None
        while rows := self._campaigns.page(tenant or None, after, _PAGE_ROWS):
            yield from (self.show(each.id) for each in rows)
            after = rows[-1].made_at, rows[-1].id

    def show(self, campaign: str) -> dict[str, Any]:
        from cloud.hub.campaigns.documents import campaign_document

        record = self._campaigns.get(campaign)
        return _plain(campaign_document(record, self._campaigns.counts(campaign)))

    def devices(self, campaign: str, phase: str | None) -> Iterator[dict[str, Any]]:
        from cloud.hub.campaigns.documents import member_document
        from cloud.hub.rollout import MemberPhase

        after, wanted = "", MemberPhase(phase) if phase is not None else None
        while rows := self._campaigns.members(campaign, wanted, after, _PAGE_ROWS):
            yield from (_plain(member_document(each)) for each in rows)
            after = rows[-1].member.device

    def step(self, campaign: str, step: str) -> dict[str, Any]:
        change = {"pause": self._campaigns.pause, "resume": self._campaigns.resume, "stop": self._campaigns.stop}[step]
        change_of(change(campaign).tenant)
        return self.show(campaign)


@contextlib.contextmanager
def _open(hub: HubPlace) -> Iterator[CampaignPlace]:
    """Open the campaigns of a hub. Raises CommandError, also for what the body refuses."""
    if hub.client is not None:
        yield _RemoteCampaigns(hub.client)
        return
    from cloud.hub.campaigns.starting import NoDeviceChosen
    from cloud.hub.labels import LabelError
    from cloud.hub.registry.campaign_rows import UnknownCampaign
    from cloud.hub.registry.campaigns import CampaignError
    from cloud.hub.registry.device_tenants import UnknownDeviceTenant
    from cloud.hub.registry.opening import open_registry
    from cloud.hub.rollout import WavesError

    with hub_of(hub) as (_, registry), contextlib.closing(open_registry(registry).database) as database:
        try:
            yield _LocalCampaigns(database)
        except (WavesError, LabelError) as error:
            raise CommandError(str(error), error="invalid-value", code=Exit.USAGE) from None
        except (NoDeviceChosen, UnknownDeviceTenant) as error:
            words = str(error) if isinstance(error, NoDeviceChosen) else f"no tenant {error} of devices"
            hint = f"list them: waypost hub device list {hub.quoted()}"
            raise CommandError(words, hint, error="not-found") from None
        except UnknownCampaign as error:
            hint = f"list them: waypost campaign list {hub.quoted()}"
            raise CommandError(f"no campaign {error}", hint, error="not-found") from None
        except CampaignError as error:
            hint = f"look: waypost campaign list {hub.quoted()}"
            raise CommandError(str(error), hint, error="conflict") from None


@click.group()
def campaign() -> None:
    """Update devices in waves, as they report.

    A wave starts when the one before has succeeded. Gateways offer the version to the devices of a wave.
    """


@campaign.command()
@hub_options
@tenant_option
@click.option("--device-tenant", default="", help="Tenant of the device registry.  [default: the tenant]")
@click.option("--selector", "-l", metavar="SELECTOR", help="Devices by their labels, as in site=berlin,ring!=canary.")
@click.option("--group", help="Devices of a group (memberOf).")
@waves_option
@click.option(
    "--soak",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Time after which an installed device counts as a success, unless it reports sooner.",
)
@click.option(
    "--away",
    default="24h",
    show_default=True,
    metavar="TIME",
    help="Do not wait for a device that has not reported for this long.",
)
@click.option(
    "--failures",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Halt when more devices than this fail.",
)
@click.option(
    "--enough",
    default=100,
    show_default=True,
    type=click.IntRange(1, 100),
    metavar="PERCENT",
    help="Share of a wave that has to end before the next one starts.",
)
@click.option("--until", metavar="TIME", help="Withdraw offers that are not taken then, as 2026-12-24T00:00:00Z.")
@click.option("--why", "note", default="", help="Reason, for the record.")
@click.argument("name")
@click.argument("version")
@click.argument("devices", nargs=-1)
@json_option("campaign")
@audited("campaign.start", "name", "version")
def start(
    hub: HubPlace,
    tenant: str,
    device_tenant: str,
    selector: str | None,
    group: str | None,
    waves: str,
    soak: str,
    away: str,
    failures: int,
    enough: int,
    until: str | None,
    note: str,
    name: str,
    version: str,
    devices: Sequence[str],
    as_json: JsonOutput | None,
) -> None:
    """Start a campaign.

    It is for the devices that are registered now. DEVICES are patterns of ids. With --selector and --group, all
    conditions have to hold.

    \b
    waypost campaign start blinker 1.2.0 --data HUBDIR 'pump-*' --waves 1,10%,100%
    waypost campaign start blinker 1.2.0 --data HUBDIR -l site=berlin --waves ring=canary,100%
    """
    if not (devices or selector or group):
        hint = "give patterns of devices, --selector or --group"
        raise CommandError("no devices are chosen", hint, error="invalid-value", code=Exit.USAGE)
    new = {
        "artefact": name,
        "version": version,
        "devices": list(devices),
        "selector": selector,
        "group": group,
        "device_tenant": device_tenant or None,
        "waves": waves,
        "soak_s": int(parse_duration(soak)),
        "away_s": int(parse_duration(away)),
        "failures_max": failures,
        "enough_percent": enough,
        "ends_at": until,
        "note": note,
    }
    with _open(hub) as place:
        row = place.start(tenant, new)
    subject_of(row["id"])
    _say([row], as_json)


@campaign.command("list")
@hub_options
@tenant_option
@output_option("campaign")
def list_campaigns(hub: HubPlace, tenant: str, form: str) -> None:
    """List campaigns, the newest first."""
    with _open(hub) as place:
        rows = list(place.list(tenant))
    if form == "table":
        _say(rows, None)
    else:
        print_listing(CAMPAIGNS, [{**each, "waves": len(each["stages"])} for each in rows], form)


@campaign.command()
@hub_options
@click.option("--phase", type=click.Choice(PHASES), help="Only devices in this phase.")
@campaign_argument
@output_option("campaign-device")
def show(hub: HubPlace, phase: str | None, campaign_id: str, form: str) -> None:
    """Show a campaign with its devices."""
    with _open(hub) as place:
        row = place.show(campaign_id)
        rows = list(place.devices(campaign_id, phase))
    if form == "table":
        _say([row], None)
    print_listing(DEVICES, rows, form)


@campaign.command()
@hub_options
@campaign_argument
@audited("campaign.pause", "campaign_id")
def pause(hub: HubPlace, campaign_id: str) -> None:
    """Pause a campaign.

    Nothing more is offered, and devices that have not taken the version do not get it.
    """
    _step(hub, campaign_id, "pause")


@campaign.command()
@hub_options
@campaign_argument
@audited("campaign.resume", "campaign_id")
def resume(hub: HubPlace, campaign_id: str) -> None:
    """Resume a paused or halted campaign.

    It leaves out the devices that failed.
    """
    _step(hub, campaign_id, "resume")


@campaign.command()
@hub_options
@campaign_argument
@audited("campaign.stop", "campaign_id")
def stop(hub: HubPlace, campaign_id: str) -> None:
    """Stop a campaign for good.

    Its offers are withdrawn, also those of a campaign that is done. Devices keep what they have installed.
    """
    _step(hub, campaign_id, "stop")


def _step(hub: HubPlace, campaign_id: str, step: str) -> None:
    with _open(hub) as place:
        row = place.step(campaign_id, step)
    say(f"{campaign_id}: {row['state']}{'' if row['offering'] else ', nothing is offered any more'}")


def _say(rows: Sequence[dict[str, Any]], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show(rows)
        return
    for row in rows:
        counts = ", ".join(f"{count} {phase}" for phase, count in row["devices"].items())
        why = f": {row['why']}" if row["why"] else ""
        what = f"{row['artefact']} {row['version']}"
        say(f"{row['id']}  {what}  {row['state']}  wave {row['wave']} of {len(row['stages'])}  {counts}{why}")
    if not rows:
        say("no campaign")


def _plain(document: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(document)
    return found
