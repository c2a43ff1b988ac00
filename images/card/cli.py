"""`waypost image configure`: check the settings of gateways and write them."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from images import table
from images.errors import USAGE, ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge.card.resource import Plain
    from images.card.settings import CardSettings

YAML = (".yaml", ".yml")


@click.command()
@click.argument("target", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.argument("values", metavar="[NAME=VALUE]…", nargs=-1)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    help="Start from the settings in this file: YAML, or CSV for a fleet.",
)
@click.option(
    "--base", type=click.Path(path_type=Path), help="With a CSV: YAML file with the settings that rows leave out."
)
@click.option("--show", is_flag=True, help="Print the settings in FILE, without secrets, and write nothing.")
@click.option("--check", is_flag=True, help="Check the settings in FILE, and write nothing.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of the file, for editors.")
def configure(
    target: Path | None,
    values: tuple[str, ...],
    source: Path | None,
    base: Path | None,
    show: bool,
    check: bool,
    schema: bool,
) -> None:
    """Write a gateway's settings. They are network, hub and SSH keys.

    The gateway applies them at its next start. FILE is a YAML file, an image (.img) or, with a CSV, a folder. In an
    image the settings become the file waypost.yaml on its first partition; in a folder each row becomes a file.
    Without settings, FILE is created with every setting as a comment. NAME is the path of a setting (hub.url), or its
    column in a CSV. NAME=@FILE reads the value from a file, which keeps secrets off the command line.

    \b
    A gateway on Ethernet that enrols by itself:
      waypost image configure hall.yaml name=hall hub.url=amqps://hub.example:5671 hub.token=@token
    A gateway on Wi-Fi; a fleet:
      waypost image configure hall.yaml wifi.ssid=plant wifi.country=DE wifi.password=@password
      waypost image configure ./fleet --from fleet.csv --base site.yaml
    """
    if schema:
        from bridge.resources.completion import json_schema
        from edge.card.resource import KINDS
        from edge.output.terminal import say_json

        say_json(json_schema(KINDS))
        return
    if target is None or ("=" in str(target) and not target.exists()):
        raise ImageError("FILE is missing", hint="for example: waypost image configure hall.yaml name=hall", code=USAGE)
    of_fleet = source is not None and table.is_table(source)
    if base is not None and not (of_fleet or table.is_table(target)):
        raise ImageError("--base requires a CSV", code=USAGE)
    if show or check:
        if values or source is not None:
            raise ImageError("--show and --check take only FILE", code=USAGE)
        _show_or_check(target, _load_base(base), show=show)
    elif source is not None and of_fleet:
        if values:
            raise ImageError("NAME=VALUE cannot be combined with a CSV: set the values in its columns", code=USAGE)
        _write_fleet(target, source, _load_base(base))
    elif table.is_table(target):
        command = f"waypost image configure ./fleet --from {shlex.quote(str(target))}"
        hint = f"name a folder as FILE and the CSV with --from: {command}"
        raise ImageError(f"{target} is a CSV, which is only read", hint=hint, code=USAGE)
    else:
        _write_one(target, values, source)


def _load_base(base: Path | None) -> Plain | None:
    from images.card.settings import load_settings

    if base is None:
        return None
    found = load_settings(base)
    return None if found is None else found.document


def _show_or_check(target: Path, base: Plain | None, *, show: bool) -> None:
    from edge.card.text import text_of, without_secrets

    found = _load_settings(target, base)
    for each in found:
        if show:
            click.echo(text_of(without_secrets(each.document)), nl=False)
        else:
            click.echo(f"{each.card.name}: valid")
    if not found:
        click.echo(f"{target} has no settings: all lines are comments")
    _print_notes(found)


def _print_notes(written: Sequence[CardSettings]) -> None:
    from images.card.advice import list_notes

    for line in list_notes([each.card for each in written]):
        click.secho(f"note: {line}", fg="yellow", err=True)


def _load_settings(target: Path, base: Plain | None) -> list[CardSettings]:
    """Load the settings in a YAML file, a CSV, or an image. Raises ImageError."""
    from edge.card.location import FILE
    from images.card import partition
    from images.card.settings import load_fleet, load_settings, parse_settings

    if table.is_table(target):
        return load_fleet(target, base)
    if target.suffix.lower() in YAML:
        found = load_settings(target)
    else:
        text = partition.read_file(target, partition.find_first_partition(target).begin, FILE)
        found = None if text is None else parse_settings(text, f"{target}: {FILE}")
    return [] if found is None else [found]


def _write_one(target: Path, values: tuple[str, ...], source: Path | None) -> None:
    from edge.card.location import FILE
    from edge.card.text import text_of
    from images.card import partition
    from images.card.settings import apply_arguments, parse_draft, parse_settings, read_settings_file

    into_image = target.suffix.lower() not in YAML
    begin = partition.find_first_partition(target).begin if into_image else 0
    text, called = None, str(source or target)
    if source is not None or (not into_image and target.exists()):
        text = read_settings_file(source or target)
    elif into_image:
        text, called = partition.read_file(target, begin, FILE), f"{target}: {FILE}"
    made = None
    if values:  # they may correct errors in the file
        made = apply_arguments(values, None if text is None else parse_draft(text, called))
    elif text is not None:
        made = parse_settings(text, called)
    if not values and made is None and not into_image and source is None:
        _write(target, text_of(None).encode())
        click.echo(f"{target}: created, with every setting as a comment; edit it and remove the comment signs")
        return
    if made is None:
        raise ImageError("no settings are given", hint="add for example name=hall, or --from FILE", code=USAGE)
    # A file is copied unchanged if no value is given.
    content = made.card.text
    if into_image:
        partition.write_file(target, begin, FILE, content)
    else:
        _write(target, content)
    click.echo(f"{target}: settings of {made.card.name} written")
    _print_notes([made])


def _write_fleet(folder: Path, source: Path, base: Plain | None) -> None:
    from images.card.settings import load_fleet

    made = load_fleet(source, base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "with a CSV, FILE must be a folder"
        raise ImageError(f"{folder}: {error.strerror}", hint=hint, code=USAGE) from None
    for each in made:
        _write(folder / f"{each.card.name}.yaml", each.card.text)
        click.echo(folder / f"{each.card.name}.yaml")
    _print_notes(made)


def _write(target: Path, content: bytes) -> None:
    """Write a file atomically, readable by its owner only, because it contains secrets. Raises ImageError."""
    import os

    fresh = target.with_name(f"{target.name}.part")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        hint = "" if target.parent.is_dir() else f"the folder {target.parent} does not exist: create it first"
        raise ImageError(f"{target}: {error.strerror}", hint=hint, code=USAGE) from None
