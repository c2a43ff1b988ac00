"""`waypost flash`: verify an image, write it sparsely onto cards, and read it back."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from edge.output.listing import JsonOutput, json_option
from images import table
from images.errors import INTEGRITY, USAGE, ImageError
from images.options import CACHE_VARIABLE
from images.prompts import ask
from images.steps import default_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge.card.resource import Card
    from images.flashing.cards import CardJob, CardResult
    from images.flashing.devices import Disk
    from images.flashing.image import VerifiedImage
    from images.flashing.labels import Label

_GIVEN = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("img", metavar="[IMG]", type=click.Path(path_type=Path), required=False)
@click.argument("targets", metavar="[DEVICE]…", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--list", "listing", is_flag=True, help="List the cards of this machine, and why other disks are refused."
)
@json_option("disk")
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
@click.option("--allow-loop", is_flag=True, hidden=True, help="Accept a loop device as a card, for tests.")
def flash(
    img: Path | None,
    targets: tuple[Path, ...],
    listing: bool,
    as_json: JsonOutput | None,
    config: Path | None,
    base: Path | None,
    names: tuple[str, ...],
    labels: Path | None,
    certificate: Path | None,
    unsigned: bool,
    yes: bool,
    allow_loop: bool,
) -> None:
    """Write an image onto cards and verify it. The target may be a file.

    Nothing is changed before the image's signature is verified, and every DEVICE is known to be an unused card.
    Without DEVICE the cards of this machine are listed. After an interruption the card does not start.

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
    settings = _load_cards(config, base)
    own = None if certificate is not None else _find_own_certificate()
    handed = image.verify_image(img, certificate or own, signed=not unsigned, own=own is not None)
    jobs = several.assign_jobs(
        [(each, _check_target(each, handed, loop=allow_loop)) for each in targets], settings, names
    )
    if len({each.target.resolve() for each in jobs}) < len(jobs):
        raise ImageError("a card is named twice", code=USAGE)
    for given in (each for each in (img, config, base, labels, certificate) if each is not None):
        if any(each.target.resolve() == given.resolve() for each in jobs):
            raise ImageError(f"{given} would be overwritten", hint="name a card, or another file", code=USAGE)
    if not yes:
        _confirm(jobs)
    for each in jobs:  # cards may have been changed in the meantime
        if each.disk is not None and _check_target(each.target, handed, loop=allow_loop) != each.disk:
            raise ImageError(
                f"{each.target} was replaced by another card", hint="nothing was written; start again", code=USAGE
            )
    outcomes = _write_with_progress(handed, jobs)
    done = [several.make_label(each, img.name) for each in outcomes if each.written is not None]
    labelled = labels is None or _write_labels(labels, done)
    _report(outcomes)
    if not labelled:
        raise ImageError("the cards are written, the labels are not", hint="the lines above name the cards")


def _list_instead(img: Path | None, *, asked_for: bool, as_json: JsonOutput | None, writing: bool) -> None:
    """List the cards if none is named. Raises ImageError if options show that writing was intended."""
    if as_json and not asked_for:
        raise ImageError("--json requires --list", code=USAGE)
    if as_json:
        _print_json(as_json)
        return
    _list(None if asked_for else img)
    if writing and not asked_for:  # in a script, the list of cards was empty
        raise ImageError("no card is named, and none was written", hint=_EXAMPLE, code=USAGE)


def _check_options(config: Path | None, base: Path | None, names: Sequence[str], labels: Path | None) -> None:
    """Raise ImageError for options that do not fit together."""
    if base is not None and (config is None or not table.is_table(config)):
        raise ImageError("--base requires a CSV", code=USAGE)
    if names and config is None:
        raise ImageError("--only requires --config", code=USAGE)
    if labels is not None:
        _check_labels(labels)


_EXAMPLE: Final = "the image comes first: sudo waypost flash waypost-0.1.0-pi4.img.zst /dev/sdX"


def _require_image(img: Path | None) -> None:
    """Raise ImageError if the image is a device or not a file."""
    if img is not None and Path("/dev") in img.absolute().parents:
        raise ImageError(f"{img} is not an image", hint=_EXAMPLE, code=USAGE)
    if img is not None and not img.is_file():
        words = "is a folder" if img.is_dir() else "does not exist"
        raise ImageError(f"{img} {words}", hint=_EXAMPLE, code=USAGE)


def _find_own_certificate() -> Path | None:
    """Return the development certificate of this machine, if it builds images."""
    own = Path(os.environ.get(CACHE_VARIABLE) or default_cache()) / "development-key" / "certificate.pem"
    return own if own.is_file() else None


def _load_cards(config: Path | None, base: Path | None) -> Sequence[Card]:
    from images.card.settings import load_fleet, load_settings

    if config is None:
        return []
    if table.is_table(config):
        found = load_settings(base) if base is not None else None
        return [each.card for each in load_fleet(config, None if found is None else found.document)]
    written = load_settings(config)
    if written is None:
        raise ImageError(
            f"{config} has no settings: all lines are comments", hint="edit it and remove the comment signs", code=USAGE
        )
    return [written.card]


def _check_target(target: Path, handed: VerifiedImage, *, loop: bool) -> Disk | None:
    """Return the disk to overwrite; None for a file. Raises ImageError."""
    from images.flashing import devices

    if target.is_dir():
        raise ImageError(f"{target} is a folder", hint="name a card, or a file to create", code=USAGE)
    if target.is_file() or not target.exists():
        if Path("/dev") in target.absolute().parents:
            raise ImageError(f"{target} does not exist", hint="waypost flash --list shows the cards", code=USAGE)
        if not target.parent.is_dir():
            raise ImageError(f"{target}: the folder {target.parent} does not exist", hint="create it first", code=USAGE)
        return None
    disk = devices.find_disk(target, devices.list_disks())
    refused = devices.find_refusal(disk, handed.layout.size, loop=loop)
    if refused is not None:
        raise ImageError(refused[0], hint=refused[1], code=USAGE)
    return disk


def _print_json(as_json: JsonOutput) -> None:
    """Print the disks of this machine, with the reason against each; a card has none."""
    from images.flashing import devices

    listed = [(each, devices.find_refusal(each, 0)) for each in devices.hardware_disks(devices.list_disks())]
    as_json.show(
        [
            {"path": disk.path, "size": disk.size, "model": disk.model, "serial": disk.serial}
            | {"card": refused is None, "why": "" if refused is None else refused[0]}
            for disk, refused in listed
        ]
    )


def _list(img: Path | None) -> None:
    from images.flashing import devices

    shown = False
    for disk in devices.hardware_disks(devices.list_disks()):
        refused = devices.find_refusal(disk, 0)
        if refused is None:
            shown = True
            click.secho(disk.title, bold=True)
        else:
            click.secho(f"{disk.title}: not usable, {refused[0]}", dim=True)
    if not shown:
        click.echo("no card found: insert one; a reader without a card has 0 bytes")
    elif img is not None:
        called = click.get_current_context().command_path
        click.echo(f"name one: {shlex.join(('sudo', *called.split(), str(img)))} /dev/…")


def _confirm(jobs: Sequence[CardJob]) -> None:
    """Ask for the name of each card, so that no other one is overwritten. Raises ImageError."""
    for each in jobs:
        if each.disk is None and not each.target.exists():
            continue
        title = each.disk.title if each.disk is not None else f"{each.target}, a file"
        suffix = f" for {each.card.name}" if each.card is not None else ""
        click.echo(f"Everything on it will be lost: {title}{suffix}")
        typed = ask(f"To overwrite it, type {each.target}", "nothing was written; --yes skips this question")
        if typed != str(each.target):
            raise ImageError("nothing was written", hint="the names differ", code=USAGE)


def _write_with_progress(handed: VerifiedImage, jobs: Sequence[CardJob]) -> Sequence[CardResult]:
    """Write the cards, with a line for each on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from images.flashing import cards as several

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        tasks = [shown.add_task(str(each.target), total=several.estimate_bytes(handed)) for each in jobs]

        def progress(number: int, what: str, count: int) -> None:
            shown.update(tasks[number], advance=count, description=f"{jobs[number].target} {what}")

        return several.write_cards(handed, jobs, progress)


def _check_labels(target: Path) -> None:
    """Check that labels can be written, before a card is touched. Raises ImageError."""
    if target.is_dir() or not target.parent.is_dir():
        raise ImageError(f"{target} cannot be written", hint="name a file in a folder that is there", code=USAGE)
    try:
        import segno  # noqa: F401
    except ModuleNotFoundError as why:
        words = "labels need the Python package segno, which is not installed"
        raise ImageError(words, hint="pip install 'waypost[images]', or leave out --labels", code=USAGE) from why


def _write_labels(target: Path, labels: Sequence[Label]) -> bool:
    """Write the labels; return False if that failed."""
    import time

    from images.flashing.page import render_page

    try:
        target.write_text(render_page(labels, time.time()), encoding="utf-8")  # the page declares it
    except OSError as error:
        click.secho(f"{target}: {error.strerror}: no labels were written", fg="yellow", err=True)
        return False
    return True


def _report(outcomes: Sequence[CardResult]) -> None:
    """Print the results. Raises ImageError with the next step if a card failed."""
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
