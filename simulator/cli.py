"""`waypost device simulate`: simulate thousands of devices, from one file."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option, print_listing
from edge.output.terminal import say

if TYPE_CHECKING:
    from simulator.credentials_file import DeviceCredentials
    from simulator.device import FleetDevicePlan
    from simulator.kinds import SimulationSpec
    from simulator.registration import RegistrationPlace

EXAMPLES: Final = ("hall", "city", "fleet-update", "capacity")
"""Names of the example files."""
DRAIN_S: Final = 30.0


class RunSettings(NamedTuple):
    """Options of a run."""

    rate: float
    seed: int
    duration_s: float | None
    drain_s: float
    as_json: JsonOutput | None


@click.command()
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="Gateway instead of those in FILE, e.g. mqtt://127.0.0.1:1883; repeatable.",
)
@click.option(
    "--duration", metavar="TIME", help="Length of the run, e.g. 90s or 10m.  [default: as in FILE, else until Ctrl-C]"
)
@click.option(
    "--rate",
    type=click.FloatRange(0.001, 1000),
    default=1.0,
    show_default=True,
    help="Factor of the readings per second.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="The same seed gives the same devices and values.",
)
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(0),
    default=DRAIN_S,
    show_default=True,
    help="Seconds at the end for the last acknowledgements.",
)
@click.option(
    "--credentials",
    "credentials_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="CSV with the columns device, user and password.",
)
@click.option(
    "--register-gateway",
    "gateway_data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Add devices that are not in --credentials as users of the gateway with this data directory, and to the CSV.",
)
@click.option(
    "--register-hub",
    "hub",
    metavar="URL|CONTEXT|DIR",
    help="Add devices that are not in --credentials to the registry of this hub, and to the CSV.",
)
@click.option(
    "--tenant", default="", show_default="default; over HTTP the user's own", help="Tenant of the devices at the hub."
)
@click.option("--remove", is_flag=True, help="Remove the devices from the gateway or hub when the run ends.")
@click.option("--check", is_flag=True, help="Check FILE, and connect no device.")
@click.option("--example", type=click.Choice(EXAMPLES), help="Print an example of FILE.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of FILE, for editors.")
@json_option("simulation")
def simulate(
    *,
    file: str | None,
    urls: tuple[str, ...],
    duration: str | None,
    rate: float,
    seed: int,
    drain_s: float,
    credentials_path: Path | None,
    gateway_data: Path | None,
    hub: str | None,
    tenant: str,
    remove: bool,
    check: bool,
    example: str | None,
    schema: bool,
    as_json: JsonOutput | None,
) -> None:
    """Simulate thousands of devices.

    FILE describes groups of devices: times of their readings, sensors that fail, links that break, firmware that
    updates itself, commands that are answered. Each reading is sent until it is acknowledged.

    \b
    waypost device simulate --example hall > hall.yaml
    waypost device simulate hall.yaml --url mqtt://127.0.0.1:1883 --duration 5m
    waypost device simulate hall.yaml --register-gateway ./gw --credentials hall.csv

    Ctrl-C ends the readings and waits for the last acknowledgements; a second one ends at once. Exit code 1 when
    readings were not acknowledged or dropped, 3 when no gateway answered.
    """
    if example is not None:
        click.echo((Path(__file__).parent / "examples" / f"{example}.yaml").read_text(), nl=False)
        return
    if schema:
        _print_schema()
        return
    _check_options(file, gateway_data is not None, hub is not None, remove, credentials_path is not None)
    source = file or ""
    spec, folder, registers = _read(source, urls), Path(source).parent, gateway_data is not None or hub is not None
    settings = RunSettings(rate, seed, _seconds(duration) if duration is not None else spec.duration, drain_s, as_json)
    known = _known(credentials_path, registers)
    if check:
        _print_check(spec, seed, {} if registers else known, folder, as_json)
        return
    _require_gateway(spec)
    for library in ("amqtt", "transitions"):
        logging.getLogger(library).setLevel(logging.ERROR)
    with _registry(gateway_data, hub, tenant) as registry:
        if registry is None or credentials_path is None:
            from simulator.planning import plan_devices

            _run(plan_devices(spec, seed, known, folder), spec, settings)
            return
        from simulator.preparing import Preparation

        preparation = Preparation(spec, seed, folder, registry, credentials_path)
        try:
            _run(preparation.register(known), spec, settings)
        finally:
            if remove:
                preparation.remove()


def _check_options(file: str | None, at_gateway: bool, at_hub: bool, remove: bool, has_csv: bool) -> None:
    """Raise CommandError for options that do not go together."""
    if file is None:
        words, hint = "FILE is missing", "begin with an example: waypost device simulate --example hall > hall.yaml"
        raise CommandError(words, hint, error="missing-parameter", code=Exit.USAGE)
    words = hint = ""
    if at_gateway and at_hub:
        words, hint = "give --register-gateway or --register-hub, not both", "devices of a hub reach its gateways"
    elif remove and not (at_gateway or at_hub):
        words, hint = "--remove needs the place of the devices", "with --register-gateway DIR or --register-hub HUB"
    elif (at_gateway or at_hub) and not has_csv:
        words = "devices that are registered get passwords, and these need a file"
        hint = "name a CSV: --credentials devices.csv; the next run reads it"
    if words:
        raise CommandError(words, hint, error="wrong-usage", code=Exit.USAGE)


def _run(plans: list[FleetDevicePlan], spec: SimulationSpec, settings: RunSettings) -> None:
    """Run the devices and print the summary. Raises CommandError when not all went well."""
    import uvloop

    from simulator import summary
    from simulator.device import SimulationPace
    from simulator.running import SimulationRun, raise_file_limit
    from simulator.view import shown

    too_low = raise_file_limit(len(plans))
    if too_low is not None:
        hint = f"raise it: ulimit -n {len(plans) + 1000}"
        words = f"{len(plans)} devices need more than the {too_low} open files that this shell allows"
        raise CommandError(words, hint, error="device-failed")

    async def main() -> SimulationRun:
        run = SimulationRun(plans, SimulationPace(spec.day, settings.rate), spec.connect)
        with shown(run, settings.duration_s) as look:
            await run.run(settings.duration_s, settings.drain_s, look)
        return run

    run = uvloop.run(main())
    rows = [summary.group_row(run, group) for group in run.groups]
    total = summary.totals(run, settings.seed)
    if settings.as_json:
        settings.as_json.show(rows, summary=total)
    else:
        print_listing(summary.GROUPS, rows, "table")
        say(
            f"\n{total['devices']:,} devices, {total['seconds']:,} s, {total['acknowledged_per_s']:,} readings/s, "
            f"p50 {total['p50_ms'] or '-'} ms, p99 {total['p99_ms'] or '-'} ms, seed {settings.seed}"
        )
        for line in summary.lines(run):
            say(line)
    failed = summary.failure(run)
    if failed is not None:
        raise failed


def _read(file: str, urls: tuple[str, ...]) -> SimulationSpec:
    """Return the simulation in a file, with other gateways if any are given. Raises CommandError."""
    from bridge.resources.errors import ConfigurationRejected
    from simulator.kinds import parse_place, read_simulation
    from simulator.planning import with_urls

    try:
        for url in urls:
            parse_place(url, "mqtt")
        return with_urls(read_simulation(file), urls)
    except ConfigurationRejected as why:
        hint = "correct the file; waypost device simulate --example hall prints one that works"
        raise CommandError(str(why), hint, error="invalid-value", code=Exit.USAGE) from None
    except ValueError as why:
        raise CommandError(f"--url: {why}", error="invalid-value", code=Exit.USAGE) from None


def _known(path: Path | None, registers: bool) -> dict[str, DeviceCredentials]:
    """Return the credentials in the file, which a registration may have to create. Raises CommandError."""
    from simulator.credentials_file import read_credentials

    if path is None or (registers and not path.exists()):
        return {}
    return read_credentials(path)


def _print_check(
    spec: SimulationSpec, seed: int, known: dict[str, DeviceCredentials], folder: Path, as_json: JsonOutput | None
) -> None:
    """Check what the file names, and print a line for each group. Raises CommandError."""
    from simulator.planning import plan_devices

    plan_devices(spec, seed, known, folder)
    rows = [
        {"group": each.name, "devices": each.count, "readings_per_s": round(each.count / each.interval, 2)}
        for each in spec.devices
    ]
    if as_json:
        as_json.show(rows)
        return
    for row in rows:
        say(f"{row['group']}: {row['devices']:,} devices, {row['readings_per_s']:,} readings/s")


def _require_gateway(spec: SimulationSpec) -> None:
    if not spec.gateways:
        hint = "add `gateways` to the file, or name one: --url mqtt://HOST:PORT"
        raise CommandError("no gateway is named", hint, error="wrong-usage", code=Exit.USAGE)


def _seconds(text: str) -> float:
    """Return the seconds of a duration. Raises CommandError."""
    from bridge.resources.values import duration

    try:
        found = duration(text)
    except ValueError as why:
        raise CommandError(f"--duration: {why}", error="invalid-value", code=Exit.USAGE) from None
    return found


@contextlib.contextmanager
def _registry(data: Path | None, hub: str | None, tenant: str) -> Iterator[RegistrationPlace | None]:
    """Open the place where devices are registered, if any is given. Raises CommandError."""
    if data is not None:
        from simulator.registration import GatewayUsers

        yield GatewayUsers(data)
    elif hub is not None:
        from simulator.registration import open_hub_registry

        with open_hub_registry(hub, tenant) as registry:
            yield registry
    else:
        yield None


def _print_schema() -> None:
    from bridge.resources.completion import json_schema
    from edge.output.terminal import say_json
    from simulator.kinds import KINDS

    say_json(json_schema(KINDS))
