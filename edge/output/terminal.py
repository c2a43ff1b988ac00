"""What commands print: every text and document a person or a script reads goes through here.

Styles are ours (`style`), the texts may be a peer's: what steers a terminal is spelled out before it is styled.
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
    """Print a text; only newlines act. `style`: a colour of click's, dimmed or bold by those words."""
    words = (style or "").split()
    colour = next((word for word in words if word not in ("bold", "dim")), None)
    bold, dim = "bold" in words or None, "dim" in words or None
    click.secho(lines(text), file=file, nl=nl, err=err, fg=colour, bold=bold, dim=dim)


def say_json(document: Any, *, indent: int = 2) -> None:
    """Print a document as JSON; `indent` 0: on one line."""
    from edge.output.document import json  # noqa: PLC0415 - help has none

    click.echo(json(document, indent=indent))


def styled(text: object, style: str = "") -> Text:
    """A text for rich, which obeys `[markup]` in plain ones; `style` is rich's."""
    from rich.text import Text  # noqa: PLC0415 - not every command has tables

    return Text(lines(text), style=style)
