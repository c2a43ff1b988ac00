"""Prompts for input. Without a terminal, an error names the alternative."""

from __future__ import annotations

import sys

import click

from images.errors import USAGE, ImageError


def ask(question: str, instead: str, *, hidden: bool = False, default: str | None = None) -> str:
    """Ask for a line and return it.

    `instead`: how to give the value without a terminal. Raises ImageError, and click.Abort at Ctrl-C.
    """
    no_terminal = ImageError(f"{question}: without a terminal it cannot be typed", hint=instead, code=USAGE)
    if hidden and not sys.stdin.isatty():  # the input would be visible
        raise no_terminal
    try:
        typed: str = click.prompt(question, hide_input=hidden, default=default, show_default=False)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo()
        raise no_terminal from None
    return typed
