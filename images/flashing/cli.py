"""`waypost flash`: an image onto cards, checked before, written sparsely, read back whole."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from images import table
from images.asking import asked
from images.errors import INTEGRITY, USAGE, ImageError
from images.options import CACHE_VARIABLE
from images.steps import default_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge.card.resource import Card
    from images.flashing.cards import Job, Outcome
    from images.flashing.devices import Disk
    from images.flashing.image import Handed
    from images.flashing.labels import Label

_GIVEN = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("img", metavar="[IMG]", type=click.Path(path_type=Path), required=False)
@click.argument("targets", metavar="[DEVICE]…", nargs=-1, type=click.Path(path_type=Path))
@click.option("--list", "listing", is_flag=True, help="List the cards of this machine, and why other disks are none.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
@click.option("--config", type=_GIVEN, help="Settings (YAML, or CSV: a row for each card).")
@click.option("--base", type=_GIVEN, help="With a CSV: settings that its rows leave out (YAML).")
@click.option("--only", "names", metavar="NAME", multiple=True, help="Only these gateways of the CSV, in this order.")
@click.option("--labels", type=click.Path(path_type=Path), help="Write labels with QR codes to print (HTML).")
@click.option(
    "--certificate",
    envvar="WAYPOST_CERTIFICATE",
    type=click.Path(path_type=Path, exists=True),
    help="Certificate of the image's maker (PEM).  [default: this machine's own, if it builds images]",
)
@click.option("--unsigned", is_flag=True, help="Take an image of an unknown maker; only its checksums are verified.")
@click.option("--yes", is_flag=True, help="Do not ask before a card is overwritten.")
@click.option("--allow-loop", is_flag=True, hidden=True, help="A loop device is taken for a card: for tests.")
def flash(
    img: Path | None,
    targets: tuple[Path, ...],
    listing: bool,
    as_json: bool,
    config: Path | None,
    base: Path | None,
    names: tuple[str, ...],
    labels: Path | None,
    certificate: Path | None,
    unsigned: bool,
    yes: bool,
    allow_loop: bool,
) -> None:
    """Write an image onto cards, or into a file, and read all of it back.

    It changes nothing before it has verified the image's signature, and that every DEVICE is a card that nothing uses.
    Without DEVICE it lists the cards of this machine. A card whose writing was interrupted does not start.

    \b
      sudo waypost flash waypost-0.1.0-pi4.img.zst /dev/sdX --config hall.yaml
      sudo waypost flash waypost-0.1.0-pi4.img.zst /dev/sdX /dev/sdY --config fleet.csv --labels labels.html
    """
    from images.flashing import cards as several
    from images.flashing import image

    _require_image(img)
    if listing or img is None or not targets:
        _list_instead(img, asked_for=listing, as_json=as_json, writing=yes or any((config, base, names, labels)))
        return
    _check_options(config, base, names, labels)
    settings = _cards(config, base)
    own = None if certificate is not None else _own_certificate()
    handed = image.look_at(img, certificate or own, signed=not unsigned, own=own is not None)
    jobs = several.jobs([(each, _disk(each, handed, loop=allow_loop)) for each in targets], settings, names)
    if len({each.target.resolve() for each in jobs}) < len(jobs):
        raise ImageError("a card is named twice", code=USAGE)
    for given in (each for each in (img, config, base, labels, certificate) if each is not None):
        if any(each.target.resolve() == given.resolve() for each in jobs):
            raise ImageError(f"{given} would be written over", hint="name a card, or another file", code=USAGE)
    if not yes:
        _ask(jobs)
    for each in jobs:  # somebody may have changed cards meanwhile
        if each.disk is not None and _disk(each.target, handed, loop=allow_loop) != each.disk:
            raise ImageError(f"{each.target} is another card now", hint="nothing was written; begin again", code=USAGE)
    outcomes = _write(handed, jobs)
    done = [several.label(each, img.name) for each in outcomes if each.written is not None]
    labelled = labels is None or _write_labels(labels, done)
    _say(outcomes)
    if not labelled:
        raise ImageError("the cards are written, and no labels are", hint="the lines above say which is which")


def _list_instead(img: Path | None, *, asked_for: bool, as_json: bool, writing: bool) -> None:
    """List cards where none is named. Raises ImageError where one was meant to be."""
    if as_json and not asked_for:
        raise ImageError("--json goes with --list", code=USAGE)
    if as_json:
        _print_json()
        return
    _list(None if asked_for else img)
    if writing and not asked_for:  # of a script whose list of cards is empty
        raise ImageError("no card is named, and none was written", hint=_EXAMPLE, code=USAGE)


def _check_options(config: Path | None, base: Path | None, names: Sequence[str], labels: Path | None) -> None:
    """Raises ImageError."""
    if base is not None and (config is None or not table.is_table(config)):
        raise ImageError("--base goes with a CSV", code=USAGE)
    if names and config is None:
        raise ImageError("--only goes with --config", code=USAGE)
    if labels is not None:
        _check_labels(labels)


_EXAMPLE: Final = "the image comes first: sudo waypost flash waypost-0.1.0-pi4.img.zst /dev/sdX"


def _require_image(img: Path | None) -> None:
    """A card, or the name of one, is no image. Raises ImageError."""
    if img is not None and Path("/dev") in img.absolute().parents:
        raise ImageError(f"{img} is no image", hint=_EXAMPLE, code=USAGE)
    if img is not None and not img.is_file():
        words = "is a folder" if img.is_dir() else "is not there"
        raise ImageError(f"{img} {words}", hint=_EXAMPLE, code=USAGE)


def _own_certificate() -> Path | None:
    """Of the machine that builds images for itself."""
    own = Path(os.environ.get(CACHE_VARIABLE) or default_cache()) / "development-key" / "certificate.pem"
    return own if own.is_file() else None


def _cards(config: Path | None, base: Path | None) -> Sequence[Card]:
    from images.card.settings import of_csv, of_file

    if config is None:
        return []
    if table.is_table(config):
        found = of_file(base) if base is not None else None
        return [each.card for each in of_csv(config, None if found is None else found.document)]
    written = of_file(config)
    if written is None:
        raise ImageError(f"{config} says nothing: every line is a comment", hint="fill it in", code=USAGE)
    return [written.card]


def _disk(target: Path, handed: Handed, *, loop: bool) -> Disk | None:
    """The disk, which may be written over; None: it is a file. Raises ImageError."""
    from images.flashing import devices

    if target.is_dir():
        raise ImageError(f"{target} is a folder", hint="name a card, or a file to be made", code=USAGE)
    if target.is_file() or not target.exists():
        if Path("/dev") in target.absolute().parents:
            raise ImageError(f"{target} is not there", hint="waypost flash --list shows the cards", code=USAGE)
        if not target.parent.is_dir():
            raise ImageError(f"{target}: there is no folder {target.parent}", hint="make it first", code=USAGE)
        return None
    disk = devices.of_path(target, devices.found())
    refused = devices.refusal(disk, handed.layout.size, loop=loop)
    if refused is not None:
        raise ImageError(refused[0], hint=refused[1], code=USAGE)
    return disk


def _print_json() -> None:
    """The disks of this machine, with what speaks against each; nothing does against a card."""
    from edge.output.terminal import say_json
    from images.flashing import devices

    said = [(each, devices.refusal(each, 0)) for each in devices.pieces(devices.found())]
    say_json(
        [
            {"path": disk.path, "size": disk.size, "model": disk.model, "serial": disk.serial}
            | {"card": refused is None, "why": "" if refused is None else refused[0]}
            for disk, refused in said
        ]
    )


def _list(img: Path | None) -> None:
    from images.flashing import devices

    shown = False
    for disk in devices.pieces(devices.found()):
        refused = devices.refusal(disk, 0)
        if refused is None:
            shown = True
            click.secho(disk.title, bold=True)
        else:
            click.secho(f"{disk.title}: not this one, {refused[0]}", dim=True)
    if not shown:
        click.echo("no card found: put one in; a reader without a card has 0 bytes")
    elif img is not None:
        click.echo(f"name one: sudo waypost flash {shlex.quote(str(img))} /dev/…")


def _ask(jobs: Sequence[Job]) -> None:
    """The person types the name of each, so that it is not another one. Raises ImageError."""
    for each in jobs:
        if each.disk is None and not each.target.exists():
            continue
        title = each.disk.title if each.disk is not None else f"{each.target}, a file"
        whose = f" for {each.card.name}" if each.card is not None else ""
        click.echo(f"Everything on it will be lost: {title}{whose}")
        typed = asked(f"To overwrite it, type {each.target}", "nothing was written; --yes does not ask")
        if typed != str(each.target):
            raise ImageError("nothing was written", hint="the names differ", code=USAGE)


def _write(handed: Handed, jobs: Sequence[Job]) -> Sequence[Outcome]:
    """With a line for each card, where somebody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from images.flashing import cards as several

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        tasks = [shown.add_task(str(each.target), total=several.estimated(handed)) for each in jobs]

        def progress(number: int, what: str, count: int) -> None:
            shown.update(tasks[number], advance=count, description=f"{jobs[number].target} {what}")

        return several.write(handed, jobs, progress)


def _check_labels(target: Path) -> None:
    """Before a card is touched. Raises ImageError."""
    if target.is_dir() or not target.parent.is_dir():
        raise ImageError(f"{target} cannot be written", hint="name a file in a folder that is there", code=USAGE)
    try:
        import segno  # noqa: F401
    except ModuleNotFoundError as why:
        words = "labels need the Python package segno, which is not installed"
        raise ImageError(words, hint="pip install 'waypost[images]', or leave out --labels", code=USAGE) from why


def _write_labels(target: Path, labels: Sequence[Label]) -> bool:
    """Whether they could be."""
    import time

    from images.flashing.page import page

    try:
        target.write_text(page(labels, time.time()), encoding="utf-8")  # as the page says of itself
    except OSError as error:
        click.secho(f"{target}: {error.strerror}: no labels were written", fg="yellow", err=True)
        return False
    return True


def _say(outcomes: Sequence[Outcome]) -> None:
    """Raises ImageError where a card has failed, with what helps."""
    failed = []
    for each in outcomes:
        name = f"{each.job.card.name}: " if each.job.card is not None else ""
        if each.written is not None:
            size, seconds = each.written.bytes / 1e6, each.written.seconds
            click.echo(f"{each.job.target}: {name}written and read back, {size:.0f} MB in {seconds:.0f} s")
        elif each.error is not None:
            failed.append(each.error)
            click.secho(f"{each.job.target}: {name}{each.error.message}", fg="red", err=True)
    if failed:
        words = "the card was not written" if len(outcomes) == 1 else f"{len(failed)} of {len(outcomes)} cards were not"
        code = INTEGRITY if any(error.exit_code == INTEGRITY for error in failed) else failed[0].exit_code
        raise ImageError(words, hint="\n".join(dict.fromkeys(error.hint for error in failed)), code=code)
