"""`waypost lake schema` and `replay`: register how messages are read, and read rejected ones again."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from cloud.place.folder import Folder
from cloud.place.option import PlaceOption
from cloud.place.place import LakePlace
from spark import amounts
from spark.interruption import CONTINUES, interruptible

FAILED, USAGE, INTEGRITY = 1, 2, 4
Command = TypeVar("Command", bound=Callable[..., Any])
UMASK_SETTING = "spark.hadoop.fs.permissions.umask-mode"
"""Hadoop sets the modes of the files that it creates, independent of the process's umask."""


def _lake(checked: Callable[[LakePlace], LakePlace]) -> Callable[[Command], Command]:
    return click.option(
        "--lake",
        required=True,
        metavar="PLACE",
        type=PlaceOption(),
        callback=lambda _context, _parameter, lake: checked(lake),
        help="The lake: the folder that holds the tables (a hub's DATA/lake), or s3://BUCKET/FOLDER.",
    )


_FORMATS = "json, number, text, cbor, senml+json, senml+cbor, sparkplug, protobuf"


def require_lake(lake: LakePlace) -> LakePlace:
    """Return the lake. Raises `click.UsageError` if it does not exist."""
    try:
        if lake.at("telemetry").is_table():
            return lake
        nested = lake.at("lake")
        if nested.at("telemetry").is_table():
            raise click.UsageError(f"{lake.uri} is a hub's data directory; its lake is {nested.uri}")
    except OSError as error:
        raise click.UsageError(str(error)) from None
    raise click.UsageError(f"{lake.uri} is not a lake: it has no table `telemetry`, which a hub makes when it starts")


def match_permissions(lake: LakePlace) -> int:
    """Give new files the permissions of the lake, and return the umask. The lake of a hub is closed to other users."""
    closed = ~stat.S_IMODE(lake.path.stat().st_mode) & 0o077 if isinstance(lake, Folder) else 0o077
    os.umask(closed)
    return closed


def require_writable(lake: LakePlace) -> None:
    """Raise `click.UsageError` if this user may not write, or if the store lacks conditional writes."""
    if isinstance(lake, Folder) and not os.access(lake.path, os.W_OK | os.X_OK):
        owner = lake.path.stat().st_uid
        raise click.UsageError(f"{lake.uri} must not be written by this user: run it as its owner (user id {owner})")
    try:
        lake.check()
    except OSError as error:
        raise click.UsageError(str(error)) from None


def warn_stale_archive() -> None:
    """Print a note if Spark starts slower than it could. Raises `java.JavaMissing`."""
    from spark import class_archive, cluster, java

    note = None if cluster.is_submitted() else class_archive.stale_notice(java.find())
    if note is not None:
        click.echo(f"note: {note}", err=True)


def _require_folder(lake: LakePlace) -> LakePlace:
    """Return a place that may become a lake. Raises `click.UsageError`."""
    if isinstance(lake, Folder) and not lake.path.is_dir():
        raise click.UsageError(f"--lake {lake.uri}: this folder does not exist")
    return lake


lake_option, _LAKE = _lake(require_lake), _lake(_require_folder)


@contextmanager
def _exit_if_unreadable() -> Iterator[None]:
    """Print the error and the next step, and exit, if a table cannot be read."""
    from spark.table_errors import TableUnreadable

    try:
        yield
    except TableUnreadable as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(INTEGRITY)


@click.group()
def schema() -> None:
    """Register how to read payloads. Use it for addresses that do not say it themselves.

    A schema counts for messages that land after it, and for rejects, which the next pass (or `replay`) reads again.
    """


@schema.command()
@_LAKE
@click.argument("pattern")
@click.option("--format", "format_", required=True, metavar="NAME", help=f"One of {_FORMATS}.")
@click.option("--tenant", metavar="NAME", help="Only this tenant's addresses [default: everybody's].")
@click.option(
    "--time", metavar="FIELD", help="The field that says when it was measured [default: ts, time, timestamp]."
)
@click.option("--device", metavar="PATH", help="The field that names the device, as `deviceInfo.devEui`.")
@click.option("--unit", "units", multiple=True, metavar="METRIC=UNIT", help="A metric's unit; `*` for all others.")
@click.option(
    "--descriptor",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Protobuf: what `protoc --include_imports --descriptor_set_out=FILE` writes.",
)
@click.option("--message", metavar="NAME", help="Protobuf: the full name of the message, as `plant.Sample`.")
def add(
    lake: LakePlace,
    pattern: str,
    format_: str,
    tenant: str | None,
    time: str | None,
    device: str | None,
    units: tuple[str, ...],
    descriptor: Path | None,
    message: str | None,
) -> None:
    """Add or replace a schema. Addresses that match PATTERN are read by it (`+` one level, `#` all further ones).

    The most specific pattern wins. The same pattern again takes the former one's place.

    \b
      waypost lake schema add 'stat/+/POWER' --format text --lake DIR
      waypost lake schema add 'env/#' --format json --unit t=Cel --unit h=%RH --lake DIR
    """
    from datetime import UTC, datetime

    from spark import registry
    from spark.decoding.schema import FORMATS, BadSchema, PayloadSchema

    found = next((name for name in FORMATS if name == format_), None)
    if found is None:
        raise click.UsageError(f"--format {format_}: one of {_FORMATS}")
    require_writable(lake)
    match_permissions(lake)
    described = PayloadSchema(
        pattern,
        found,
        tenant=tenant,
        time=time,
        device=device,
        units=dict(_parse_unit(unit) for unit in units),
        descriptor=base64.b64encode(descriptor.read_bytes()).decode() if descriptor is not None else None,
        message=message,
    )
    try:
        with _exit_if_unreadable():
            registry.register(_table(lake), described, datetime.now(UTC))
    except BadSchema as error:
        raise click.UsageError(str(error)) from None


def _parse_unit(text: str) -> tuple[str, str]:
    metric, equals, unit = text.partition("=")
    if not equals or not metric or not unit:
        raise click.UsageError(f"--unit takes METRIC=UNIT, not {text!r}")
    return metric, unit


def _table(lake: LakePlace) -> LakePlace:
    return lake.at("payload_schemas")


@schema.command("list")
@_LAKE
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all fields.")
def list_(lake: LakePlace, as_json: bool) -> None:
    """List the schemas of a lake."""
    import msgspec

    from spark import registry

    with _exit_if_unreadable():
        found = registry.load_schemas(_table(lake))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    if not found:
        click.echo("no schema is registered", err=True)
    for one in found:
        units = ", ".join(f"{metric} in {unit}" for metric, unit in one.units.items())
        parts = (one.format, one.message, f"tenant {one.tenant}" if one.tenant else None, units)
        click.echo(f"{one.pattern}  {'  '.join(filter(None, parts))}")


@schema.command()
@_LAKE
@click.argument("pattern")
@click.option("--tenant", metavar="NAME", help="The tenant it was registered for.")
def remove(lake: LakePlace, pattern: str, tenant: str | None) -> None:
    """Remove a schema. Readings that were read by it stay as they are."""
    from datetime import UTC, datetime

    from spark import registry

    require_writable(lake)
    match_permissions(lake)
    try:
        with _exit_if_unreadable():
            registry.remove(_table(lake), pattern, tenant, datetime.now(UTC))
    except registry.UnknownSchema:
        click.echo(f"error: no schema is registered for {pattern}; `schema list` shows them", err=True)
        sys.exit(FAILED)


@click.command()
@_LAKE
@click.option("--reason", metavar="TEXT", help="Only rejects with this reason, as table reject has it.")
@click.option("--address", metavar="PATTERN", help="Only addresses that match this pattern (`+`, `#`).")
@click.option("--master", metavar="URL", help="Spark master [default: WAYPOST_SPARK_MASTER, else this machine].")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@interruptible(CONTINUES)
def replay(lake: LakePlace, reason: str | None, address: str | None, master: str | None, as_json: bool) -> None:
    """Read rejected messages again. Those that are readable now move from reject to readings, each once.

    A pass does this by itself after a schema was registered or a Sparkplug birth has landed. It may be killed at any
    moment: the next pass finishes it.
    """
    from spark.decoding.schema import BadSchema, check_pattern

    try:
        check_pattern(address if address is not None else "#")
    except BadSchema as error:
        raise click.UsageError(f"--address: {error}") from None
    require_writable(lake)
    from spark import java, session
    from spark.connector.repository import ConnectorMissing
    from spark.jobs import pass_lock, runner
    from spark.jobs.job import AnalyticsJob
    from spark.jobs.replay import ManualReplay, RejectFilter

    job = AnalyticsJob("replay", "rejected messages read again", (ManualReplay(RejectFilter(reason, address)),))

    settings = {UMASK_SETTING: f"{match_permissions(lake):03o}"}
    options = session.SessionOptions(
        master=master, load=runner.estimate_load(lake), settings=settings, log=runner.log_file(lake)
    )
    try:
        watch = runner.StartCallbacks(warn_stale_archive)
        with pass_lock.hold(lake), runner.open_lake(lake, options, watch) as opened:
            (step,) = runner.run_pass(opened, [job], lambda _: None)
    except (ConnectorMissing, java.JavaMissing) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(USAGE)
    except (pass_lock.PassRunning, session.SparkNotStarted) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    if step.error is not None:
        click.echo(f"error: {step.error}", err=True)
        sys.exit(INTEGRITY if step.integrity else FAILED)
    counts: dict[str, Any] = {"messages": step.rows_in, "readings": step.rows_out}
    messages, rows = amounts.counted(step.rows_in, "rejected message"), amounts.counted(step.rows_out, "row")
    summary = f"{messages} read again into {rows}"
    click.echo(json.dumps(counts) if as_json else summary)
