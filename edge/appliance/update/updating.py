"""Install an update, try it, and keep it or roll back, across restarts. Each step is on disk before the next one.

An installation ends by putting the new slot first in U-Boot's order. U-Boot then starts the new system until it is kept
or rolled back. After a power cut before that point the old system starts, and after it the trial begins. If the new
system does not boot, U-Boot starts the old one after some attempts, and `current_trial` records the failure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from bridge.version import VERSION
from edge.appliance.update.gate import GatewayCondition, UpdateGate, UpdateVerdict
from edge.appliance.update.limits import ATTEMPTS_MAX
from edge.appliance.update.record import State, Update, UpdateRecord
from edge.appliance.update.slots import BundleInfo, Rauc, SlotsError, SystemSlots

ReadCondition = Callable[[], GatewayCondition | None]
"""Returns the condition of the gateway on this machine."""

NOT_STARTED: Final = "it did not start: the boot loader returned to the old system"
BY_HAND: Final = "by hand"


class UpdateRefusal(enum.Enum):
    """Reason why a request was refused."""

    ON_TRIAL = "an update is on trial"
    NO_TRIAL = "no update is on trial"
    NOT_CONNECTED = "it waits for the connection to the hub"
    RUNNING = "the system runs already"
    ROLLED_BACK = "it was rolled back before"
    OTHER_BUNDLE = "the bundle is not the wanted one"
    NO_SYSTEM = "the other slot has no bootable system"


class UpdateRefused(Exception):
    """The request was refused; `hint` is the next step."""

    def __init__(self, reason: UpdateRefusal, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.hint = hint


class Updater:
    """Updates of one machine. Each method raises SlotsError and OSError."""

    def __init__(self, rauc: Rauc, record: UpdateRecord, read_condition: ReadCondition) -> None:
        self._rauc = rauc
        self._record = record
        self._read_condition = read_condition

    def install(self, file: str, *, again: bool = True) -> BundleInfo:
        """Write a bundle to the other slot, which then boots next. `again`: accept a bundle that is installed already
        or was rolled back. Raises UpdateRefused."""
        slots, last = self._rauc.slots(), self._record.last()
        if last is not None and last.state == "trial" and last.slot == slots.booted.letter:
            raise UpdateRefused(
                UpdateRefusal.ON_TRIAL,
                f"{last.version} is being tried",
                "end the trial: waypost update confirm, or waypost update rollback",
            )
        bundle, condition = self._rauc.inspect(file), self._read_condition()
        connected = condition is not None and condition.connected
        waits = last is not None and last.state == "cut off" and last.waits_for_hub and last.build == bundle.build
        if not again:
            if waits and not connected:
                raise UpdateRefused(
                    UpdateRefusal.NOT_CONNECTED,
                    f"{bundle.version} will be tried again when the gateway is connected to its hub",
                    "wait, it is retried automatically; for a USB stick, insert it again",
                )
            if bundle.build and bundle.build == slots.booted.build:
                raise UpdateRefused(UpdateRefusal.RUNNING, f"{bundle.version} is already running")
            if last is not None and last.state == "given up" and last.build == bundle.build:
                words = f"{bundle.version} failed before and was rolled back: {last.why}"
                raise UpdateRefused(UpdateRefusal.ROLLED_BACK, words)
        update = msgspec.structs.replace(
            self._new_update(bundle),
            errors=() if condition is None else tuple(sorted(condition.errors)),
            connected=connected or waits,  # otherwise a system without a working uplink would be kept
        )
        self._record.write(update)
        try:
            self._rauc.install(file)
        except SlotsError as error:
            self._record_interruption(update, str(error))
            raise
        self._record.write(msgspec.structs.replace(update, state="trial"))
        return bundle

    def install_wanted(self, file: str, wanted: BundleInfo) -> BundleInfo:
        """Install a bundle that must contain `wanted`, unless it was installed before. Record a failure for the report
        to the hub. Raises UpdateRefused."""
        last = self._record.last()
        if last is not None and last.undecided:
            raise UpdateRefused(UpdateRefusal.ON_TRIAL, f"{last.version} is being tried")
        try:
            found = self._rauc.inspect(file)
        except SlotsError as error:
            self._record_interruption(self._new_update(wanted), str(error))
            raise
        if found != wanted:
            why = f"its bundle contains {found.version}, build {found.build[:16]}, instead of build {wanted.build[:16]}"
            self._record_failure(self._new_update(wanted), why)
            raise UpdateRefused(UpdateRefusal.OTHER_BUNDLE, why)
        return self.install(file, again=False)

    def current_trial(self) -> Update | None:
        """Return the update that is on trial in the running system, or None. Record an update that did not start."""
        slots, last = self._rauc.slots(), self._record.last()
        if last is None or not last.undecided:
            return None
        if last.slot == slots.booted.letter:
            if last.state == "installing":  # power cut between RAUC's switch and the record
                last = msgspec.structs.replace(last, state="trial")
                self._record.write(last)
            return last
        if last.state == "trial" or slots.first == slots.other.name:
            self._rauc.start_first("booted")
            self._record_failure(msgspec.structs.replace(last, ran=True), NOT_STARTED)
        else:
            self._record_interruption(last, "it was not installed completely")
        return None

    def gate(self, update: Update, began: float) -> UpdateGate:
        """Return the gate of a trial, for `step`. `began`: start of this system, in monotonic seconds."""
        return UpdateGate(began, errors=update.errors, connected=update.connected)

    def step(self, gate: UpdateGate, now: float) -> UpdateVerdict:
        """Check the gateway and carry out the verdict. After GO_BACK the caller must restart the machine."""
        update = self._record.last()
        if update is None or update.state != "trial":  # a command has decided in the meantime
            return UpdateVerdict.KEEP
        verdict = gate.update(now, self._read_condition())
        if verdict is UpdateVerdict.KEEP:
            self._keep(update)
        elif verdict is UpdateVerdict.GO_BACK:
            self._go_back(update, gate.lacking, again=gate.lacks_only_the_hub)
        return verdict

    def confirm(self) -> Update:
        """Keep the update on trial. Raises UpdateRefused."""
        slots, last = self._rauc.slots(), self._record.last()
        if last is None or last.state != "trial" or last.slot != slots.booted.letter:
            raise UpdateRefused(UpdateRefusal.NO_TRIAL, "no update is being tried")
        return self._keep(last)

    def rollback(self, why: str = BY_HAND) -> SystemSlots:
        """Select the other slot for the next start; the caller must restart the machine. Raises UpdateRefused."""
        slots, last = self._rauc.slots(), self._record.last()
        if not (slots.other.good and slots.other.has_system):
            raise UpdateRefused(
                UpdateRefusal.NO_SYSTEM,
                f"slot {slots.other.letter} has no bootable system",
                "install a bundle: waypost update install",
            )
        if last is not None and last.slot == slots.booted.letter:
            self._go_back(last, why)
        else:
            self._rauc.start_first("other")
        return slots

    def _keep(self, update: Update) -> Update:
        """Record the update as kept. First restore its boot attempts, which every kept slot needs."""
        self._rauc.mark_good()
        kept = msgspec.structs.replace(update, state="kept")
        self._record.write(kept)
        return kept

    def _go_back(self, update: Update, why: str, *, again: bool = False) -> None:
        """Select the old system. Change the boot order first, so that the old system detects the failed update after an
        interruption. `again`: the update may be retried a few times, once the hub is reachable."""
        self._rauc.start_first("other")
        self._rauc.mark_bad("booted")
        tried = msgspec.structs.replace(update, ran=True)
        if again:
            self._record_interruption(msgspec.structs.replace(tried, waits_for_hub=True), why)
        else:
            self._record_failure(tried, why)

    def _new_update(self, bundle: BundleInfo) -> Update:
        """Return the record of a new update to this bundle."""
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

    def _record_interruption(self, update: Update, why: str) -> None:
        """Record an interruption, after which the update can be retried a few times."""
        state: State = "cut off" if update.begun < ATTEMPTS_MAX else "given up"
        self._record.write(msgspec.structs.replace(update, state=state, why=why))

    def _record_failure(self, update: Update, why: str) -> None:
        self._record.write(msgspec.structs.replace(update, state="given up", why=why))
