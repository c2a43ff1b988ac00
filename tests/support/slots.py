"""Card with two slots as U-Boot and RAUC treat them, in memory: simulates `rauc` and boots."""

from __future__ import annotations

from collections.abc import Callable

from edge.appliance.update.slots import BundleInfo, Rauc, SlotsError, SystemSlot, SystemSlots

TRIES = 3
NAMES = {"A": "rootfs.0", "B": "rootfs.1"}


class PowerCut(Exception):
    """Ends all further actions."""


class Card(Rauc):
    """`before_change` is called before every change of persistent state."""

    def __init__(self, before_change: Callable[[], None] = lambda: None) -> None:
        super().__init__(("false",))
        self._before_change = before_change
        self.order = ["A", "B"]
        self.tries = {"A": TRIES, "B": TRIES}
        self.holds: dict[str, BundleInfo | None] = {"A": BundleInfo("1", "one"), "B": None}
        """None: a slot that does not boot."""
        self.starts: Callable[[BundleInfo], bool] = lambda _: True
        """Returns True when a system boots."""
        self.booted = "A"
        self.offered = BundleInfo("2", "two")

    def power_on(self) -> None:
        """Do what boot.cmd does until a system has booted."""
        for _ in range(20):
            able = [letter for letter in self.order if self.tries[letter] > 0]
            if not able:
                self.tries = {"A": TRIES, "B": TRIES}
                continue
            self.tries[able[0]] -= 1
            held = self.holds[able[0]]
            if held is not None and self.starts(held):
                self.booted = able[0]
                return
        raise AssertionError("this card starts nothing")

    def slots(self) -> SystemSlots:
        own, other = self._slot(self.booted), self._slot(self._beside())
        return SystemSlots(own, other, NAMES[self.order[0]])

    def inspect(self, file: str) -> BundleInfo:
        if file == "forged":
            raise SlotsError("signature verification failed")
        return self.offered

    def install(self, file: str) -> None:
        there = self._beside()
        self._change(lambda: self.tries.update({there: 0}))
        self._change(lambda: self.holds.update({there: None}))
        self._change(lambda: self.holds.update({there: self.offered}))
        self.start_first("other")

    def mark_good(self) -> None:
        self._change(lambda: self.tries.update({self.booted: TRIES}))

    def mark_bad(self, which: str) -> None:
        self._change(lambda: self.tries.update({self._named(which): 0}))

    def start_first(self, which: str) -> None:
        def change() -> None:
            letter = self._named(which)
            self.order = [letter, *(each for each in "AB" if each != letter)]
            self.tries[letter] = TRIES

        self._change(change)

    def _change(self, change: Callable[[], object]) -> None:
        self._before_change()
        change()

    def _beside(self) -> str:
        return "B" if self.booted == "A" else "A"

    def _named(self, which: str) -> str:
        return self.booted if which == "booted" else self._beside()

    def _slot(self, letter: str) -> SystemSlot:
        held = self.holds[letter]
        version, build = ("", "") if held is None else held
        return SystemSlot(NAMES[letter], letter, self.tries[letter] > 0, version, build)
