"""The two slots of a card, as RAUC tells of them and changes them (rauc(8), version 1.8)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

RAUC: Final = "rauc"
ANSWER_S: Final = 60.0
"""Of what RAUC only looks up. Installing has no bound: cards are slow."""
SAID_CHARACTERS: Final = 2000
"""Of what RAUC said, how much an error shows."""


class SlotsError(Exception):
    """RAUC did not do it; the message is what it said."""


class SystemSlot(NamedTuple):
    """A root file system."""

    name: str
    """RAUC's: ``rootfs.0``."""
    letter: str
    """U-Boot's: A or B."""
    good: bool
    """U-Boot would start it."""
    version: str
    """Of the bundle in it; empty where none was installed: it is what the card was made with, or nothing."""
    build: str
    """SHA-256 of its file system, by that bundle."""

    @property
    def holds_a_system(self) -> bool:
        """A card is made with one in slot A; B is empty until the first update."""
        return self.letter == "A" or bool(self.version)


class SystemSlots(NamedTuple):
    """Both."""

    booted: SystemSlot
    other: SystemSlot
    first: str
    """Name of the one U-Boot tries first."""


class BundleInfo(NamedTuple):
    """What is in a file, whose signature is good."""

    version: str
    build: str


class Rauc:
    """The program. Each method raises SlotsError."""

    def __init__(self, command: Sequence[str] = (RAUC,)) -> None:
        self._command = command

    def slots(self) -> SystemSlots:
        """As they are now."""
        told = _document(self._said("status", "--detailed", "--output-format=json"))
        found = list(_slots(told))
        booted = [slot for slot in found if slot.letter == told.get("booted")]
        others = [slot for slot in found if slot.letter != told.get("booted")]
        if len(booted) != 1 or len(others) != 1:
            raise SlotsError("RAUC names no slot that runs and one beside it: is this a gateway from a card?")
        return SystemSlots(booted[0], others[0], str(told.get("boot_primary") or ""))

    def look(self, file: str) -> BundleInfo:
        """Verify a bundle's signature, and that it is for this kind of gateway."""
        told = _document(self._said("info", "--output-format=json", file))
        return BundleInfo(str(told.get("version") or ""), str(told.get("build") or ""))

    def install(self, file: str) -> None:
        """Write a bundle into the slot that does not run, which is then the one to start; minutes."""
        self._run("install", file, answer_s=None)

    def mark_good(self) -> None:
        """Give the slot that runs its tries back."""
        self._said("status", "mark-good")

    def mark_bad(self, which: str) -> None:
        """`which`: ``booted`` or ``other``: U-Boot does not start it any more."""
        self._said("status", "mark-bad", which)

    def start_first(self, which: str) -> None:
        """`which`: ``booted`` or ``other``: U-Boot tries it first."""
        self._said("status", "mark-active", which)

    def _said(self, *words: str) -> str:
        return self._run(*words, answer_s=ANSWER_S)

    def _run(self, *words: str, answer_s: float | None) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - RAUC, and a file's name
                [*self._command, *words], capture_output=True, text=True, timeout=answer_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SlotsError(f"RAUC cannot be asked: {error}") from None
        if done.returncode:
            raise SlotsError((done.stderr or done.stdout).strip()[-SAID_CHARACTERS:] or f"rauc ended {done.returncode}")
        return done.stdout


def _document(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SlotsError(f"RAUC said no JSON: {text.strip()[:200]!r}")
    return found


def _slots(told: Mapping[str, Any]) -> Iterator[SystemSlot]:
    for each in told.get("slots") or ():
        for name, slot in each.items():
            if slot.get("bootname"):
                bundle = (slot.get("slot_status") or {}).get("bundle") or {}
                good = slot.get("boot_status") == "good"
                version, build = str(bundle.get("version") or ""), str(bundle.get("build") or "")
                yield SystemSlot(name, slot["bootname"], good, version, build)
