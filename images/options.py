"""Options that several commands of `waypost image` have."""

from __future__ import annotations

from pathlib import Path

import click

cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="WAYPOST_IMAGE_CACHE",
    help="Where the results of steps are kept.  [default: waypost/images in your cache directory]",
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder to make; what is in it is replaced."
)
