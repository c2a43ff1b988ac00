"""`waypost store`: inspect, verify, export, import, purge and repair the store of a gateway."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from edge.appliance.program import as_called
from edge.appliance.store.commands import COMMANDS
from edge.appliance.store.shared import (
    console,
    data_option,
    explained,
    progress,
    selection_of,
    store_path,
)
from edge.broker.store.lock import is_held
from edge.output.amounts import counted, number, size, span
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say, styled

if TYPE_CHECKING:
    from edge.appliance.store.figures import StoreFigures
    from edge.appliance.store.recovery.verification import VerificationReport
    from edge.broker.configuration import BrokerConfiguration

ROWS_MAX = 20
"""Rows of each table in `info`; --json has all."""


@click.group()
def store() -> None:
    """Inspect and repair the store. Its messages can be exported, imported and purged too.

    The gateway may run during `info`, `verify` and `export`; the others need it stopped.
    """


@store.command()
@data_option
@click.option(
    "--config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="YAML file of resources that the gateway runs with, instead of the applied ones.",
)
@json_option("store")
def info(data: Path, config: Path | None, as_json: JsonOutput | None) -> None:
    """Show what is stored. It also shows how fast the store fills, and how long its space lasts."""
    from edge.appliance.store.figures import figures_of
    from edge.appliance.store.room import StoreBounds

    with explained():
        settings = _configuration_of(data, config)
        figures = figures_of(
            store_path(data),
            running=is_held(data),
            endurance_bytes=None if settings is None else settings.endurance_bytes,
            bounds=None if settings is None else StoreBounds.of(settings),
        )
    if as_json:
        as_json.show([figures])
    else:
        _print_info(figures)


def _configuration_of(data: Path, config: Path | None) -> BrokerConfiguration | None:
    """Return the gateway's configuration, from `config` or the applied resources; None, with a message, when the
    applied ones cannot be read."""
    from bridge.resources.errors import ConfigurationRejected
    from bridge.resources.parse import read_whole
    from edge.configuration.effective import build_configuration
    from edge.configuration.file import RepositoryError
    from edge.configuration.kinds import KINDS
    from edge.configuration.repository import Repository

    try:
        return build_configuration(
            Repository(data).load().resources if config is None else read_whole(KINDS, [str(config)])
        )
    except (RepositoryError, ConfigurationRejected) as error:
        if config is not None:
            raise CommandError(
                str(error), hint="use the same --config as the gateway", code=Exit.USAGE, error="configuration-rejected"
            ) from None
        say(f"quotas and floor are not counted, the configuration cannot be read: {error}", err=True)
        return None


def _print_info(figures: StoreFigures) -> None:
    from rich.table import Table

    from edge.appliance.wear import advice, lasting_line, written_line

    room, wear = figures.room, figures.wear
    head = Table(show_header=False, box=None, pad_edge=False)
    files = f"{size(figures.file_bytes)} file, {size(figures.wal_bytes)} log, {size(room.reusable_bytes)} free inside"
    rate = "unknown" if room.bytes_per_hour is None else f"{size(room.bytes_per_hour)} an hour"
    hours = room.hours_of_autonomy
    capacity = f"{size(room.free_bytes)} free on the medium"
    if room.usable_bytes < room.free_bytes + room.reusable_bytes:
        capacity += f", {size(room.usable_bytes)} for messages"
    if hours is not None:
        capacity += f": full in {span(hours * 3600)} if nothing is sent"
    if room.first_full is not None:
        capacity += f", then {room.first_full.address} is full ({room.first_full.when_full})"
    full = "the backlog does not grow" if room.hours_to_full is None else f"in {span(room.hours_to_full * 3600)}"
    for name, value in (
        ("store", figures.path),
        ("epoch", f"{figures.epoch}, schema {figures.schema}"),
        ("gateway", "running" if figures.running else "stopped"),
        (
            "messages",
            f"{number(figures.messages)} in {counted(len(figures.logs), 'log')}, {size(figures.bytes)} of bodies",
        ),
        ("on disk", f"{files}, pages of {figures.page_bytes:,}"),
        ("arriving", rate),
        ("room", capacity),
        ("full", full),
        ("written", written_line(wear) if wear is not None else "not recorded yet: it is after 5 minutes"),
        ("card", lasting_line(wear) if wear is not None else "not known yet"),
    ):
        head.add_row(styled(name, "bold"), styled(value))
    spare = advice(wear) if wear is not None else None
    if spare is not None:
        head.add_row(styled("advice", "bold"), styled(spare))
    out = console()
    out.print(head)
    _print_table(
        "logs", ("log", "messages", "bodies", "oldest", "an hour"),
        [
            (log.name, number(log.messages), size(log.bytes), span(log.oldest_age_s), size(log.bytes_per_hour))
            for log in figures.logs
        ],
    )  # fmt: skip
    _print_table(
        "cursors", ("cursor", "log", "not acknowledged", "bodies"),
        [(e.name, e.log, number(e.backlog_messages), size(e.backlog_bytes)) for e in figures.cursors],
    )  # fmt: skip
    addresses = [(entry.name, number(entry.messages)) for entry in figures.largest_addresses]
    _print_table(f"addresses ({figures.addresses:,}, largest first)", ("address", "messages ever"), addresses)
    _print_table(
        "state", ("kind", "entries", "size"), [(e.kind, number(e.entries), size(e.bytes)) for e in figures.state]
    )
    _print_table(
        "ledger", ("dropped because", "ranges", "messages", "bodies"),
        [(e.reason, number(e.entries), number(e.messages), size(e.bytes)) for e in figures.ledger],
    )  # fmt: skip


def _print_table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table

    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = 2 if columns[:2] == ("cursor", "log") else 1
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < names else "right", overflow="fold", no_wrap=index >= names)
    for row in rows[:ROWS_MAX]:
        table.add_row(*map(styled, row))
    out = console()
    out.print(f"\n[bold]{title}[/bold]")
    out.print(table)
    if len(rows) > ROWS_MAX:
        out.print(f"and {len(rows) - ROWS_MAX} more: use --json")


@store.command()
@data_option
@json_option("store-verification")
@click.option("--quick", is_flag=True, help="Counters, cursors, the page tree and the newest messages only.")
def verify(data: Path, as_json: JsonOutput | None, quick: bool) -> None:
    """Verify the whole store. Exit code 4 when it is damaged.

    It checks the file's pages, each message's checksum, positions and sequences for unexplained gaps, cursors, counters
    and the schema. It changes nothing, and the gateway may run.
    """
    from edge.appliance.store.recovery.verification import Depth
    from edge.appliance.store.recovery.verification import verify as verify_store

    began = time.monotonic()
    with explained(), progress("verifying", quiet=as_json is not None) as on_progress:
        report = verify_store(store_path(data), Depth.QUICK if quick else Depth.FULL, on_progress)
    if as_json:
        as_json.show([{**msgspec.to_builtins(report), "damaged": report.damaged}])
    else:
        _print_report(report, time.monotonic() - began)
    if report.damaged:
        sys.exit(int(Exit.INTEGRITY))


def _print_report(report: VerificationReport, seconds: float) -> None:
    read = f"{counted(report.messages, 'message')} in {counted(report.segments, 'segment')}, {size(report.bytes)}"
    parts = (
        counted(report.logs, "log"),
        counted(report.cursors, "cursor"),
        counted(report.addresses, "address", "addresses"),
    )
    scope = f"{', '.join(parts)}, in {seconds:.1f} s"
    say(f"{report.path}: verified {read}")
    say(f"  {scope}")
    for finding in report.findings:
        say("damage: " if finding.damage else "note: ", style="red" if finding.damage else "yellow", nl=False)
        say(as_called(f"{finding.where}: {finding.what}"))
    if report.left_out:
        say(f"and {report.left_out:,} more")
    if report.damaged:
        say("damaged", style="red bold")
        say(as_called("  next: stop the gateway; `waypost store repair` then shows what it would do"))
    else:
        say("ok", style="green bold")


@store.command()
@data_option
@click.option("--forwarder", metavar="CONNECTOR/NAME", help="Forwarder of the account; needed with several forwarders.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: stdout]")
def account(data: Path, forwarder: str | None, out: Path | None) -> None:
    """Write the account of a forwarder. It is JSON: what was accepted, dropped and is still kept. The gateway may run.

    It counts from the first message of each address: create the forwarder before its devices send.

    \b
    Compare a lake with it when this gateway forwards to another one:
      waypost store account --data DIR --out lower.json
      waypost prove --lake PLACE --account lower.json
    """
    from edge.appliance.store.account import account_of

    with explained():
        text = msgspec.json.format(msgspec.json.encode(account_of(store_path(data), forwarder))) + b"\n"
        if out is None:
            sys.stdout.buffer.write(text)
        else:
            out.write_bytes(text)


@store.command()
@data_option
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write; - is stdout.  [default: stdout]"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "csv", "parquet"]),
    help="Format.  [default: by the suffix of --out]",
)
@click.option("--force", is_flag=True, help="Replace an existing --out FILE.")
@click.option("--log", "logs", multiple=True, metavar="NAME", help="Only this log (repeatable; see `info`).")
@click.option("--address", metavar="FILTER", help="Only addresses that match this filter, for example plant/+/temp.")
@click.option("--device", metavar="NAME", help="Only messages of this device.")
@click.option("--since", metavar="TIME", help="Only messages received since: an age (2h, 7d) or 2026-11-21T08:00.")
@click.option("--until", metavar="TIME", help="Only messages received before.")
@click.option("--cursor", metavar="NAME", help="Only messages that this consumer group has not acknowledged.")
@json_option("store-export")
def export(
    data: Path,
    out: Path | None,
    form: str | None,
    force: bool,
    logs: tuple[str, ...],
    address: str | None,
    device: str | None,
    since: str | None,
    until: str | None,
    cursor: str | None,
    as_json: JsonOutput | None,
) -> None:
    """Write messages to NDJSON, CSV or Parquet. The gateway may run.

    \b
    Each message has its name (epoch, address, sequence). For example, the messages that a hub has not accepted:
      waypost store export --data DIR --cursor forwarder/hub/default.plant/to-hub --out left.ndjson
    """
    from edge.appliance.store.export import export as export_store
    from edge.appliance.store.formats import format_of

    chosen = selection_of(logs=logs, address=address, device=device, since=since, until=until, cursor=cursor)
    if out == Path("-"):  # the usual name of stdout
        out = None
    try:
        form = format_of(out, form)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if out is None and (form == "parquet" or as_json):
        raise click.UsageError("Parquet and --json need --out FILE")
    if out is not None and out.is_file() and not force:
        raise CommandError(
            f"{out} exists already",
            hint="give another --out, or --force to replace it",
            code=Exit.USAGE,
            error="file-exists",
        )
    with explained(), progress("exporting", quiet=as_json is not None or out is None) as on_progress:
        done = export_store(store_path(data), chosen, form, out, lambda written: on_progress(written, 0))
    if as_json:
        as_json.show([{**done._asdict(), "file": str(out), "format": form}])
    elif out is not None:
        say(f"{out}: {counted(done.messages, 'message')}, {size(done.bytes)} of bodies")
    if done.damaged_segments:
        damaged = counted(done.damaged_segments, "damaged segment")
        raise CommandError(
            f"left out: {counted(done.damaged_messages, 'message')} in {damaged}",
            hint="waypost store verify shows where",
            code=Exit.INTEGRITY,
            error="store-damaged",
        )


for changing in COMMANDS:
    store.add_command(changing)
