"""An update from its file to a decision, across starts; each step is on disk before it counts.

Installing ends with the new slot first in U-Boot's order, so from then on every start is one of the new system until
it is kept or given up. A power cut before that leaves the old system; one after it begins the trial. A new system
that does not come up uses its tries, and U-Boot starts the old one, which finds that out here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from bridge.version import VERSION
from edge.appliance.update.gate import GatewayCondition, UpdateGate, UpdateVerdict
from edge.appliance.update.limits import INSTALLED_MAX
from edge.appliance.update.record import State, Update, UpdateRecord
from edge.appliance.update.slots import BundleInfo, Rauc, SlotsError, SystemSlots

Look = Callable[[], GatewayCondition | None]
"""At the gateway that runs here."""

NOT_STARTED: Final = "it did not start: the boot loader went back by itself"
BY_HAND: Final = "by hand"


class UpdateRefused(Exception):
    """It is not done; `hint` says what would help."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Updater:
    """Of one machine. Each method raises SlotsError and OSError."""

    def __init__(self, rauc: Rauc, record: UpdateRecord, look: Look) -> None:
        self._rauc = rauc
        self._record = record
        self._look = look

    def install(self, file: str, *, again: bool = True) -> BundleInfo:
        """Write a bundle into the other slot, which is then the one to start. `again`: also one that is there, or was
        given up. Raises UpdateRefused."""
        slots, last = self._rauc.slots(), self._record.last()
        if last is not None and last.state == "trial" and last.slot == slots.booted.letter:
            raise UpdateRefused(f"{last.version} is being tried", "waypost edge update confirm, or rollback")
        bundle, seen = self._rauc.look(file), self._look()
        connected = seen is not None and seen.connected
        waits = last is not None and last.state == "cut off" and last.waits_for_hub and last.build == bundle.build
        if not again:
            if waits and not connected:
                words = f"{bundle.version} is tried again when the gateway is connected to its hub"
                raise UpdateRefused(words, "nothing: it is looked at again by itself; with a stick, put it in again")
            if bundle.build and bundle.build == slots.booted.build:
                raise UpdateRefused(f"{bundle.version} is what runs")
            if last is not None and last.state == "given up" and last.build == bundle.build:
                raise UpdateRefused(f"{bundle.version} was given up before: {last.why}")
        update = msgspec.structs.replace(
            self._begun(bundle),
            errors=() if seen is None else tuple(sorted(seen.errors)),
            connected=connected or waits,  # else a system that breaks the uplink would be kept the next time
        )
        self._record.write(update)
        try:
            self._rauc.install(file)
        except SlotsError as error:
            self._cut_off(update, str(error))
            raise
        self._record.write(msgspec.structs.replace(update, state="trial"))
        return bundle

    def install_wanted(self, file: str, wanted: BundleInfo) -> BundleInfo:
        """As `install` of a bundle that has to hold this, and is not installed again; that it cannot be is noted, for
        who wants it. Raises UpdateRefused."""
        last = self._record.last()
        if last is not None and last.undecided:
            raise UpdateRefused(f"{last.version} is being tried")
        try:
            found = self._rauc.look(file)
        except SlotsError as error:
            self._cut_off(self._begun(wanted), str(error))
            raise
        if found != wanted:
            why = f"its bundle holds {found.version}, build {found.build[:16]}, and not {wanted.build[:16]}"
            self._give_up(self._begun(wanted), why)
            raise UpdateRefused(why)
        return self.install(file, again=False)

    def started(self) -> Update | None:
        """What the system that has started is to show; None: nothing, no update is being tried in it.

        Of one that did not come up is noted that it was given up."""
        slots, last = self._rauc.slots(), self._record.last()
        if last is None or not last.undecided:
            return None
        if last.slot == slots.booted.letter:
            if last.state == "installing":  # the power went after RAUC had switched, before that was noted
                last = msgspec.structs.replace(last, state="trial")
                self._record.write(last)
            return last
        if last.state == "trial" or slots.first == slots.other.name:
            self._rauc.start_first("booted")
            self._give_up(msgspec.structs.replace(last, ran=True), NOT_STARTED)
        else:
            self._cut_off(last, "it was not installed whole")
        return None

    def gate(self, update: Update, began: float) -> UpdateGate:
        """For `step`. `began`: when this system was started, of a clock that does not jump."""
        return UpdateGate(began, errors=update.errors, connected=update.connected)

    def step(self, gate: UpdateGate, now: float) -> UpdateVerdict:
        """Look, and do what that decides; after GO_BACK the machine has to be started anew."""
        update = self._record.last()
        if update is None or update.state != "trial":  # somebody has decided meanwhile
            return UpdateVerdict.KEEP
        verdict = gate.see(now, self._look())
        if verdict is UpdateVerdict.KEEP:
            self._keep(update)
        elif verdict is UpdateVerdict.GO_BACK:
            self._go_back(update, gate.lacking, again=gate.lacks_only_the_hub)
        return verdict

    def confirm(self) -> Update:
        """Keep what is being tried. Raises UpdateRefused."""
        slots, last = self._rauc.slots(), self._record.last()
        if last is None or last.state != "trial" or last.slot != slots.booted.letter:
            raise UpdateRefused("no update is being tried")
        return self._keep(last)

    def rollback(self, why: str = BY_HAND) -> SystemSlots:
        """Let the other slot be the one to start; the machine has to be started anew. Raises UpdateRefused."""
        slots, last = self._rauc.slots(), self._record.last()
        if not (slots.other.good and slots.other.holds_a_system):
            raise UpdateRefused(
                f"slot {slots.other.letter} holds nothing that starts", "install a bundle: waypost edge update install"
            )
        if last is not None and last.slot == slots.booted.letter:
            self._go_back(last, why)
        else:
            self._rauc.start_first("other")
        return slots

    def _keep(self, update: Update) -> Update:
        """The tries first: a record that says `kept` of a slot without tries would be wrong."""
        self._rauc.mark_good()
        kept = msgspec.structs.replace(update, state="kept")
        self._record.write(kept)
        return kept

    def _go_back(self, update: Update, why: str, *, again: bool = False) -> None:
        """Let the old system start. The order of slots comes first: cut off after it, the old system finds an update
        that did not stay. `again`: it may start again, a few times, once the hub can be reached."""
        self._rauc.start_first("other")
        self._rauc.mark_bad("booted")
        tried = msgspec.structs.replace(update, ran=True)
        if again:
            self._cut_off(msgspec.structs.replace(tried, waits_for_hub=True), why)
        else:
            self._give_up(tried, why)

    def _begun(self, bundle: BundleInfo) -> Update:
        """An update to this, which begins now."""
        slots, last = self._rauc.slots(), self._record.last()
        again = last is not None and last.state == "cut off" and last.build == bundle.build
        return Update(
            slot=slots.other.letter,
            version=bundle.version,
            build=bundle.build,
            before=slots.booted.version or VERSION,
            state="installing",
            begun=last.begun + 1 if last is not None and again else 1,
        )

    def _cut_off(self, update: Update, why: str) -> None:
        """It can be begun again, a few times."""
        state: State = "cut off" if update.begun < INSTALLED_MAX else "given up"
        self._record.write(msgspec.structs.replace(update, state=state, why=why))

    def _give_up(self, update: Update, why: str) -> None:
        self._record.write(msgspec.structs.replace(update, state="given up", why=why))
