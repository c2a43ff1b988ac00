"""Questions to the person at the keyboard, and what helps where nobody is there."""

from __future__ import annotations

import sys

import click

from images.errors import USAGE, ImageError


def asked(question: str, instead: str, *, hidden: bool = False, default: str | None = None) -> str:
    """What is typed. `instead`: how it is said without a keyboard. Raises ImageError, and click.Abort at Ctrl-C."""
    nobody = ImageError(f"{question}: nobody is there to type it", hint=instead, code=USAGE)
    if hidden and not sys.stdin.isatty():  # what is typed would be seen
        raise nobody
    try:
        typed: str = click.prompt(question, hide_input=hidden, default=default, show_default=False)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo()
        raise nobody from None
    return typed
