"""`waypost simulate`: run a device that measures this machine."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from urllib.parse import urlsplit

import click

from edge.output.errors import CommandError, Exit
from edge.output.password import read_password
from edge.output.terminal import say
from edge.output.text import word
from simulator.measuring.device import SimulatedDevice, SimulatorSettings
from simulator.measuring.journal import SimulatorJournal
from simulator.measuring.probes import KINDS, ProbeError, make_probe
from simulator.outbox import DeviceOutbox

log = logging.getLogger(__name__)


@click.command()
@click.option("--protocol", type=click.Choice(["mqtt", "amqp"]), required=True, help="Protocol of the device.")
@click.option("--kind", type=click.Choice(KINDS), required=True, help="Kind of measurement of this machine.")
@click.option(
    "--url", required=True, metavar="URL", help="Gateway, e.g. mqtt://127.0.0.1:1883 or amqp://127.0.0.1:5672."
)
@click.option("--name", required=True, help="Identity: MQTT client identifier or AMQP container id.")
@click.option("--address", help="Address of the readings. Default: plant/NAME/KIND.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.001),
    default=1.0,
    show_default=True,
    help="Seconds between readings.",
)
@click.option("--count", type=click.IntRange(1), help="Readings to take. Default: until SIGTERM or Ctrl-C.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Only this metric of the kind (repeatable).")
@click.option("--window", type=click.IntRange(1, 1000), default=16, show_default=True, help="Readings in flight.")
@click.option("--buffer", "capacity", type=click.IntRange(1), default=10_000, show_default=True, help="Readings kept.")
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds at the end to deliver the remaining readings.",
)
@click.option("--user", metavar="NAME", help="User to log in as. Default: without credentials.")
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the user's password from standard input: one line, or a prompt on a terminal.",
)
@click.option(
    "--journal",
    "journal_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Record acknowledgements in this file, as JSON Lines.",
)
def simulate(
    *,
    protocol: str,
    kind: str,
    url: str,
    name: str,
    address: str | None,
    interval_s: float,
    count: int | None,
    metrics: tuple[str, ...],
    window: int,
    capacity: int,
    drain_s: float,
    user: str | None,
    password_stdin: bool,
    journal_path: Path | None,
) -> None:
    """Run a device that measures this machine.

    It delivers each reading at least once.

    While the gateway is unreachable readings wait in the device; each is sent until it is acknowledged. SIGTERM ends
    the measuring; the remaining readings are delivered. Exit code 1 when readings remain or were dropped, 3 when no
    gateway answered.
    """
    scheme = urlsplit(url).scheme
    if scheme.removesuffix("s") != protocol:
        raise click.UsageError(f"--url {url} does not match --protocol {protocol}")
    if password_stdin != (user is not None):
        raise click.UsageError("--user and --password-stdin go together")
    password = read_password() if password_stdin else None
    if not log.isEnabledFor(logging.DEBUG):  # it logs each packet, and failed connections a second time
        for library in ("amqtt", "transitions"):
            logging.getLogger(library).setLevel(logging.ERROR)
    target = address or f"plant/{name}/{kind}"
    settings = SimulatorSettings(name, target, kind, url, interval_s, count, window, drain_s, user, password)
    try:
        probe = make_probe(kind, metrics)
        journal = SimulatorJournal(journal_path, device=name, address=target, protocol=protocol, kind=kind)
    except (ProbeError, OSError) as why:
        raise CommandError(str(why), error="device-failed") from why
    outbox = DeviceOutbox(capacity)
    run = _run_mqtt if protocol == "mqtt" else _run_amqp
    try:
        simulated = SimulatedDevice(settings, probe, outbox, journal)
        run(simulated)
    finally:
        journal.close(outbox)
    say(
        f"{name}: published {outbox.published}, acknowledged {outbox.acknowledged}, sent again {outbox.resent}, "
        f"left {len(outbox)}, dropped {outbox.dropped}"
    )
    if outbox.dropped or len(outbox):
        raise _undelivered_error(simulated, url)


def _undelivered_error(simulated: SimulatedDevice, url: str) -> CommandError:
    """Return the error for readings that were not acknowledged."""
    what = f"not all readings were acknowledged: {simulated.trouble or 'the gateway was too slow'}"
    if simulated.unreachable:
        step = f"check that a gateway serves {url}; its `ready` line has its addresses"
        return CommandError(what, hint=step, code=Exit.UNREACHABLE, error="unreachable")
    name = simulated.settings.user or "NAME"
    step = f"password and rights are those of `waypost user add {word(name)}`; `waypost user list` shows the rights"
    return CommandError(what, hint=step, error="device-failed")


def _run_mqtt(simulated: SimulatedDevice) -> None:
    from simulator.measuring.mqtt import MqttDevice  # amqtt takes half a second to import

    async def main() -> None:
        running = MqttDevice(simulated)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.stop)
        await running.run()

    asyncio.run(main())


def _run_amqp(simulated: SimulatedDevice) -> None:
    from simulator.measuring.amqp import AmqpDevice

    running = AmqpDevice(simulated)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    running.run()
