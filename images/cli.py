"""`waypost image`: from this checkout to a gateway somebody can install, boot or try."""

from __future__ import annotations

from pathlib import Path

import click

cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="WAYPOST_IMAGE_CACHE",
    help="Where the results of steps are kept.  [default: waypost/images in your cache directory]",
)
again_option = click.option("--again", is_flag=True, help="Do every step anew, whatever is there.")


@click.group()
def image() -> None:
    """Make a gateway that needs no checkout: a folder, a package, an image of a card.

    Steps whose inputs have not changed are not done again.
    """


@image.command()
@cache_option
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder to make; what is in it is replaced."
)
def freeze(cache: Path | None, out: Path) -> None:
    """Make a folder with a gateway and the Python it runs on, for machines like this one.

    \b
    Copied to a machine without Python it serves:
      waypost image freeze --out ./frozen && ./frozen/waypost edge run --dev --data ./data
    """
    from images.frozen import freezing
    from images.output import copy_tree
    from images.steps import Steps, default_cache

    made = freezing.freeze(Steps(cache or default_cache()))
    copy_tree(made, out, holding=freezing.PROGRAM)
    click.echo(out)
