"""`waypost lake verify`: check the data files of a lake, and remove damaged ones from landed tables.

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
@click.option("--drop", is_flag=True, help="Remove damaged files from landed tables, so that passes can continue.")
def verify(lake: LakePlace, names: tuple[str, ...], drop: bool) -> None:
    """Check data files, and list damaged ones. It checks all tables, or the named ones.

    Without --drop nothing is changed. Exit code 4: a file is damaged.

    A pass that reads a damaged file fails with its name. Then:

    \b
      1. If you have a copy of the file, restore it. Nothing is lost.
      2. Else run `verify --drop`. The lake loses the file's messages.

    --drop records each file in table set_aside, with its gateways and sequences, and moves the file to the folder
    _damaged of the lake. It works on landed tables (telemetry and the others that the hub writes). To repair a
    derived table, run `waypost lake rebuild`. The hub may run at the same time, but no pass. After an
    interruption run it again. Exit code 0: all damaged files were removed.
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
        _show_problems(table)
    if files:
        click.echo(
            "Restore the files of landed tables from copies, or remove them with `waypost lake verify --drop`. "
            "Then run `waypost lake rebuild`, which also repairs derived tables.",
            err=True,
        )
    if problems:
        sys.exit(INTEGRITY)


@interruption.interruptible("run it again to finish; the removed files are listed in table set_aside")
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
            raise click.UsageError(f"--drop {name}: this table is derived; repair it with `waypost lake rebuild`")
        if name not in schemas.LANDED:
            raise click.UsageError(f"--drop {name}: not a landed table; landed tables: {', '.join(schemas.LANDED)}")


def _drop_from(lake: LakePlace, table: VerifiedTable) -> tuple[int, bool]:
    """Remove the damaged files from a table. Return their number, and True when the table is intact now."""
    from spark import conflict, dropping, schemas, table_errors

    is_landed = table.table in schemas.LANDED
    if table.problems and (table.failure is not None or not is_landed):
        _show_problems(table)
        click.echo(f"note: nothing was removed from {table.table}{_next_step(table)}", err=True)
        return 0, False
    if not is_landed:
        return 0, True
    try:
        dropped = dropping.drop(lake, table.table, table.damaged)
    except (*table_errors.FAILURES, table_errors.TableUnreadable) as error:
        _show_problems(table)
        why = (
            "another program changed the table at the same time"
            if conflict.is_conflict(error)
            else table_errors.summarize(error)
        )
        click.echo(
            f"error: not all damaged files were removed from {table.table}: {why}. Run the command again", err=True
        )
        return 0, False
    for each in dropped:
        click.echo(spell_line(f"dropped {table.uri}/{each.file.path} ({each.reason}): {_describe_loss(each)}"))
    return len(dropped), True


def _next_step(table: VerifiedTable) -> str:
    from spark import schemas

    if table.table in schemas.DERIVED:
        return ": repair it with `waypost lake rebuild`"
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
        "The lake no longer has the rows of these files; results of earlier passes remain. Table set_aside has a row "
        f"for each file, and the files are in {lake.uri}/{dropping.DAMAGED}. After the next pass, table gaps lists the "
        "missing sequences. To undo this, restore the files and the table from copies, then run `waypost lake "
        "rebuild`.",
        err=True,
    )


def _show(table: VerifiedTable) -> None:
    files = amounts.counted(table.files, "file")
    click.echo(f"{table.table:<20} {files:>13} {table.size / 1e6:>10,.1f} MB  {len(table.problems)} damaged")


def _show_problems(table: VerifiedTable) -> None:
    for text in table.problems:
        click.echo(f"error: {text}", err=True)
