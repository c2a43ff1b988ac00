"""Options shared by commands of `waypost image`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

CACHE_VARIABLE: Final = "WAYPOST_IMAGE_CACHE"

cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=CACHE_VARIABLE,
    help="Folder for the results of steps.  [default: waypost/images in your cache directory]",
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder to create; its content is replaced."
)


def mirror_options(command: _Command) -> _Command:
    """Add the options for the sources of Debian packages."""
    security = click.option(
        "--security-mirror", metavar="URL", help="Debian's security updates, with --mirror.  [default: URL-security]"
    )
    mirror = click.option("--mirror", metavar="URL", help="Mirror of Debian's packages, instead of apt's.")
    expired = click.option(
        "--expired", is_flag=True, help="Accept archives after the end of their validity, as those of a snapshot."
    )
    return mirror(security(expired(command)))
