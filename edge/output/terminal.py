"""Output of commands: all texts and documents for people and scripts are printed here.

Texts may be from a peer: terminal control characters are escaped before the text is styled.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from edge.output.text import lines

if TYPE_CHECKING:
    from rich.text import Text


def say(
    text: object, *, style: str | None = None, err: bool = False, nl: bool = True, file: IO[Any] | None = None
) -> None:
    """Print a text, with control characters escaped except newlines. `style`: a colour of click, ``bold``, ``dim``."""
    words = (style or "").split()
    colour = next((word for word in words if word not in ("bold", "dim")), None)
    bold, dim = "bold" in words or None, "dim" in words or None
    click.secho(lines(text), file=file, nl=nl, err=err, fg=colour, bold=bold, dim=dim)


def say_json(document: Any, *, indent: int = 2) -> None:
    """Print a document as JSON; `indent` 0: on one line."""
    from edge.output.document import json  # noqa: PLC0415 - not needed for help

    click.echo(json(document, indent=indent))


def styled(text: object, style: str = "") -> Text:
    """Return a text for rich without interpretation of `[markup]`; `style` is rich's."""
    from rich.text import Text  # noqa: PLC0415 - only for tables

    return Text(lines(text), style=style)
