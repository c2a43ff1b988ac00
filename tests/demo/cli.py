"""`waypost demo`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from tests.demo import closing
from tests.demo.board import Board
from tests.demo.errors import DemoError
from tests.demo.plan import Timeline
from tests.demo.processes import Children
from tests.demo.scenario import Outcome, Scenario, summary
from tests.demo.view import make_view

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTEGRITY = 4
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run; `seconds` of traffic in which everything happens."""

    folder: Path
    seconds: float
    once: bool
    as_json: bool


FOLDER = "waypost-demo-%Y%m%d-%H%M%S"
"""Name of the folder in the current directory, for `time.strftime`."""


@click.command()
@click.option("--once", is_flag=True, help="End when the numbers are there; exit code 4 when they do not add up.")
@click.option("--out", "folder", type=click.Path(path_type=Path, file_okay=False), help="Work directory, new or empty.")
@click.option("--seconds", type=click.FloatRange(20, 3600), default=60.0, show_default=True, help="Of traffic.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(*, once: bool, folder: Path | None, seconds: float, as_json: bool) -> None:
    """Show the whole path on this machine, and check every acknowledgement.

    A hub, two gateways, and devices that measure this machine over MQTT and AMQP. One uplink is cut, the other gateway
    is killed and restarts. Then the lake is compared with the acknowledgements that the devices got, and the report is
    drawn. Without --once the consoles stay up until Ctrl-C.

    Exit codes: 0 the numbers add up, 1 something failed to run, 2 wrong usage, 4 the numbers do not add up.
    """
    folder = (folder or Path(time.strftime(FOLDER))).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as why:
        raise click.UsageError(f"cannot use {folder}: {why.strerror}") from why
    if occupied:
        raise click.UsageError(f"{folder} is not empty: give another --out, or none for a new folder")
    sys.exit(asyncio.run(_main(Options(folder, seconds, once, as_json))))


async def _main(options: Options) -> int:
    """Run the demo; return the exit code. Signals end the run and its processes."""
    playing = asyncio.create_task(_play(options))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED


async def _play(options: Options) -> int:
    console = Console(stderr=options.as_json)
    board = Board(str(options.folder))
    try:
        async with Children(options.folder / "logs") as children:
            scenario = Scenario(options.folder, board, children, Timeline.of(options.seconds))
            async with make_view(board, console):
                outcome = await scenario.play()
                if options.once:
                    await scenario.stage.stop()
            _show(outcome, options, console)
            if not options.once:
                await _stay(board, scenario, console)
    except DemoError as why:
        closing.show_failure(why, console)
        console.print(f"logs    {options.folder / 'logs'}", highlight=False, soft_wrap=True)
        return EXIT_FAILED
    except OSError as why:
        console.print(f"error: {why}", style="bold red", highlight=False)
        return EXIT_FAILED
    return 0 if outcome.ok else EXIT_INTEGRITY


def _show(outcome: Outcome, options: Options, console: Console) -> None:
    closing.show(outcome, console)
    if options.as_json:
        click.echo(json.dumps(summary(outcome), indent=2))


async def _stay(board: Board, scenario: Scenario, console: Console) -> None:
    """Keep the consoles up until a signal, and then end in order."""
    closing.show_consoles(board, console)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    console.print("ending")
    await scenario.stage.stop()
