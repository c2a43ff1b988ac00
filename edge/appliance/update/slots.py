"""The two slots of a card, read and changed by RAUC (rauc(8), version 1.8)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

RAUC: Final = "rauc"
ANSWER_S: Final = 60.0
"""Time limit of RAUC's queries. Installing has none, as cards are slow."""
OUTPUT_CHARACTERS_MAX: Final = 2000
"""Characters of RAUC's output in an error."""


class SlotsError(Exception):
    """RAUC failed; the message is its output."""


class SystemSlot(NamedTuple):
    """Slot with a root file system."""

    name: str
    """RAUC's name: ``rootfs.0``."""
    letter: str
    """U-Boot's name: A or B."""
    good: bool
    """True when U-Boot would start it."""
    version: str
    """Version of its bundle; empty when none was installed: it has the card's original system, or none."""
    build: str
    """SHA-256 of its file system, from the bundle."""

    @property
    def has_system(self) -> bool:
        """True when it has a system. Slot A always has one; B is empty until the first update."""
        return self.letter == "A" or bool(self.version)


class SystemSlots(NamedTuple):
    """Both slots."""

    booted: SystemSlot
    other: SystemSlot
    first: str
    """Name of the slot that U-Boot tries first."""


class BundleInfo(NamedTuple):
    """Content of a bundle with a valid signature."""

    version: str
    build: str


class Rauc:
    """Interface to the program `rauc`. Each method raises SlotsError."""

    def __init__(self, command: Sequence[str] = (RAUC,)) -> None:
        self._command = command

    def slots(self) -> SystemSlots:
        """Return the current state of the slots."""
        status = _document(self._query("status", "--detailed", "--output-format=json"))
        found = list(_slots(status))
        booted = [slot for slot in found if slot.letter == status.get("booted")]
        others = [slot for slot in found if slot.letter != status.get("booted")]
        if len(booted) != 1 or len(others) != 1:
            raise SlotsError("RAUC does not report a running slot and another one: is this a gateway from a card?")
        return SystemSlots(booted[0], others[0], str(status.get("boot_primary") or ""))

    def inspect(self, file: str) -> BundleInfo:
        """Verify a bundle's signature, and that it is for this type of gateway."""
        info = _document(self._query("info", "--output-format=json", file))
        return BundleInfo(str(info.get("version") or ""), str(info.get("build") or ""))

    def install(self, file: str) -> None:
        """Write a bundle to the inactive slot, and select it for the next start. It takes minutes."""
        self._run("install", file, answer_s=None)

    def mark_good(self) -> None:
        """Restore the boot attempts of the running slot."""
        self._query("status", "mark-good")

    def mark_bad(self, which: str) -> None:
        """Keep U-Boot from starting a slot; `which`: ``booted`` or ``other``."""
        self._query("status", "mark-bad", which)

    def start_first(self, which: str) -> None:
        """Have U-Boot try a slot first; `which`: ``booted`` or ``other``."""
        self._query("status", "mark-active", which)

    def _query(self, *words: str) -> str:
        return self._run(*words, answer_s=ANSWER_S)

    def _run(self, *words: str, answer_s: float | None) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - RAUC, and a file's name
                [*self._command, *words], capture_output=True, text=True, timeout=answer_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SlotsError(f"RAUC cannot be run: {error}") from None
        if done.returncode:
            raise SlotsError(
                (done.stderr or done.stdout).strip()[-OUTPUT_CHARACTERS_MAX:] or f"rauc ended {done.returncode}"
            )
        return done.stdout


def _document(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SlotsError(f"RAUC did not print JSON: {text.strip()[:200]!r}")
    return found


def _slots(status: Mapping[str, Any]) -> Iterator[SystemSlot]:
    for each in status.get("slots") or ():
        for name, slot in each.items():
            if slot.get("bootname"):
                bundle = (slot.get("slot_status") or {}).get("bundle") or {}
                good = slot.get("boot_status") == "good"
                version, build = str(bundle.get("version") or ""), str(bundle.get("build") or "")
                yield SystemSlot(name, slot["bootname"], good, version, build)
