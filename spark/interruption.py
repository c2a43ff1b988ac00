"""Commands that end at once when they are interrupted (SIGINT, SIGTERM), whatever they are at.

What they write is there whole or not at all, so that they can be stopped anywhere.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final, NoReturn, ParamSpec

import click

FAILED = 1
"""The exit code of what was interrupted: it has not done what was asked for."""
CONTINUES: Final = "the tables are consistent, and the next run continues"
"""What is said of an interrupted command that writes."""
Parameters = ParamSpec("Parameters")


def listen() -> None:
    """From here on SIGTERM raises `KeyboardInterrupt`, as SIGINT does."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def apart(work: Callable[[], None]) -> None:
    """Done in a thread of its own: a signal that comes while the main one is in delta-rs is not heard until that
    returns, which upkeep of a large table does after minutes."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="apart")
    try:
        pool.submit(work).result()
    finally:
        pool.shutdown(wait=False)


def leave(code: int) -> NoReturn:
    """End this process whatever its threads are at, for which Python would wait. What they say of that is not told."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os._exit(code)


def interruptible(said: str) -> Callable[[Callable[Parameters, None]], Callable[Parameters, None]]:
    """Makes a command one that says this when it is interrupted, and ends."""

    def made(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
        @functools.wraps(command)
        def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
            context = click.get_current_context()

            def work() -> None:
                with context.scope(cleanup=False):  # click has one a thread
                    command(*arguments, **options)

            listen()
            try:
                apart(work)
            except KeyboardInterrupt:
                click.echo(f"interrupted: {said}", err=True)
                leave(FAILED)

        return run

    return made
