"""Reading of passwords: one line of standard input, or a prompt without echo on a terminal."""

from __future__ import annotations

import sys

import click


def read_password() -> str:
    """Read the password of `--password-stdin`; empty if standard input has none.

    Raises UnicodeDecodeError for what is not UTF-8 and click.Abort for Ctrl-C at the prompt.
    """
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        return ask_secret("password")
    return sys.stdin.readline().rstrip("\r\n")


def ask_secret(name: str) -> str:
    """Prompt for a secret on the terminal, without echo. Raises click.Abort for Ctrl-C."""
    secret: str = click.prompt(name, hide_input=True, err=True)
    return secret
