"""An update on a card with power cuts before any change always ends with a good system."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.appliance.update.gate import GatewayCondition, UpdateVerdict
from edge.appliance.update.limits import ATTEMPTS_MAX, CHECK_INTERVAL_S, FILE_BYTES_MAX, HEALTHY_S, TRIAL_S
from edge.appliance.update.record import FILE, ON_TRIAL, Update, UpdateRecord
from edge.appliance.update.slots import BundleInfo, SlotsError
from edge.appliance.update.updating import Updater, UpdateRefusal, UpdateRefused
from tests.support.slots import Card, PowerCut

WELL = GatewayCondition(frozenset(), connected=True)
ALONE = GatewayCondition(frozenset(), connected=False)


@contextlib.contextmanager
def refused(reason: UpdateRefusal) -> Iterator[None]:
    """Expect a refusal for this reason."""
    with pytest.raises(UpdateRefused) as raised:
        yield
    assert raised.value.reason is reason


class Machine:
    """A gateway with its card, and its health under each system."""

    def __init__(self, root: Path, *, cut_before: int = 0) -> None:
        """Cut the power before the change with number `cut_before`, counted from 1; 0: no cut."""
        self._until_cut = cut_before
        self.card = Card(self._count)
        self.record = Counted(root, self)
        self.health: dict[str, GatewayCondition | None] = {"1": WELL, "2": WELL}
        self.cuts = 0

    def _count(self) -> None:
        self._until_cut -= 1
        if self._until_cut == 0:
            self.cuts += 1
            raise PowerCut

    def counted(self) -> None:
        self._count()

    @property
    def runs(self) -> str:
        held = self.card.holds[self.card.booted]
        assert held is not None
        return held.version

    def updating(self) -> Updater:
        return Updater(self.card, self.record, lambda: self.health[self.runs])

    def install(self, file: str = "bundle", *, again: bool = True) -> None:
        self.updating().install(file, again=again)

    def start(self) -> UpdateVerdict | None:
        """Power on and decide; return None when no trial was open."""
        self.card.power_on()
        updating = self.updating()
        tried = updating.current_trial()
        if tried is None:
            self.card.mark_good()
            return None
        gate, now = updating.gate(tried, 0.0), 0.0
        while (verdict := updating.step(gate, now)) is UpdateVerdict.WAIT:
            now += CHECK_INTERVAL_S
            assert now <= TRIAL_S
        return verdict

    def live(self) -> None:
        """Start until no decision is left, with any power cuts."""
        for _ in range(10):
            try:
                if self.start() is not UpdateVerdict.GO_BACK:
                    return
            except PowerCut:
                continue
        raise AssertionError("it never comes to rest")


class Counted(UpdateRecord):
    """Record with writes that a power cut may precede."""

    def __init__(self, root: Path, machine: Machine) -> None:
        super().__init__(root)
        self._machine = machine

    def write(self, update: Update) -> None:
        self._machine.counted()
        super().write(update)


def last(machine: Machine) -> Update:
    update = machine.record.last()
    assert update is not None
    return update


def test_good_system_is_kept(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install()
    assert (tmp_path / ON_TRIAL).read_text() == "B\n"
    assert (machine.start(), machine.runs, last(machine).state) == (UpdateVerdict.KEEP, "2", "kept")
    assert not (tmp_path / ON_TRIAL).exists()
    assert machine.card.tries["B"] == 3
    assert (machine.start(), machine.runs) == (None, "2")


@pytest.mark.parametrize("health", [
    None,
    GatewayCondition(frozenset({"store"}), connected=True),
    GatewayCondition(frozenset({"store"}), connected=False),
])  # fmt: skip
def test_unhealthy_system_is_rolled_back(tmp_path: Path, health: GatewayCondition | None) -> None:
    machine = Machine(tmp_path)
    machine.health["2"] = health
    machine.install()
    assert machine.start() is UpdateVerdict.GO_BACK
    assert (machine.start(), machine.runs, last(machine).state) == (None, "1", "given up")
    assert last(machine).why
    assert not (tmp_path / ON_TRIAL).exists()
    with refused(UpdateRefusal.ROLLED_BACK):
        machine.install(again=False)


def test_trial_during_an_outage_of_the_hub_is_repeated_afterwards(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install(again=False)
    machine.health = {"1": ALONE, "2": ALONE}
    assert machine.start() is UpdateVerdict.GO_BACK
    assert (machine.start(), machine.runs, last(machine).state) == (None, "1", "cut off")
    assert "not connected to its hub" in last(machine).why
    for _ in range(ATTEMPTS_MAX):  # each look of the service, and a stick that stays in
        with refused(UpdateRefusal.NOT_CONNECTED):
            machine.install(again=False)
    assert last(machine).begun == 1, "waiting does not count"
    machine.health = {"1": WELL, "2": WELL}
    machine.install(again=False)
    assert (machine.start(), machine.runs, last(machine).state) == (UpdateVerdict.KEEP, "2", "kept")


def test_system_without_uplink_is_dropped_after_some_trials(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.health["2"] = ALONE
    for begun in range(1, ATTEMPTS_MAX + 1):
        machine.install(again=False)
        assert machine.start() is UpdateVerdict.GO_BACK
        assert (machine.start(), machine.runs, last(machine).begun) == (None, "1", begun)
    assert (last(machine).state, last(machine).ran) == ("given up", True)
    with refused(UpdateRefusal.ROLLED_BACK):
        machine.install(again=False)


def test_manual_update_during_an_outage_still_requires_the_uplink(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install()
    machine.health = {"1": ALONE, "2": ALONE}
    machine.live()
    machine.install()
    assert last(machine).connected
    assert machine.start() is UpdateVerdict.GO_BACK


def test_system_that_does_not_start_is_detected_by_the_old_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.card.starts = lambda bundle: bundle.version == "1"
    machine.install()
    assert (machine.start(), machine.runs) == (None, "1")
    assert "did not start" in last(machine).why
    assert machine.card.order == ["A", "B"]


@pytest.mark.parametrize(
    ("cut_before", "good"), [*((cut, True) for cut in range(1, 9)), *((cut, False) for cut in range(1, 11))]
)
def test_power_cut_before_any_change_is_survived(tmp_path: Path, cut_before: int, good: bool) -> None:
    machine = Machine(tmp_path, cut_before=cut_before)
    machine.health["2"] = WELL if good else None
    with contextlib.suppress(PowerCut):
        machine.install()
    machine.live()
    assert machine.cuts == 1
    update = machine.record.last()
    assert update is None or not update.undecided
    if not good:
        assert machine.runs == "1"
    assert machine.card.tries[machine.card.booted] == 3
    assert not (tmp_path / ON_TRIAL).exists()


def test_manual_update_is_kept_or_rolled_back_by_hand(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with refused(UpdateRefusal.NO_TRIAL):
        machine.updating().confirm()
    machine.install()
    machine.card.power_on()
    machine.updating().current_trial()
    with refused(UpdateRefusal.ON_TRIAL):
        machine.install()
    assert machine.updating().confirm().state == "kept"
    with refused(UpdateRefusal.RUNNING):
        machine.install(again=False)
    machine.updating().rollback()
    assert (machine.start(), machine.runs, last(machine).why) == (None, "1", "by hand")


def test_unsigned_bundle_or_missing_fallback_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.card.tries["B"] = 0
    with refused(UpdateRefusal.NO_SYSTEM):
        machine.updating().rollback()
    with pytest.raises(SlotsError, match="signature"):
        machine.install("forged")
    assert machine.record.last() is None
    assert machine.card.order == ["A", "B"]


def test_another_system_follows_a_dropped_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.health["2"] = None
    machine.install()
    machine.live()
    machine.card.offered, machine.health["3"] = BundleInfo("3", "three"), WELL
    machine.install(again=False)
    assert (machine.start(), machine.runs) == (UpdateVerdict.KEEP, "3")


def test_unreadable_record_is_ignored(tmp_path: Path) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_bytes(b'{"slot": "B"')
    assert UpdateRecord(tmp_path).last() is None
    (tmp_path / FILE).write_bytes(b" " * FILE_BYTES_MAX + b"{}")
    assert UpdateRecord(tmp_path).last() is None


def test_trial_is_checked_often_enough() -> None:
    assert CHECK_INTERVAL_S * 2 < HEALTHY_S < TRIAL_S


WANTED = BundleInfo("2", "two")


class TestWanted:
    """Installation by the gateway's configuration, without an operator."""

    def test_wanted_system_is_kept(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path)
        machine.updating().install_wanted("bundle", WANTED)
        with refused(UpdateRefusal.ON_TRIAL):
            machine.updating().install_wanted("bundle", WANTED)
        assert (machine.start(), machine.runs) == (UpdateVerdict.KEEP, "2")
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o644, "the gateway's user tells its hub"

    def test_bundle_of_another_system_is_refused_for_good(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path)
        with refused(UpdateRefusal.OTHER_BUNDLE):
            machine.updating().install_wanted("bundle", BundleInfo("2", "else"))
        assert (last(machine).state, last(machine).build, last(machine).ran) == ("given up", "else", False)

    def test_unsigned_bundle_is_dropped_after_some_attempts(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path)
        for begun in range(1, ATTEMPTS_MAX + 1):
            with pytest.raises(SlotsError, match="signature"):
                machine.updating().install_wanted("forged", WANTED)
            assert last(machine).begun == begun
            assert last(machine).state == ("given up" if begun == ATTEMPTS_MAX else "cut off")
        assert machine.card.order == ["A", "B"]

    @pytest.mark.parametrize("cut_before", range(1, 9))
    def test_power_cuts_only_delay_the_installation(self, tmp_path: Path, cut_before: int) -> None:
        machine = Machine(tmp_path, cut_before=cut_before)
        for _ in range(4):
            with contextlib.suppress(PowerCut, UpdateRefused):
                machine.updating().install_wanted("bundle", WANTED)
            machine.live()
        assert machine.cuts == 1
        assert (machine.runs, last(machine).state) == ("2", "kept")

    def test_dropped_system_is_not_tried_again(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path)
        machine.health["2"] = None
        machine.updating().install_wanted("bundle", WANTED)
        machine.live()
        assert (machine.runs, last(machine).ran) == ("1", True)
        with refused(UpdateRefusal.ROLLED_BACK):
            machine.updating().install_wanted("bundle", WANTED)
