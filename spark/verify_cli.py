"""`waypost analytics verify`: check the data files of a lake, and take damaged ones out of landed tables.

Imports are lazy so that `--help` is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cloud.place.place import LakePlace
from spark import amounts, commands, interruption
from spark.commands import FAILED, INTEGRITY
from spark.query.text import spell_line

if TYPE_CHECKING:
    from spark.verification import DamagedFile, VerifiedTable


@click.command()
@commands.lake_option
@click.argument("names", nargs=-1, metavar="[TABLE]...")
@click.option("--drop", is_flag=True, help="Take damaged files out of landed tables, so that passes can go on.")
def verify(lake: LakePlace, names: tuple[str, ...], drop: bool) -> None:
    """Read and check every data file of every table, or of these, and name the damaged ones.

    Changes nothing without --drop. Exit code 4: something is damaged.

    A pass that meets a damaged file fails and names it. Then do one of these:

    \b
      1. If you have a copy of the file, restore it. Nothing is lost.
      2. Else run `verify --drop`. The lake loses the file's messages.

    --drop records each file in table set_aside, with its gateways and sequences, and moves the file, if it
    exists, to the folder _damaged of the lake. It handles landed tables (telemetry and the others that the hub
    writes); `waypost analytics rebuild` rebuilds a damaged derived table. No pass may run at the same time; the hub
    may. After an interruption run it again. Exit code 0: all damaged files have been taken out.
    """
    known = lake.tables()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no table named {unknown[0]!r} in {lake.uri}; tables: {', '.join(known)}")
    (_drop if drop else _check)(lake, names or known, bool(names))


@interruption.interruptible("not all files were checked, and nothing was changed")
def _check(lake: LakePlace, names: Sequence[str], _chosen: bool) -> None:
    from spark import verification

    problems = files = 0
    for table in verification.verify(lake, names):
        problems += len(table.problems)
        files += len(table.damaged)
        _show(table)
        _show_wrong(table)
    if files:
        click.echo(
            "Restore files of landed tables from copies; take files without a copy out by `waypost analytics verify "
            "--drop`. Then run `waypost analytics rebuild`; it alone rebuilds derived tables.",
            err=True,
        )
    if problems:
        sys.exit(INTEGRITY)


@interruption.interruptible("run it again to finish; files taken out are in table set_aside")
def _drop(lake: LakePlace, names: Sequence[str], chosen: bool) -> None:
    from spark import verification
    from spark.jobs import pass_lock

    if chosen:
        _require_landed(names)
    commands.require_writable(lake)
    commands.match_permissions(lake)
    found = []
    try:
        with pass_lock.hold(lake):
            for table in verification.verify(lake, names):
                _show(table)
                found.append(_drop_from(lake, table))
    except pass_lock.PassRunning as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    if any(dropped for dropped, _ in found):
        _explain(lake)
    if not all(sound for _, sound in found):
        sys.exit(INTEGRITY)


def _require_landed(names: Sequence[str]) -> None:
    from spark import schemas

    for name in names:
        if name in schemas.DERIVED:
            raise click.UsageError(f"--drop {name}: it is derived, and `waypost analytics rebuild` rebuilds it")
        if name not in schemas.LANDED:
            raise click.UsageError(f"--drop {name}: only of landed tables: {', '.join(schemas.LANDED)}")


def _drop_from(lake: LakePlace, table: VerifiedTable) -> tuple[int, bool]:
    """Take the damaged files out of a table; return how many were, and whether nothing damaged is left."""
    from spark import conflict, dropping, schemas, table_errors

    is_landed = table.table in schemas.LANDED
    if table.problems and (table.failure is not None or not is_landed):
        _show_wrong(table)
        click.echo(f"note: nothing was taken out of {table.table}{_next_step(table)}", err=True)
        return 0, False
    if not is_landed:
        return 0, True
    try:
        dropped = dropping.drop(lake, table.table, table.damaged)
    except (*table_errors.FAILURES, table_errors.TableUnreadable) as error:
        _show_wrong(table)
        why = (
            "another program wrote it at the same moment"
            if conflict.is_conflict(error)
            else table_errors.summarize(error)
        )
        click.echo(
            f"error: not all damaged files were taken out of {table.table}: {why}. Run it again to continue", err=True
        )
        return 0, False
    for each in dropped:
        click.echo(spell_line(f"dropped {table.uri}/{each.file.path} ({each.reason}): {_describe_loss(each)}"))
    return len(dropped), True


def _next_step(table: VerifiedTable) -> str:
    from spark import schemas

    if table.table in schemas.DERIVED:
        return ": `waypost analytics rebuild` rebuilds it"
    return "" if table.failure is not None else ": restore its files from copies"


def _describe_loss(damaged: DamagedFile) -> str:
    file = damaged.file
    parts = ["an unknown number of rows" if file.rows is None else amounts.counted(file.rows, "row")]
    if file.gateways is not None:
        first, last = file.gateways
        parts.append(f"of gateway {first}" if first == last else f"of gateways {first} to {last}")
    if file.sequences is not None:
        parts.append("sequences {} to {}".format(*file.sequences))
    return ", ".join(parts)


def _explain(lake: LakePlace) -> None:
    from spark import dropping

    click.echo(
        "The lake has lost the rows of these files, except results of earlier passes. Table set_aside has a row for "
        f"each file, and {lake.uri}/{dropping.DAMAGED} has the damaged files. After the next pass the missing "
        "sequences are in table gaps. To undo this, restore the files and the table from copies, then run `waypost "
        "analytics rebuild`.",
        err=True,
    )


def _show(table: VerifiedTable) -> None:
    files = amounts.counted(table.files, "file")
    click.echo(f"{table.table:<20} {files:>13} {table.size / 1e6:>10,.1f} MB  {len(table.problems)} damaged")


def _show_wrong(table: VerifiedTable) -> None:
    for text in table.problems:
        click.echo(f"error: {text}", err=True)
