"""`waypost doctor`: check this machine and a gateway's data directory, with a next step for each finding."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say, styled
from edge.output.text import lines

if TYPE_CHECKING:
    from edge.appliance.doctor.check import Check, CheckContext, CheckResult


@click.command()
@click.option(
    "--data",
    type=click.Path(readable=False, path_type=Path),  # an unreadable directory is a finding, not wrong usage
    metavar="DIR",
    help="Data directory of the gateway. Without one only the machine is checked.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="YAML file of resources that the gateway runs with, instead of the applied ones.",
)
@json_option("finding")
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a support archive (tar.gz) with findings, configuration and logs, and without secrets.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(dir_okay=False, exists=True, readable=False, path_type=Path),
    metavar="FILE",
    help="Log file for the archive (repeatable), in addition to *.log in the data directory and the system's journal.",
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1, 120), default=5.0, show_default=True,
    help="Time limit in seconds for each step of a connection to a peer.",
)  # fmt: skip
def doctor(
    data: Path | None,
    config: Path | None,
    as_json: JsonOutput | None,
    bundle: Path | None,
    logs: Sequence[Path],
    timeout_s: float,
) -> None:
    """Diagnose a gateway and suggest fixes. It checks this machine too. Exit code 1 when something fails.

    It changes nothing, except for a small temporary file that measures the medium. The gateway may run.
    """
    from edge.appliance.doctor.check import Level, context_of, examine
    from edge.broker.store.lock import is_held

    running = data is not None and is_held(data)
    context = context_of(data, running=running, environment=dict(os.environ), timeout_s=timeout_s, config=config)
    results = list(examine(checks(), context))
    if as_json:
        as_json.show(results, counts=_counts(results))
    else:
        _print(results)
    if bundle is not None:
        _bundle(bundle, context, results, logs, quiet=as_json is not None)
    if any(result.level is Level.FAIL for result in results):
        sys.exit(int(Exit.FAILED))


def checks() -> Sequence[tuple[str, Check]]:
    """Return all checks, in the order of their output."""
    from edge.appliance.doctor import certificates, health, home, machine, medium, network

    return (
        ("file system", medium.file_system),
        ("card", medium.card),
        ("free space", medium.free_space),
        ("sync latency", medium.sync_latency),
        ("clock", machine.clock),
        ("entropy", machine.entropy),
        ("memory", machine.memory),
        ("temperature", machine.heat),
        ("open files", machine.open_files),
        ("versions", machine.versions),
        ("data directory", home.directory),
        ("secrets", home.secrets),
        ("configuration", home.configuration),
        ("store", home.store),
        ("health", health.health),
        ("certificates", certificates.certificates),
        ("ports", network.ports),
        ("uplinks", network.uplinks),
    )


def _counts(results: Sequence[CheckResult]) -> dict[str, int]:
    return {word: sum(result.level.value == word for result in results) for word in ("ok", "warn", "fail")}


def _print(results: Sequence[CheckResult]) -> None:
    from rich.table import Table

    from edge.appliance.store.shared import console

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=24)
    table.add_column(overflow="fold", ratio=1)
    for result in results:
        seen = styled(result.seen)
        if result.next_step:
            seen.append(lines(f"\n-> {result.next_step}"), style="bold")
        table.add_row(styled(result.level.value, colours[result.level.value]), styled(result.name), seen)
    out = console()
    out.print(table)
    counts = _counts(results)
    out.print(f"\n{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed")


def _bundle(
    target: Path, context: CheckContext, results: Sequence[CheckResult], logs: Sequence[Path], *, quiet: bool
) -> None:
    from edge.appliance.doctor.bundle import write_bundle

    try:
        names = write_bundle(target, context, results, logs)
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror or error}", error="file-not-accessible") from None
    if not quiet:
        say(f"{target}: {counted(len(names), 'file')}, without messages and secrets; check it before you send it")
