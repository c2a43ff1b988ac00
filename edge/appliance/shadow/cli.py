"""`waypost shadow`: mirror another MQTT broker, compare both, and move over."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from bridge.resources.endpoint import ListenEndpoint
from bridge.topic_filter import filter_fault
from edge.appliance.resource_commands import existing_data_option
from edge.appliance.shadow.limits import PATIENCE_S, PATIENCE_S_MAX
from edge.appliance.shadow.mirror import GatewayMirror
from edge.appliance.shadow.mirror_resources import COMPARISON, MIRROR, MirrorSource
from edge.appliance.shadow.report import ROWS, ShadowReport, read_report, row_of, summary
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option, output_option, print_listing
from edge.output.password import read_password
from edge.output.terminal import say
from edge.output.text import word
from edge.output.times import moment

MQTT_PORT: Final = 1883
MQTTS_PORT: Final = 8883
ROWS_SHOWN: Final = 20
"""Rows of a table without `--all`."""
QUIET_S: Final = 5.0
"""Default time in which the old broker has to be silent before the end of the mirror."""
T = TypeVar("T")

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def shadow() -> None:
    """Mirror another broker, and move over.

    The gateway subscribes at the running broker, and every message of it also goes through the gateway. Clients move
    one by one, subscribers before publishers. Nothing is ever published to the old broker.
    """


@shadow.command()
@existing_data_option
@click.option("--from", "place", required=True, metavar="HOST[:PORT]", help="The broker to mirror, over MQTT.")
@click.option("--address", "filters", multiple=True, metavar="FILTER", help="Only these topics.  [default: #]")
@click.option("--user", help="Our user name at that broker; --password-stdin has its password.")
@click.option("--password-stdin", is_flag=True, help="Read its password from standard input, or a prompt.")
@click.option("--tls", is_flag=True, help="Connect with TLS, by the authorities of the system.")
@click.option("--ca-cert", type=FILE, help="Connect with TLS, by this authority.")
@click.option("--client-cert", type=FILE, help="Our certificate at that broker.")
@click.option("--client-key", type=FILE, help="Its key.")
@click.option("--client-id", default="", help="Our client identifier there.  [default: <gateway>-shadow]")
@click.option("--allow-bridge", "allowed", multiple=True, metavar="NAME", help="Bridge that may stay connected here.")
@json_option("shadow")
def start(
    data: Path,
    place: str,
    filters: tuple[str, ...],
    user: str | None,
    password_stdin: bool,
    tls: bool,
    ca_cert: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    client_id: str,
    allowed: tuple[str, ...],
    as_json: JsonOutput | None,
) -> None:
    """Mirror a running broker.

    It adds a connector `shadow` and an incoming forwarder for each filter, and a user for the comparison. The broker
    keeps a session for the mirror, so messages with QoS 1 and 2 survive restarts of both; `finish` removes it. The
    command is refused where messages could go in circles: with a bridge between both.

    \b
      waypost shadow start --data ./data/hall --from mosquitto.example:1883
    """
    secured = tls or any(each is not None for each in (ca_cert, client_cert))
    found = _place(place, MQTTS_PORT if secured else MQTT_PORT)
    files = {"caCert": ca_cert, "clientCert": client_cert, "clientKey": client_key}
    paths = {name: str(path.absolute()) for name, path in files.items() if path is not None}
    password = read_password() if password_stdin else None
    source = MirrorSource(found.host, found.port, paths if secured else None, user, password, client_id)
    wanted = filters or ("#",)
    for each in wanted:
        if fault := filter_fault(each):
            raise CommandError(fault, hint="--address is a topic filter", code=Exit.USAGE, error="invalid-value")
    mirror = GatewayMirror(data)
    _check_source(source, wanted)
    mirror.prepare(source, wanted)
    try:
        _check_bridges(mirror, allowed)
        sending = mirror.make(source, wanted)
    except BaseException:
        mirror.remove()
        raise
    notes = [
        f"connector {each} sends mirrored messages on: if the old broker does so too, its peer gets them twice; until "
        f"the move: waypost bridge pause {word(each)} --data {word(str(data))}"
        for each in sending
    ]
    if as_json:
        as_json.show([{"connector": MIRROR, "from": str(place), "filters": list(wanted)}], notes=notes)
        return
    say(f"mirrors {place}: {', '.join(wanted)}")
    for note in notes:
        say(f"note: {note}", style="yellow")
    say(f"next: waypost shadow compare --data {word(str(data))}")


@shadow.command()
@existing_data_option
@click.option("--for", "seconds", type=click.FloatRange(min=1), metavar="SECONDS", help="Time.  [default: to Ctrl-C]")
@click.option(
    "--patience", type=click.FloatRange(min=1, max=PATIENCE_S_MAX), default=PATIENCE_S, show_default=True,
    metavar="SECONDS", help="Time in which the counterpart of a message has to arrive.",
)  # fmt: skip
@click.option("--qos", type=click.IntRange(0, 1), default=1, show_default=True, help="QoS of our subscriptions.")
@click.option("--allow-bridge", "allowed", multiple=True, metavar="NAME", help="Bridge that may stay connected here.")
@click.option("--all", "everything", is_flag=True, help="List every address.")
@output_option("shadow-address")
def compare(
    data: Path,
    seconds: float | None,
    patience: float,
    qos: int,
    allowed: tuple[str, ...],
    everything: bool,
    form: str,
) -> None:
    """Compare mirrored messages at both brokers.

    It subscribes at both with sessions that end with it, and compares number, order, content and retained messages by
    address. It says what it could not compare. It pauses the mirror when messages seem to go in circles. The report is
    kept in the data directory. Exit code 1 if something is missing, repeated, out of order, or retained differently.

    \b
      waypost shadow compare --data ./data/hall --for 3600
    """
    from edge.appliance.shadow.comparison_run import ComparedBrokers, ComparisonRun
    from edge.appliance.shadow.report import write_report

    mirror = GatewayMirror(data)
    found = mirror.required()
    brokers = ComparedBrokers(mirror.outside(found).named(COMPARISON), mirror.inside(), found.filters, qos, allowed)

    def write(report: ShadowReport) -> None:
        with contextlib.suppress(OSError):  # the disk may be full for a while; the next report is complete
            write_report(data, report)
        if report.running and form == "table" and sys.stderr.isatty():
            say(f"{moment(report.at)}  {summary(report)[0]}", err=True, style="dim")

    report = asyncio.run(_until_stopped(ComparisonRun(brokers, mirror, patience, write).run(seconds)))
    _print(report, form, everything)
    if report.differs:
        click.get_current_context().exit(int(Exit.FAILED))


@shadow.command("report")
@existing_data_option
@click.option("--all", "everything", is_flag=True, help="List every address.")
@output_option("shadow-address")
def show_report(data: Path, everything: bool, form: str) -> None:
    """Show the last comparison.

    \b
      ADDRESS    topic
      OLD, HERE  messages of the old broker, and of the gateway
      MISSING    messages that only the old broker delivered
      EXTRA      messages that only the gateway delivered: of clients that have moved
      ORDER      messages that came in another order
      TWICE      further copies of a message
      UNSURE     messages that could not be compared
      RETAINED   equal, missing (at the gateway), extra, differs
    """
    report = read_report(data)
    if report is None:
        hint = f"begin with: waypost shadow start --data {word(str(data))} --from HOST:PORT, then `shadow compare`"
        raise CommandError("there is no comparison yet", hint=hint, code=Exit.USAGE, error="shadow-not-found")
    _print(report, form, everything)


@shadow.command()
@existing_data_option
@click.option(
    "--quiet", "quiet_s", type=click.FloatRange(min=0), default=QUIET_S, show_default=True, metavar="SECONDS",
    help="Time in which nothing may be published at the old broker.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="End the mirror though clients still publish at the old broker.")
@json_option("shadow-finish")
def finish(data: Path, quiet_s: float, force: bool, as_json: JsonOutput | None) -> None:
    """End the mirror, and move retained messages.

    The old broker has to be silent, as its publishers have moved. Messages that wait there for the mirror are taken
    over, its session is removed, retained messages that only the old broker has are published here, and the mirror is
    removed. Then it shows what the old broker says about the clients and messages that it still has; sessions of other
    clients stay there. It can be run again when it was interrupted.

    \b
      waypost shadow finish --data ./data/hall
    """
    from edge.appliance.shadow.finishing import (
        FinishedShadow,
        left_at,
        move_retained,
        published_at,
        shown,
        take_session,
    )

    mirror = GatewayMirror(data)
    found = mirror.required()
    session, here = mirror.outside(found), mirror.inside()
    old = session.named(COMPARISON)
    if not force and (busy := _ask(published_at(old, found.filters, quiet_s))):
        count = counted(sum(busy.values()), "message")
        what = f"clients publish at the old broker: {count} in {quiet_s:g} s to {shown(sorted(busy))}"
        hint = "move their publishers first; --force ends the mirror, and what they publish is lost here"
        raise CommandError(what, hint=hint, error="shadow-busy")
    mirror.disconnect()
    last = _ask(take_session(session, here))
    moved, differing = _ask(move_retained(old, here, found.filters))
    result = FinishedShadow(last, moved, differing, _ask(left_at(old)))
    mirror.remove()
    if as_json:
        as_json.show([result])
        return
    say(f"the mirror has ended: {counted(last, 'last message')} taken over, {counted(moved, 'retained message')} moved")
    if differing:
        say(f"note: other retained messages here, which stay: {shown(differing)}", style="yellow")
    left = result.left
    if left.connected is None:
        say("note: the old broker does not tell what it still has", style="yellow")
        return
    absent, waiting = left.disconnected or 0, left.waiting or 0
    say(f"the old broker has {left.connected:,} connected clients, {absent:,} sessions of absent clients")
    say(f"and about {waiting:,} messages for them")


# --- inside -----------------------------------------------------------------------------------------------------------


async def _until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Run until its end; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


def _ask(work: Coroutine[Any, Any, T]) -> T:
    """Run a conversation with a broker. Raises CommandError."""
    from edge.appliance.shadow.broker_session import FAILURES

    try:
        return asyncio.run(work)
    except FAILURES as error:
        what = str(error) or "no answer in time"
        raise CommandError(
            f"a broker cannot be asked: {what}", hint="run this again when it answers; nothing is lost",
            code=Exit.UNREACHABLE, error="unreachable",
        ) from None  # fmt: skip


def _place(text: str, port: int) -> ListenEndpoint:
    try:
        return ListenEndpoint.parse(text if text.rpartition(":")[2].isdigit() else f"{text}:{port}")
    except ValueError as why:
        raise CommandError(f"--from: {why}", hint="HOST or HOST:PORT", code=Exit.USAGE, error="invalid-value") from None


def _check_source(source: MirrorSource, filters: Sequence[str]) -> None:
    """Raise CommandError if the broker does not answer, or refuses our user or a subscription."""
    from edge.appliance.shadow.finishing import refused_at
    from edge.appliance.shadow.mirror import access_of

    refused = _ask(refused_at(access_of(source), filters))
    if refused:
        what = f"the broker refuses a subscription to {refused[0]}"
        raise CommandError(what, hint="give our user the right to read it there", error="unreachable")


def _check_bridges(mirror: GatewayMirror, allowed: Sequence[str]) -> None:
    """Raise CommandError if a bridge of another broker is connected to the gateway."""
    from edge.appliance.shadow.finishing import connected_bridges

    if not mirror.is_running():
        return
    found = [each for each in _ask(connected_bridges(mirror.inside())) if each not in allowed]
    if found:
        what = f"a bridge of another broker is connected to this gateway: {', '.join(found)}"
        hint = "with a mirror of the same broker messages come twice, or go in circles: remove it there. A bridge of a "
        hint += "third broker may stay: --allow-bridge NAME"
        raise CommandError(what, hint=hint, code=Exit.USAGE, error="shadow-loop")


def _print(report: ShadowReport, form: str, everything: bool) -> None:
    rows = [row_of(each) for each in report.addresses]
    if form in ("json", "yaml"):
        more = msgspec.to_builtins(report)
        del more["addresses"]
        print_listing(ROWS, rows, form, **more)
        return
    print_listing(ROWS, rows if everything or form != "table" else rows[:ROWS_SHOWN], form)
    if form not in ("table", "wide"):
        return
    if len(rows) > ROWS_SHOWN and not everything and form == "table":
        say(f"… and {len(rows) - ROWS_SHOWN:,} others: --all")
    for line in summary(report):
        say(line)
    for each in report.problems:
        say(f"{each.severity}: {each.name}: {each.what}", style="red" if each.severity == "error" else "yellow")
        say(f"  {each.next}", style="dim")
