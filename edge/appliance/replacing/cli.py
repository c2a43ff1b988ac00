"""`waypost replace`: move a gateway to another card or machine."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

import click

from edge.appliance.replacing.archive import ArchiveDamaged, read_head
from edge.appliance.replacing.moving import MoveRefused, give_up, move_in, move_out, require_replaceable
from edge.appliance.store.shared import confirm, data_option, explained, store_path
from edge.broker.store.lock import is_held
from edge.broker.store.moved import ARRIVING_NAME, MOVED_NAME
from edge.output.amounts import counted, size
from edge.output.errors import CommandError, Exit
from edge.output.terminal import say
from edge.output.text import word


@click.group()
def replace() -> None:
    """Move a gateway to another card.

    Identity, configuration, users and backlog go with it, also to another machine.

    \b
    On the old card or machine, with the gateway stopped:
      waypost replace export hall.gateway --data /var/lib/waypost
    On the new one, stopped too:
      waypost replace import hall.gateway --data /var/lib/waypost
    """


@replace.command("export")
@data_option
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--yes", is_flag=True, help="Do not ask.")
def export(data: Path, target: Path, yes: bool) -> None:
    """Write a gateway into a file. It does not run here any more.

    FILE has its keys and messages: keep it as safe as the card, and delete it after the move. After an interruption run
    it again.
    """
    _require_folder(data)
    _refuse_running(data)
    if target.absolute().is_relative_to(data.absolute()):
        raise CommandError(f"{target} is in the data directory", hint="name a file elsewhere", error="move-refused")
    if not target.absolute().parent.is_dir():
        raise CommandError(
            f"the folder {target.absolute().parent} does not exist", hint="create it first", error="move-refused"
        )
    if not yes:
        confirm(f"The gateway of {data} will not run here any more. Go on?")
    with _move_explained(), explained():
        name, epoch = _identify(data)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        head = move_out(data, target, gateway=name, epoch=epoch, created=created)
    say(f"{target}: gateway {head.gateway}, {size(head.bytes)}")
    say(f"next, on the new card or machine: waypost replace import {word(target.name)} --data DIR")


@replace.command("import")
@data_option
@click.argument(
    "source", metavar="[FILE]", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False
)
@click.option("--discard", is_flag=True, help="Discard the messages that are stored here.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def import_(data: Path, source: Path | None, discard: bool, yes: bool) -> None:
    """Replace the gateway here by that of a file. Its messages keep their names; new ones are of a new epoch.

    Settings of this card (waypost.yaml) stay, but its token is not used. Stop the set-up too, if it still runs:
    systemctl stop waypost waypost-enrol. After an interruption run it again, without FILE.
    """
    _refuse_running(data)
    with _move_explained(), explained():
        if source is None and not (data / ARRIVING_NAME).exists():
            raise click.UsageError("FILE is missing: the file of `waypost replace export`")
        if source is not None and not (data / ARRIVING_NAME).exists():
            require_replaceable(data)
            head = read_head(source)
            stored = _count_messages(data)
            if stored and not discard:
                raise MoveRefused(f"{data} has {counted(stored, 'message')}, which would be lost", _keeping_step(data))
            if not yes:
                confirm(f"Replace all of {data} by the gateway {head.gateway} of {head.created}?")
        mark = move_in(data, source, lambda: _begin_epoch(data))
    say(f"{data}: gateway {mark.gateway}; it may be started")


@replace.command()
@data_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def cancel(data: Path, yes: bool) -> None:
    """Let an exported gateway run here again. Only if its file was not imported: one identity is for one machine."""
    _require_folder(data)
    _refuse_running(data)
    if not yes:
        confirm("Is it certain that the file of this gateway was not imported elsewhere?")
    with _move_explained(), explained():
        mark = give_up(data, lambda: _begin_epoch(data))
    say(f"{data}: gateway {mark.gateway} may run here again, under a new epoch; delete its file")


@contextlib.contextmanager
def _move_explained() -> Iterator[None]:
    """Turn errors of a move into errors of the command."""
    try:
        yield
    except MoveRefused as why:
        raise CommandError(str(why), hint=why.next_step, error="move-refused") from None
    except ArchiveDamaged as why:
        raise CommandError(
            f"the file cannot be used: {why}",
            hint="nothing was changed; copy it again, or run `waypost replace export` again at the old card",
            code=Exit.INTEGRITY,
            error="move-refused",
        ) from None


def _identify(data: Path) -> tuple[str, str]:
    """Return the gateway's name, and the epoch of its store. Raises StoreError."""
    from edge.appliance.store.recovery.inspection import Inspection
    from edge.configuration.file import RepositoryError
    from edge.configuration.repository import Repository
    from edge.configuration.resources import GatewaySpec

    name = ""
    with contextlib.suppress(RepositoryError):
        name = next((each.name for each in Repository(data).own() if isinstance(each.spec, GatewaySpec)), "")
    with Inspection.open(store_path(data)) as inspection:
        return name or data.name, inspection.meta("epoch") or ""


def _count_messages(data: Path) -> int:
    """Return the messages stored in a directory, of all address spaces; 0 without a store. Raises StoreError."""
    from edge.appliance.store.recovery.inspection import Inspection
    from edge.appliance.tenant_spaces import stores_in

    stored = 0
    for file in stores_in(data):
        with Inspection.open(file) as inspection:
            stored += sum(max(0, log.next - log.first) for log in inspection.logs())
    return stored


def _keeping_step(data: Path) -> str:
    """Return what to do with the messages of a directory before another gateway replaces it."""
    drain = f"waypost bridge drain --data {word(data)}"
    if (data / MOVED_NAME).exists():
        return (
            "the gateway here was exported with them: add --discard if its file was imported elsewhere. If not: "
            f"waypost replace cancel --data {word(data)}, then {drain}"
        )
    return f"send them first: {drain}; or add --discard"


def _begin_epoch(data: Path) -> None:
    """Start a new epoch in the store. Raises StoreError."""
    from edge.appliance.store.offline import offline

    with offline(data, moving=True) as opened:
        opened.store.lineage.begin_epoch()


def _require_folder(data: Path) -> None:
    """Raise CommandError without a data directory."""
    if not data.is_dir():
        hint = "name the data directory of the gateway with --data"
        raise CommandError(f"{data} does not exist", hint=hint, code=Exit.USAGE, error="no-data-directory")


def _refuse_running(data: Path) -> None:
    """Raise CommandError while the gateway runs."""
    if is_held(data):
        raise CommandError(
            f"{data} is in use", hint="stop the gateway first: systemctl stop waypost", error="store-in-use"
        )
