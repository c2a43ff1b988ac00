"""Write several cards at once, each in a thread and with its own settings; a failure of one stops no other."""

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
from images.flashing.image import VerifiedImage, change_boot_partition
from images.flashing.labels import Label

CARDS_MAX = 16
"""Cards written at once: card readers on the USB of one machine."""
SIGNALS_S = 0.5
"""Longest delay of Ctrl-C, in seconds."""


class CardJob(NamedTuple):
    """One card to write."""

    target: Path
    disk: Disk | None
    """None: the target is a file."""
    card: Card | None
    """Settings to write; None: leave those of the image."""


class CardResult(NamedTuple):
    """Result of one card."""

    job: CardJob
    written: writing.WriteResult | None
    error: ImageError | None


def assign_jobs(
    targets: Sequence[tuple[Path, Disk | None]], cards: Sequence[Card], names: Sequence[str]
) -> list[CardJob]:
    """Assign settings to cards, in order. `names`: only these gateways, in this order. Raises ImageError."""
    if len(targets) > CARDS_MAX:
        raise ImageError(f"{CARDS_MAX} cards at once at most", code=USAGE)
    chosen = list(cards)
    if names:
        by_name = {each.name: each for each in cards}
        lacking = [name for name in names if name not in by_name]
        if lacking:
            raise ImageError(
                f"no settings are for {', '.join(lacking)}",
                hint=f"there are settings for {_list_names(cards)}",
                code=USAGE,
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:  # a token enrols one gateway
            raise ImageError(f"named twice: {', '.join(twice)}", hint="a gateway has one card", code=USAGE)
        chosen = [by_name[name] for name in names]
    if not cards:
        return [CardJob(target, disk, None) for target, disk in targets]
    if len(chosen) != len(targets):
        words = f"{_count(targets, 'card')}, and settings for {_count(chosen, 'gateway')}: {_list_names(chosen)}"
        raise ImageError(words, hint="--only NAME, once for each card, chooses them", code=USAGE)
    return [CardJob(target, disk, card) for (target, disk), card in zip(targets, chosen, strict=True)]


def write_cards(
    handed: VerifiedImage, all_jobs: Sequence[CardJob], progress: Callable[[int, str, int], None]
) -> list[CardResult]:
    """Write the cards. `progress`: as `writing.Progress`, preceded by the number of the card.

    Ctrl-C stops each card within one piece.
    """
    stopped = threading.Event()

    def one(number: int) -> CardResult:
        job = all_jobs[number]

        def shown(what: str, count: int) -> None:
            if stopped.is_set():
                raise ImageError("stopped: the card does not start now", hint="run the command again", code=INTERRUPTED)
            progress(number, what, count)

        try:
            changed = change_boot_partition(handed, FILE, job.card.text) if job.card is not None else {}
            with writing.open_target(job.target, handed.layout.size, is_disk=job.disk is not None) as target:
                # A file may be copied onto several cards; each of these takes an id at its first start.
                disk_id = None if job.disk is None else make_disk_id()
                done = writing.flash(handed, target, changed, shown, disk_id=disk_id)
        except ImageError as error:
            return CardResult(job, None, error)
        return CardResult(job, done, None)

    with ThreadPoolExecutor(len(all_jobs)) as threads:
        futures = [threads.submit(one, number) for number in range(len(all_jobs))]
        try:
            # A signal that arrives right before a wait does not wake it.
            while wait(futures, timeout=SIGNALS_S).not_done:
                pass
        except KeyboardInterrupt:
            stopped.set()
        return [each.result() for each in futures]


def make_disk_id() -> bytes:
    """Return a random id for a card. Zero would mean that it has none."""
    return (secrets.randbelow((1 << 32) - 1) + 1).to_bytes(4, "little")


def make_label(outcome: CardResult, image: str) -> Label:
    """Return the label of a card with settings."""
    card, disk = outcome.job.card, outcome.job.disk
    where = disk.serial if disk is not None and disk.serial else outcome.job.target.name
    if card is None:
        return Label("Waypost", "", "", "", image, where)
    hub = card.spec.hub.url if card.spec.hub is not None else "no hub"
    address = card.spec.cable.address if card.spec.cable is not None else "DHCP"
    return Label(card.name, card.hostname, hub, address, image, where)


def estimate_bytes(handed: VerifiedImage) -> int:
    """Return the bytes to write and to read back for one card."""
    return 2 * handed.layout.mapped


def _count(of: Sequence[object], what: str) -> str:
    return f"{len(of)} {what}" if len(of) == 1 else f"{len(of)} {what}s"


def _list_names(cards: Sequence[Card]) -> str:
    names = [each.name for each in cards]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
