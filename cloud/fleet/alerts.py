"""`waypost alert`: alerts of a hub, from its registry. A running hub follows changes within seconds."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from cloud.fleet.audited import audited, change_of
from cloud.fleet.place import (
    HubPlace,
    current_user,
    hub_options,
    open_alerts,
    parse_duration,
)
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import line
from edge.output.times import moment_us

if TYPE_CHECKING:
    from cloud.hub.registry.alerts import MuteRecord

ALERTS: Final = Listing(
    "alert",
    "id",
    ("id", "severity", "state", "since", "tenant", "gateway", "gateways", "what"),
    ("rule", "selector", "acknowledged_by", "note", "resolved_at", "next_step"),
    "no alerts",
)
STATES = ("open", "firing", "acknowledged", "muted", "resolved", "all")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def alert() -> None:
    """Manage the alerts of a hub.

    Works while the hub runs. The hub evaluates the rules by itself. Rules, receivers (webhook, mail, dead-man ping) and
    the history are on page Alerts of its console, and in its HTTP API.
    """


@alert.command("list")
@hub_options
@click.option("--state", type=click.Choice(STATES), default="open", show_default=True, help="Only in this state.")
@click.option("--severity", type=click.Choice(["critical", "warning"]), help="Only of this severity.")
@click.option("--tenant", help="Only about gateways of this tenant.")
@click.option(
    "--query", "-q", "text", default="", metavar="TEXT", help="Only with this text in rule, gateway or label."
)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500), help="Number of alerts.")
@output_option("alert")
def list_alerts(
    hub: HubPlace,
    state: str,
    severity: str | None,
    tenant: str | None,
    text: str,
    limit: int,
    form: str,
) -> None:
    """List alerts, the latest first.

    One cause is one alert, whatever the number of its gateways.

    \b
      waypost alert list --data ./hub
      waypost alert list --data ./hub --state resolved --query lyon
    """
    import msgspec

    from cloud.hub.alerts.documents import alert_document
    from cloud.hub.registry.alerts import AlertFilter

    tenants = None if tenant is None else (tenant,)
    wanted = AlertFilter(tenants, "" if state == "all" else state, severity or "", text)
    if hub.client is not None:
        if tenant is not None:
            raise CommandError(
                "--tenant is for a data directory: over HTTP your rights choose", error="wrong-usage", code=Exit.USAGE
            )
        query: dict[str, Any] = {"state": state, "severity": severity, "q": text or None, "limit": limit}
        page = hub.client.ask("alerts", **query)
        rows, total = page["alerts"], page["total"]
    else:
        with open_alerts(hub) as alerts:
            found, total = alerts.page(wanted, limit)
        rows = [msgspec.to_builtins(alert_document(each)) for each in found]
    if form != "table":
        print_listing(ALERTS, rows, form, total=total)
        return
    for row in rows:
        say(_line(row))
    if not rows:
        say(f"no alerts ({state})" if state != "all" else "no alerts")
    elif total > len(rows):
        say(f"{len(rows)} of {total}")


@alert.command()
@hub_options
@click.argument("identifier", metavar="ID")
@click.option("--note", default="", help="Words for others, such as who looks after it.")
@json_option("alert")
@audited("alert.acknowledge", "identifier")
def ack(hub: HubPlace, identifier: str, note: str, as_json: JsonOutput | None) -> None:
    """Acknowledge an open alert.

    Others see who looks after it. It stays open until its condition is over. ID: as in `list`.

    \b
      waypost alert ack 5f1c9d0e7a3b2c44 --note 'the mast is being repaired' --data ./hub
    """
    import msgspec

    from cloud.hub.alerts.documents import alert_document
    from cloud.hub.alerts.limits import NOTE_CHARACTERS_MAX

    if hub.client is not None:
        path = f"alerts/{quote(identifier, safe='')}/acknowledge"
        document = hub.client.ask(path, method="POST", body={"note": note[:NOTE_CHARACTERS_MAX]})
        _say_alert(document, as_json)
        return
    with open_alerts(hub) as alerts:
        found = alerts.acknowledge(identifier, current_user(), note[:NOTE_CHARACTERS_MAX], _now_us())
    if found is None:
        raise CommandError(
            f"no alert {identifier}", f"list them: waypost alert list {hub.quoted()}", error="alert-not-found"
        )
    change_of(found.tenant)
    _say_alert(msgspec.to_builtins(alert_document(found)), as_json)


def _say_alert(document: dict[str, Any], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show([document])
    else:
        say(_line(document))


@alert.command()
@hub_options
@click.option("--for", "duration", required=True, metavar="TIME", help="Duration: 30m, 4h, 7d; 30d at most.")
@click.option("--reason", required=True, help="Reason, for others.")
@click.option("--rule", default="", help="Only alerts of this rule.  [default: all]")
@click.option("--selector", default="", help="Only gateways with these labels: site=lyon.")
@click.option("--gateway", default="", help="Only this gateway.")
@click.option("--tenant", help="Only gateways of this tenant.  [default: all]")
@json_option("mute")
@audited("mute.create", "reason")
def mute(
    hub: HubPlace,
    duration: str,
    reason: str,
    rule: str,
    selector: str,
    gateway: str,
    tenant: str | None,
    as_json: JsonOutput | None,
) -> None:
    """Mute alerts until a time.

    They are still listed, and notify no receiver. Prints the ID, for `unmute`. An alert about several gateways is muted
    when all of them match. When the mute ends and the alert still fires, its receivers are notified then.

    \b
      waypost alert mute --for 4h --selector site=lyon --reason 'works on the mast' --data ./hub
    """
    import msgspec

    from cloud.hub.alerts.documents import mute_document
    from cloud.hub.alerts.limits import MUTE_S_MAX, MUTES_MAX, NOTE_CHARACTERS_MAX
    from cloud.hub.alerts.rules import BY_NAME
    from cloud.hub.labels import LabelError, parse_selector
    from cloud.hub.registry.alerts import MuteRecord

    seconds, now_us = parse_duration(duration), _now_us()
    if seconds > MUTE_S_MAX:
        raise CommandError(
            f"--for {duration}: a mute lasts {MUTE_S_MAX // 86_400} days at most",
            code=Exit.USAGE,
            error="invalid-value",
        )
    if rule and rule not in BY_NAME:
        raise CommandError(
            f"--rule {rule}: there is no such rule",
            f"one of {', '.join(BY_NAME)}",
            code=Exit.USAGE,
            error="invalid-value",
        )
    try:
        chosen = str(parse_selector(selector)) if selector else ""
    except LabelError as error:
        raise CommandError(f"--selector: {error}", code=Exit.USAGE, error="invalid-selector") from None
    if hub.client is not None:
        scope = {"rule": rule, "selector": chosen, "gateway": gateway, "tenant": tenant or ""}
        body = {"minutes": seconds / 60, "reason": reason[:NOTE_CHARACTERS_MAX], **scope}
        _say_mutes([hub.client.ask("mutes", method="POST", body=body)], as_json)
        return
    made = MuteRecord(
        id=secrets.token_hex(8),
        tenant=tenant or "",
        rule=rule,
        selector=chosen,
        gateway=gateway,
        until=now_us + int(seconds * 1e6),
        reason=reason[:NOTE_CHARACTERS_MAX],
        made_at=now_us,
        made_by=current_user(),
    )
    with open_alerts(hub) as alerts:
        if not alerts.mute(made, MUTES_MAX):
            raise CommandError(
                f"{MUTES_MAX} mutes are in effect", "end some: waypost alert unmute", error="limit-reached"
            )
    _say_mutes([msgspec.to_builtins(mute_document(made))], as_json)


def _say_mutes(rows: Sequence[dict[str, Any]], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show(rows)
        return
    for row in rows:
        say(_mute_line(row))
    if not rows:
        say("no mutes are in effect")


@alert.command()
@hub_options
@click.argument("identifier", metavar="[ID]", required=False)
@json_option("mute")
@audited("mute.end", "identifier")
def unmute(hub: HubPlace, identifier: str | None, as_json: JsonOutput | None) -> None:
    """End a mute, or list the mutes in effect.

    \b
      waypost alert unmute --data ./hub
      waypost alert unmute 0c8e12aa55d9f013 --data ./hub
    """
    import msgspec

    from cloud.hub.alerts.documents import mute_document

    if hub.client is not None:
        if identifier is None:
            _say_mutes(hub.client.ask("mutes")["mutes"], as_json)
        else:
            _say_mutes([hub.client.ask(f"mutes/{quote(identifier, safe='')}", method="DELETE")], as_json)
        return
    with open_alerts(hub) as alerts:
        if identifier is None:
            found: Sequence[MuteRecord] = alerts.mutes(_now_us())
        else:
            ended = alerts.unmute(identifier, _now_us())
            if ended is None:
                raise CommandError(
                    f"no mute {identifier} is in effect",
                    f"list them: waypost alert unmute {hub.quoted()}",
                    error="mute-not-found",
                )
            change_of(ended.tenant)
            found = [ended]
    _say_mutes([msgspec.to_builtins(mute_document(each)) for each in found], as_json)


@alert.command()
@hub_options
@click.argument("name", metavar="[RECEIVER]", required=False)
@json_option("receiver-test")
@audited("receiver.test", "name")
def test(hub: HubPlace, name: str | None, as_json: JsonOutput | None) -> None:
    """Send a test notification to receivers.

    It is sent from this machine; without RECEIVER to all of them. Exit code 1 when one of them does not take it.

    \b
      waypost alert test --data ./hub
    """

    with open_alerts(hub) as alerts:
        receivers = [each for each in alerts.receivers() if name in (None, each.name)]
        if not receivers:
            what = "there are no receivers" if name is None else f"no receiver {name}"
            raise CommandError(what, "add one on page Alerts of the hub's console", error="receiver-not-found")
        results = {}
        for receiver in receivers:
            failure = results[receiver.name] = _try(receiver)
            alerts.record_outcome(receiver.name, _now_us(), failure)
    if as_json:
        as_json.show([{"receiver": each, "failure": failure} for each, failure in results.items()])
    else:
        for each, failure in results.items():
            say(f"{each}  {'delivered' if failure is None else f'failed: {failure}'}")
    if any(results.values()):
        click.get_current_context().exit(1)


def _try(receiver: Any) -> str | None:
    """Send a test notification; return why it failed."""
    import asyncio
    import socket
    from concurrent.futures import ThreadPoolExecutor

    from cloud.hub.alerts.documents import make_test_notification
    from cloud.hub.alerts.receivers import NotificationFailed, send

    notification = make_test_notification(receiver, f"test-{secrets.token_hex(8)}", socket.gethostname())
    try:
        with ThreadPoolExecutor(1) as threads:
            asyncio.run(send(receiver, notification, time.time(), threads))
    except NotificationFailed as failed:
        return str(failed)
    return None


def _line(row: dict[str, Any]) -> str:
    """Return the line of an alert (`AlertDocument`)."""
    who = f" by {row['acknowledged_by']}" if row["acknowledged_by"] and row["state"] == "acknowledged" else ""
    several = f"{counted(row['gateways'], 'gateway')}{' with ' if row['selector'] else ''}{row['selector']}"
    place = f"gateway {row['gateway']}" if row["gateway"] else several if row["tenant"] else "hub"
    state, since = f"{row['state']}{who}", moment_us(row["since"] * 1_000) or "-"
    return line("  ".join((row["id"], row["severity"], state, since, place, row["what"])))


def _mute_line(row: dict[str, Any]) -> str:
    """Return the line of a mute (`MuteDocument`)."""
    what = ", ".join(each for each in (row["rule"], row["selector"], row["gateway"], row["tenant"]) if each)
    until = moment_us(row["until"] * 1_000) or "-"
    return line(f"{row['id']}  {what or 'everything'}  until {until}  {row['made_by']}: {row['reason']}")


def _now_us() -> int:
    return time.time_ns() // 1_000
