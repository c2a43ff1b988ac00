"""`waypost completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

from typing import Final

import click

from edge.appliance.commands import COMPLETION_VARIABLE
from edge.output.terminal import say

SHELLS: Final = ("bash", "zsh", "fish")
PROGRAM: Final = "waypost"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a completion script for a shell. The Debian package installs it.

    \b
    For this user, from the next shell on:
      waypost completion bash > ~/.local/share/bash-completion/completions/waypost
      waypost completion zsh > ~/.zfunc/_waypost      # with fpath+=~/.zfunc before compinit in ~/.zshrc
      waypost completion fish > ~/.config/fish/completions/waypost.fish
    \b
    For this shell only:
      eval "$(waypost completion bash)"
    """
    say(script(shell).rstrip("\n"))


def script(shell: str) -> str:
    """Return the script for a shell. Raises KeyError for an unknown one."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only here

    made = get_completion_class(shell)
    if made is None:
        raise KeyError(shell)
    complete = made(click.Command(PROGRAM), {}, PROGRAM, COMPLETION_VARIABLE)
    return complete.source_template % complete.source_vars()
