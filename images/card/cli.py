"""`waypost image configure`: settings of gateways, looked at before they are written."""

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
    from images.card.settings import Written

YAML = (".yaml", ".yml")


@click.command()
@click.argument("target", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.argument("values", metavar="[NAME=VALUE]…", nargs=-1)
@click.option(
    "--from", "source", type=click.Path(path_type=Path), help="Begin with this file (YAML), or a fleet's (CSV)."
)
@click.option(
    "--base", type=click.Path(path_type=Path), help="With a CSV: what its rows do not say is as in this file."
)
@click.option("--show", is_flag=True, help="Print the settings in FILE, without secrets, and write nothing.")
@click.option("--check", is_flag=True, help="Say whether the settings in FILE are right, and write nothing.")
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
    """Write a gateway's settings: network, hub, who may log in.

    The gateway applies them at its next start. FILE is a YAML file; or an image (.img), which gets it as waypost.yaml
    on its first partition; or, with a CSV, a folder for one file per row. Without settings, FILE is made with each one
    as a comment. NAME is the path of a setting (hub.url), and in a CSV its column. NAME=@FILE takes the value from a
    file, so that a secret is in no list of processes.

    \b
    A gateway on the cable that enrols by itself:
      waypost image configure hall.yaml name=hall hub.url=amqps://hub.example:5671 hub.token=@token
    Wi-Fi, and a fleet:
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
        raise ImageError("which file?", hint="for example: waypost image configure hall.yaml name=hall", code=USAGE)
    of_fleet = source is not None and table.is_table(source)
    if base is not None and not (of_fleet or table.is_table(target)):
        raise ImageError("--base goes with a CSV", code=USAGE)
    if show or check:
        if values or source is not None:
            raise ImageError("--show and --check write nothing: give a file alone", code=USAGE)
        _look(target, _plain(base), show=show)
    elif source is not None and of_fleet:
        if values:
            raise ImageError(
                "a CSV has the values of each gateway in its columns: none are given beside it", code=USAGE
            )
        _write_fleet(target, source, _plain(base))
    elif table.is_table(target):
        command = f"waypost image configure ./fleet --from {shlex.quote(str(target))}"
        hint = f"FILE is then a folder for one file per row: {command}"
        raise ImageError(f"{target} is read, and not written", hint=hint, code=USAGE)
    else:
        _write_one(target, values, source)


def _plain(base: Path | None) -> Plain | None:
    from images.card.settings import of_file

    if base is None:
        return None
    found = of_file(base)
    return None if found is None else found.document


def _look(target: Path, base: Plain | None, *, show: bool) -> None:
    from edge.card.text import text_of, without_secrets

    found = _settings(target, base)
    for each in found:
        if show:
            click.echo(text_of(without_secrets(each.document)), nl=False)
        else:
            click.echo(f"{each.card.name}: right")
    if not found:
        click.echo(f"{target} says nothing: every line is a comment")
    _advise(found)


def _advise(written: Sequence[Written]) -> None:
    from images.card.advice import notes

    for line in notes([each.card for each in written]):
        click.secho(f"note: {line}", fg="yellow", err=True)


def _settings(target: Path, base: Plain | None) -> list[Written]:
    """Those in a YAML file, a CSV, or an image. Raises ImageError."""
    from edge.card.location import FILE
    from images.card import partition
    from images.card.settings import of_csv, of_file, of_text

    if table.is_table(target):
        return of_csv(target, base)
    if target.suffix.lower() in YAML:
        found = of_file(target)
    else:
        text = partition.get(target, partition.of_image(target).begin, FILE)
        found = None if text is None else of_text(text, f"{target}: {FILE}")
    return [] if found is None else [found]


def _write_one(target: Path, values: tuple[str, ...], source: Path | None) -> None:
    from edge.card.location import FILE
    from edge.card.text import text_of
    from images.card import partition
    from images.card.settings import draft, of_arguments, of_text, read_small

    into_image = target.suffix.lower() not in YAML
    begin = partition.of_image(target).begin if into_image else 0
    text, called = None, str(source or target)
    if source is not None or (not into_image and target.exists()):
        text = read_small(source or target)
    elif into_image:
        text, called = partition.get(target, begin, FILE), f"{target}: {FILE}"
    made = None
    if values:  # what is wrong in the file may be what they set right
        made = of_arguments(values, None if text is None else draft(text, called))
    elif text is not None:
        made = of_text(text, called)
    if not values and made is None and not into_image and source is None:
        _write(target, text_of(None).encode())
        click.echo(f"{target}: every setting is there as a comment; fill it in")
        return
    if made is None:
        raise ImageError("no settings are given", hint="for example name=hall, or --from FILE", code=USAGE)
    # A file somebody wrote stays as it is where nothing of it is changed.
    content = made.card.text
    if into_image:
        partition.put(target, begin, FILE, content)
    else:
        _write(target, content)
    click.echo(f"{target}: the settings of {made.card.name}")
    _advise([made])


def _write_fleet(folder: Path, source: Path, base: Plain | None) -> None:
    from images.card.settings import of_csv

    made = of_csv(source, base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "with a CSV, FILE is a folder: it gets a file for each row"
        raise ImageError(f"{folder}: {error.strerror}", hint=hint, code=USAGE) from None
    for each in made:
        _write(folder / f"{each.card.name}.yaml", each.card.text)
        click.echo(folder / f"{each.card.name}.yaml")
    _advise(made)


def _write(target: Path, content: bytes) -> None:
    """There whole or not at all; for its owner alone, as it has secrets. Raises ImageError."""
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
        hint = "" if target.parent.is_dir() else f"there is no folder {target.parent}: make it first"
        raise ImageError(f"{target}: {error.strerror}", hint=hint, code=USAGE) from None
