"""`waypost alert`: alerts of a hub, from its registry. A running hub follows changes within seconds."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloud.fleet.audited import audited
from cloud.fleet.place import (
    FleetError,
    config_option,
    current_user,
    data_option,
    json_option,
    open_alerts,
    parse_duration,
)
from edge.output.text import word

if TYPE_CHECKING:
    from cloud.hub.registry.alerts import AlertRecord, MuteRecord

STATES = ("open", "firing", "acknowledged", "muted", "resolved", "all")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def alert() -> None:
    """Manage the alerts of a hub.

    Works while the hub runs. The hub evaluates the rules by itself. Rules, receivers (webhook, mail, dead-man ping) and
    the history are on page Alerts of its console, and in its HTTP API.
    """


@alert.command("list")
@data_option
@config_option
@click.option("--state", type=click.Choice(STATES), default="open", show_default=True, help="Only in this state.")
@click.option("--severity", type=click.Choice(["critical", "warning"]), help="Only of this severity.")
@click.option("--tenant", help="Only about gateways of this tenant.")
@click.option(
    "--query", "-q", "text", default="", metavar="TEXT", help="Only with this text in rule, gateway or label."
)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500), help="Number of alerts.")
@json_option
def list_alerts(
    data: Path,
    config: Path | None,
    state: str,
    severity: str | None,
    tenant: str | None,
    text: str,
    limit: int,
    as_json: bool,
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
    from edge.output.terminal import say, say_json

    tenants = None if tenant is None else (tenant,)
    wanted = AlertFilter(tenants, "" if state == "all" else state, severity or "", text)
    with open_alerts(data, config) as alerts:
        found, total = alerts.page(wanted, limit)
    if as_json:
        say_json([msgspec.to_builtins(alert_document(each)) for each in found])
        return
    for each in found:
        say(_line(each))
    if not found:
        say(f"no alerts ({state})" if state != "all" else "no alerts")
    elif total > len(found):
        say(f"{len(found)} of {total}")


@alert.command()
@data_option
@config_option
@click.argument("identifier", metavar="ID")
@click.option("--note", default="", help="Words for others, such as who looks after it.")
@json_option
@audited("alert.acknowledge", "identifier")
def ack(data: Path, config: Path | None, identifier: str, note: str, as_json: bool) -> None:
    """Acknowledge an open alert.

    Others see who looks after it. It stays open until its condition is over. ID: as in `list`.

    \b
      waypost alert ack 5f1c9d0e7a3b2c44 --note 'the mast is being repaired' --data ./hub
    """
    import msgspec

    from cloud.hub.alerts.documents import alert_document
    from cloud.hub.alerts.limits import NOTE_CHARACTERS_MAX
    from edge.output.terminal import say, say_json

    with open_alerts(data, config) as alerts:
        found = alerts.acknowledge(identifier, current_user(), note[:NOTE_CHARACTERS_MAX], _now_us())
    if found is None:
        raise FleetError(f"no alert {identifier}", f"list them: waypost alert list --data {word(data)}")
    if as_json:
        say_json(msgspec.to_builtins(alert_document(found)))
    else:
        say(_line(found))


@alert.command()
@data_option
@config_option
@click.option("--for", "duration", required=True, metavar="TIME", help="Duration: 30m, 4h, 7d; 30d at most.")
@click.option("--reason", required=True, help="Reason, for others.")
@click.option("--rule", default="", help="Only alerts of this rule.  [default: all]")
@click.option("--selector", default="", help="Only gateways with these labels: site=lyon.")
@click.option("--gateway", default="", help="Only this gateway.")
@click.option("--tenant", default="", help="Only gateways of this tenant.")
@json_option
@audited("mute.create", "reason")
def mute(
    data: Path,
    config: Path | None,
    duration: str,
    reason: str,
    rule: str,
    selector: str,
    gateway: str,
    tenant: str,
    as_json: bool,
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
    from edge.output.terminal import say, say_json

    seconds, now_us = parse_duration(duration), _now_us()
    if seconds > MUTE_S_MAX:
        raise FleetError(f"--for {duration}: a mute lasts {MUTE_S_MAX // 86_400} days at most", code=2)
    if rule and rule not in BY_NAME:
        raise FleetError(f"--rule {rule}: there is no such rule", f"one of {', '.join(BY_NAME)}", code=2)
    try:
        chosen = str(parse_selector(selector)) if selector else ""
    except LabelError as error:
        raise FleetError(f"--selector: {error}", code=2) from None
    made = MuteRecord(
        id=secrets.token_hex(8),
        tenant=tenant,
        rule=rule,
        selector=chosen,
        gateway=gateway,
        until=now_us + int(seconds * 1e6),
        reason=reason[:NOTE_CHARACTERS_MAX],
        made_at=now_us,
        made_by=current_user(),
    )
    with open_alerts(data, config) as alerts:
        if not alerts.mute(made, MUTES_MAX):
            raise FleetError(f"{MUTES_MAX} mutes are in effect", "end some: waypost alert unmute")
    if as_json:
        say_json(msgspec.to_builtins(mute_document(made)))
    else:
        say(_mute_line(made))


@alert.command()
@data_option
@config_option
@click.argument("identifier", metavar="[ID]", required=False)
@json_option
@audited("mute.end", "identifier")
def unmute(data: Path, config: Path | None, identifier: str | None, as_json: bool) -> None:
    """End a mute, or list the mutes in effect.

    \b
      waypost alert unmute --data ./hub
      waypost alert unmute 0c8e12aa55d9f013 --data ./hub
    """
    import msgspec

    from cloud.hub.alerts.documents import mute_document
    from edge.output.terminal import say, say_json

    with open_alerts(data, config) as alerts:
        if identifier is None:
            found: Sequence[MuteRecord] = alerts.mutes(_now_us())
        else:
            ended = alerts.unmute(identifier, _now_us())
            if ended is None:
                raise FleetError(
                    f"no mute {identifier} is in effect", f"list them: waypost alert unmute --data {word(data)}"
                )
            found = [ended]
    if as_json:
        say_json([msgspec.to_builtins(mute_document(each)) for each in found])
        return
    for each in found:
        say(_mute_line(each))
    if not found:
        say("no mutes are in effect")


@alert.command()
@data_option
@config_option
@click.argument("name", metavar="[RECEIVER]", required=False)
@json_option
@audited("receiver.test", "name")
def test(data: Path, config: Path | None, name: str | None, as_json: bool) -> None:
    """Send a test notification to receivers.

    It is sent from this machine; without RECEIVER to all of them. Exit code 1 when one of them does not take it.

    \b
      waypost alert test --data ./hub
    """
    from edge.output.terminal import say, say_json

    with open_alerts(data, config) as alerts:
        receivers = [each for each in alerts.receivers() if name in (None, each.name)]
        if not receivers:
            what = "there are no receivers" if name is None else f"no receiver {name}"
            raise FleetError(what, "add one on page Alerts of the hub's console")
        results = {}
        for receiver in receivers:
            failure = results[receiver.name] = _try(receiver)
            alerts.record_outcome(receiver.name, _now_us(), failure)
    if as_json:
        say_json([{"receiver": each, "failure": failure} for each, failure in results.items()])
    else:
        for each, failure in results.items():
            say(f"{each}  {'delivered' if failure is None else f'failed: {failure}'}")
    if any(results.values()):
        click.get_current_context().exit(1)


def _try(receiver: Any) -> str | None:
    """Send a test notification; return why it failed."""
    import socket

    from cloud.hub.alerts.documents import make_test_notification
    from cloud.hub.alerts.receivers import NotificationFailed, send

    notification = make_test_notification(receiver, f"test-{secrets.token_hex(8)}", socket.gethostname())
    try:
        send(receiver, notification, time.time())
    except NotificationFailed as failed:
        return str(failed)
    return None


def _line(record: AlertRecord) -> str:
    from cloud.hub.alerts.documents import place_of
    from edge.output.text import line
    from edge.output.times import moment_us

    who = f" by {record.acknowledged_by}" if record.acknowledged_by and record.state == "acknowledged" else ""
    state = f"{record.state}{who}"
    return line(
        "  ".join((record.id, record.severity, state, moment_us(record.since) or "-", place_of(record), record.what))
    )


def _mute_line(record: MuteRecord) -> str:
    from edge.output.text import line
    from edge.output.times import moment_us

    what = ", ".join(each for each in (record.rule, record.selector, record.gateway, record.tenant) if each)
    until = moment_us(record.until) or "-"
    return line(f"{record.id}  {what or 'everything'}  until {until}  {record.made_by}: {record.reason}")


def _now_us() -> int:
    return time.time_ns() // 1_000
