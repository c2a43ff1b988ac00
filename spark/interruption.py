"""End commands at once when they are interrupted (SIGINT, SIGTERM), whatever they are doing.

Their results appear whole or not at all, so they can be stopped anywhere.
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
"""Exit code of an interrupted command: it has not done its work."""
CONTINUES: Final = "the tables are consistent, and the next run continues"
"""Message of an interrupted command that writes."""
Parameters = ParamSpec("Parameters")


def handle_sigterm() -> None:
    """Make SIGTERM raise `KeyboardInterrupt`, as SIGINT does."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run_in_thread(work: Callable[[], None]) -> None:
    """Run a function in a thread of its own and wait for it.

    A signal that arrives while the main thread is in delta-rs is handled only when that returns, which maintenance of a
    large table does after minutes.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="apart")
    try:
        pool.submit(work).result()
    finally:
        pool.shutdown(wait=False)


def exit_now(code: int) -> NoReturn:
    """End this process without waiting for its threads, and discard their output."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os._exit(code)


def interruptible(text: str) -> Callable[[Callable[Parameters, None]], Callable[Parameters, None]]:
    """Make a command print this text when it is interrupted, and exit."""

    def made(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
        @functools.wraps(command)
        def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
            context = click.get_current_context()

            def work() -> None:
                with context.scope(cleanup=False):  # click has one a thread
                    command(*arguments, **options)

            handle_sigterm()
            try:
                run_in_thread(work)
            except KeyboardInterrupt:
                click.echo(f"interrupted: {text}", err=True)
                exit_now(FAILED)

        return run

    return made
