"""Shared parts of the store commands: options, errors with the next step, progress, tables."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.broker.store.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreInaccessible,
    StoreMoved,
    StoreTooNew,
)
from edge.broker.store.sqlite import FILE_NAME
from edge.output.errors import CommandError, Exit

if TYPE_CHECKING:
    from rich.console import Console

    from edge.appliance.store.selection import StoreSelection

WIDTH = 80
"""Width of the output when it is not known."""

data_option = click.option(
    "--data",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Data directory of the gateway.",
)


class FormatMissing(StoreError):
    """The format needs a package that is not installed."""


_HINTS: dict[type[StoreError], tuple[str, Exit]] = {
    StoreBusy: ("stop the gateway first: this changes the store", Exit.FAILED),
    StoreDamaged: (
        "waypost store verify shows the damage, waypost store repair keeps everything that is intact",
        Exit.INTEGRITY,
    ),
    StoreTooNew: ("run this command with the newer program", Exit.FAILED),
    FormatMissing: ("choose ndjson or csv, or install it: pip install pyarrow", Exit.USAGE),
    StoreFull: ("free space on the medium, or work on a copy elsewhere", Exit.FAILED),
    StoreMoved: ("waypost replace --help", Exit.FAILED),
    StoreInaccessible: ("give --data as for `waypost run`", Exit.USAGE),
}


def store_path(data: Path) -> Path:
    """Return the path of the store in a data directory."""
    return data / FILE_NAME


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the store into errors of the command, with next step and exit code."""
    try:
        yield
    except StoreError as error:
        hint, code = next((found for kind, found in _HINTS.items() if isinstance(error, kind)), ("", Exit.FAILED))
        raise CommandError(str(error), hint=hint, code=code, error="store-refused") from None
    except BrokenPipeError:
        raise  # the reader of stdout has closed it: not an error of the store
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{name}{error.strerror or error}", error="file-not-accessible") from None


@contextlib.contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, on a terminal only. Call the result with (done, all)."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _done, _all: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, all_: bar.update(task, completed=done, total=max(done, all_))


def confirm(question: str) -> None:
    """Ask for a yes. Raises CommandError otherwise, also without a terminal, and click.Abort for Ctrl-C."""
    try:
        agreed = sys.stdin is not None and click.confirm(question)
    except click.Abort as why:
        if not isinstance(why.__context__, EOFError):
            raise
        agreed = False
        click.echo(err=True)  # ends the line of the question
    if not agreed:
        raise CommandError(
            "nothing was changed: the answer was not yes", hint="--yes skips the question", error="not-confirmed"
        )


def console() -> Console:
    """Return the console for tables: coloured on a terminal only, as wide as COLUMNS or the terminal, or 80 columns."""
    from rich.console import Console

    return Console(highlight=False, width=shutil.get_terminal_size((WIDTH, 24)).columns)


def selection_of(
    *,
    logs: tuple[str, ...] = (),
    address: str | None = None,
    device: str | None = None,
    since: str | None = None,
    until: str | None = None,
    cursor: str | None = None,
) -> StoreSelection:
    """Return the selection of the options. Raises click.UsageError."""
    from bridge.topic_filter import filter_fault
    from edge.appliance.store.selection import StoreSelection, moment

    fault = filter_fault(address) if address is not None else None
    if fault:
        raise click.UsageError(f"--address {address}: {fault}")
    now = time.time()
    times: list[int | None] = []
    for name, text in (("since", since), ("until", until)):
        try:
            times.append(None if text is None else moment(text, now))
        except ValueError as error:
            raise click.UsageError(f"--{name}: {error}") from None
    return StoreSelection(logs=logs, address=address, device=device, since=times[0], until=times[1], cursor=cursor)
