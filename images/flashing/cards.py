"""Several cards at once, each in a thread, each with settings of its own; what fails on one stops no other."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from edge.card.location import FILE
from edge.card.resource import Card
from images.errors import INTERRUPTED, USAGE, ImageError
from images.flashing import writing
from images.flashing.devices import Disk
from images.flashing.image import Handed, boot_partition
from images.flashing.labels import Label

CARDS_MAX = 16
"""At once: readers at one machine's USB."""


class Job(NamedTuple):
    """One card."""

    target: Path
    disk: Disk | None
    """None: it is a file."""
    card: Card | None
    """Its settings; None: as the image has it."""


class Outcome(NamedTuple):
    """What became of one."""

    job: Job
    written: writing.Written | None
    error: ImageError | None


def jobs(targets: Sequence[tuple[Path, Disk | None]], cards: Sequence[Card], names: Sequence[str]) -> list[Job]:
    """Which settings go onto which card: in their order; `names`: of those cards alone. Raises ImageError."""
    if len(targets) > CARDS_MAX:
        raise ImageError(f"{CARDS_MAX} cards at once at most", code=USAGE)
    chosen = list(cards)
    if names:
        by_name = {each.name: each for each in cards}
        lacking = [name for name in names if name not in by_name]
        if lacking:
            raise ImageError(f"no settings are for {', '.join(lacking)}", hint=f"there are {_some(cards)}", code=USAGE)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:  # a token lets one gateway in
            raise ImageError(f"named twice: {', '.join(twice)}", hint="a gateway has one card", code=USAGE)
        chosen = [by_name[name] for name in names]
    if not cards:
        return [Job(target, disk, None) for target, disk in targets]
    if len(chosen) != len(targets):
        words = f"{_number(targets, 'card')}, and settings for {_number(chosen, 'gateway')}: {_some(chosen)}"
        raise ImageError(words, hint="--only NAME, once for each card, says which", code=USAGE)
    return [Job(target, disk, card) for (target, disk), card in zip(targets, chosen, strict=True)]


def write(handed: Handed, all_jobs: Sequence[Job], progress: Callable[[int, str, int], None]) -> list[Outcome]:
    """Write the cards. `progress`: as `writing.Progress`, with the number of the card before it.

    Ctrl-C ends the writing of each within a piece of it.
    """
    stopped = threading.Event()

    def one(number: int) -> Outcome:
        job = all_jobs[number]

        def shown(what: str, count: int) -> None:
            if stopped.is_set():
                raise ImageError("stopped: it starts nothing now", hint="do it again", code=INTERRUPTED)
            progress(number, what, count)

        try:
            changed = boot_partition(handed, FILE, job.card.text) if job.card is not None else {}
            with writing.opened(job.target, handed.layout.size, is_disk=job.disk is not None) as target:
                # A file may be copied onto several cards; each of these takes an id at its first start.
                disk_id = None if job.disk is None else fresh_disk_id()
                done = writing.flash(handed, target, changed, shown, disk_id=disk_id)
        except ImageError as error:
            return Outcome(job, None, error)
        return Outcome(job, done, None)

    with ThreadPoolExecutor(len(all_jobs)) as threads:
        begun = [threads.submit(one, number) for number in range(len(all_jobs))]
        try:
            wait(begun)
        except KeyboardInterrupt:
            stopped.set()
        return [each.result() for each in begun]


def fresh_disk_id() -> bytes:
    """Make an id for a card. Zero would mean that it has none."""
    return (secrets.randbelow((1 << 32) - 1) + 1).to_bytes(4, "little")


def label(outcome: Outcome, image: str) -> Label:
    """Of a card with settings."""
    card, disk = outcome.job.card, outcome.job.disk
    where = disk.serial if disk is not None and disk.serial else outcome.job.target.name
    if card is None:
        return Label("Waypost", "", "", "", image, where)
    hub = card.spec.hub.url if card.spec.hub is not None else "no hub"
    address = card.spec.cable.address if card.spec.cable is not None else "DHCP"
    return Label(card.name, card.hostname, hub, address, image, where)


def estimated(handed: Handed) -> int:
    """Bytes that a card takes to be written and read back."""
    return 2 * handed.layout.mapped


def _number(of: Sequence[object], what: str) -> str:
    return f"{len(of)} {what}" if len(of) == 1 else f"{len(of)} {what}s"


def _some(cards: Sequence[Card]) -> str:
    names = [each.name for each in cards]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
