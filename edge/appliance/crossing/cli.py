"""`waypost bridge`: monitor and control the bridge to the hub."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from edge.appliance.crossing.documents import PROBE_S, BridgeStatus, ProbeResult
from edge.appliance.resource_commands import existing_data_option, explained, files_option, print_changes
from edge.appliance.running import data_option, gateway_client, http_option
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say
from edge.remote.client import ANSWER_S, as_document


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bridge() -> None:
    """Monitor and control the bridge to a hub."""


@bridge.command()
@data_option
@http_option
@json_option("bridge")
def status(data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Show backlog, rate and room. Each connector and forwarder has its own; room is hours until the store is full.

    \b
      state      connected, connecting (with the last error) or paused
      waiting    messages the peer has not accepted, their approximate bytes, the age of the oldest
      rate       messages accepted a second, over the last minute
      drained    time until the backlog is empty, at the rate of the last minute
      room       hours until messages are refused or dropped if nothing is sent, at the present rate of storing
      manifest   the hour that is being counted, and statements that the hub has not accepted

    \b
      waypost bridge status --data ./data/gw1
    """
    from edge.appliance.crossing.printing import show

    document = _bridge(data, http)
    if as_json:
        as_json.show([document])
    else:
        show(document, time.time())


@bridge.command()
@click.argument("connectors", nargs=-1, metavar="[CONNECTOR]...")
@data_option
@http_option
@json_option("bridge")
def pause(connectors: tuple[str, ...], data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Pause connectors. The named ones, or all, wait until `resume` or the next start; messages are stored meanwhile.

    \b
      waypost bridge pause hub --data ./data/gw1
    """
    _control("pause", connectors, data, http, as_json)


@bridge.command()
@click.argument("connectors", nargs=-1, metavar="[CONNECTOR]...")
@data_option
@http_option
@json_option("bridge")
def resume(connectors: tuple[str, ...], data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Resume connectors. The named ones, or all, continue at once.

    \b
      waypost bridge resume --data ./data/gw1
    """
    _control("resume", connectors, data, http, as_json)


@bridge.command()
@data_option
@http_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=600.0,
    metavar="SECONDS",
    show_default=True,
    help="Longest time to wait.",
)
@json_option("drained")
def drain(data: Path | None, http: str | None, timeout_s: float, as_json: JsonOutput | None) -> None:
    """Wait until the backlog is empty. Then all messages are sent, and the hub has the statements about them.

    Use it before a gateway is switched off or replaced, after its devices were stopped. Exit code 1 when messages still
    wait after --timeout; the error says for which connector.

    \b
      waypost bridge drain --data ./data/gw1 --timeout 3600 && systemctl poweroff
    """
    from edge.appliance.crossing.drain import wait_drained

    left = wait_drained(partial(_bridge, data, http), partial(_post, data, http, "state"), timeout_s)
    if as_json:
        as_json.show([left])
    if not left.drained:
        raise CommandError(left.why, hint="see the last error of `waypost bridge status`", error="not-drained")
    if not as_json:
        say("nothing waits")


@bridge.command()
@click.argument("connectors", nargs=-1, metavar="[CONNECTOR]...")
@data_option
@http_option
@json_option("connector-test")
def test(connectors: tuple[str, ...], data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Test connectors end to end. It probes the named ones, or all, and shows the round trip.

    A hub lands the probe like any document, so its answer proves that it receives, lands and acknowledges messages.
    The probe leaves nothing in the lake. For a peer other than a hub the command checks that its links are attached.
    Exit code 1 when a probe fails.

    \b
      waypost bridge test --data ./data/gw1
    """
    found = [
        one for name in connectors or ("",) for one in _post(data, http, "test", name, answer_s=PROBE_S + ANSWER_S)
    ]
    results = msgspec.convert(found, list[ProbeResult])
    forwarders = {one.name: [each.name for each in one.forwarders] for one in _bridge(data, http).connectors}
    if as_json:
        as_json.show([{**msgspec.to_builtins(one), "forwarders": forwarders.get(one.connector, [])} for one in results])
    else:
        for one in results:
            trip = f" in {one.round_trip_s * 1000:,.0f} ms" if one.round_trip_s is not None else ""
            names = ", ".join(forwarders.get(one.connector, ())) or "no forwarder"
            say(f"{'ok' if one.ok else 'FAILED':<7} {one.connector} ({names}): {one.why}{trip}")
    if not all(one.ok for one in results):
        click.get_current_context().exit(int(Exit.FAILED))


@bridge.command()
@existing_data_option
@click.argument("filters", nargs=-1, required=True, metavar="FILTER...")
@json_option("change")
def forward(data: Path, filters: tuple[str, ...], as_json: JsonOutput | None) -> None:
    """Forward topics to the hub. From now on messages that match a FILTER are stored, and sent when it is connected.

    It adds an Address of type topic for each filter, as `waypost apply` does. A running gateway applies it within a
    second. `waypost delete Address NAME` ends it; `waypost get Address` shows the names.

    \b
      waypost bridge forward 'sensors/#' --data ./data/gw1
    """
    from edge.appliance.crossing.forward import add_forwarders

    version, changes = add_forwarders(data, filters)
    print_changes(changes, version, as_json)


@bridge.command()
@existing_data_option
@files_option
@json_option("bridge-change")
def plan(data: Path, names: tuple[str, ...], as_json: JsonOutput | None) -> None:
    """Show what a file would change. It shows the bridge only, and applies nothing.

    It lists the connectors and forwarders that are added, changed and removed, with the messages that wait for each. A
    forwarder that existed before continues at its cursor; a new one starts with messages that arrive from then on.
    Errors and loops are reported as by `apply`.

    \b
      waypost bridge plan --data ./data/gw1 -f gateway.yaml
    """
    from edge.appliance.crossing.plan import planned

    if not names:
        raise click.UsageError("nothing to plan: -f FILE, -f DIR or -f -")
    with explained("planned"):
        found = planned(data, names)
    if as_json:
        as_json.show(found)
        return
    for change in found:
        say(change.sentence)
    if not found:
        say("the bridge does not change")


def _bridge(data: Path | None, http: str | None) -> BridgeStatus:
    """Return the status of the bridge. Raises CommandError."""
    return gateway_client(data, http).read(BridgeStatus, "bridge")


def _post(data: Path | None, http: str | None, what: str, connector: str = "", *, answer_s: float = ANSWER_S) -> Any:
    """Post to a route of the bridge; return the document of its answer. Raises CommandError."""
    client = gateway_client(data, http)
    return client.ask(f"bridge/{what}", method="POST", answer_s=answer_s, connector=connector or None)


def _control(
    what: str, connectors: tuple[str, ...], data: Path | None, http: str | None, as_json: JsonOutput | None
) -> None:
    document: Any = None
    for name in connectors or ("",):
        document = _post(data, http, what, name)
    found = as_document(BridgeStatus, document)
    if as_json:
        as_json.show([found])
        return
    for connector in found.connectors:
        say(f"{connector.name}: {connector.state}")
