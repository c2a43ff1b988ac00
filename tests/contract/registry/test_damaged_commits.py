"""A damaged commit row stops no gateway: its ranges are read from the lake, or those of all gateways."""

from __future__ import annotations

from collections import Counter

import pytest

from cloud.lake.faults import RegistryError
from cloud.lake.lake import TransactionId
from cloud.lake.landing import Landing, LedgerRange
from cloud.lake.rows import record_rows, slices_of, telemetry_rows
from cloud.lake.sequences import SequenceRange
from tests.contract.registry.conftest import THERE, Place
from tests.contract.registry.landing_hub import LandingHub as Hub
from tests.contract.registry.landings import PUMP, TEMPERATURE, batch, sequences
from tests.support.memory_lake import MemoryLake


def damage(place: Place, table: str = "telemetry", commit: int = 1) -> None:
    """Flip one byte in the ranges of a commit."""
    [(packed,)] = place.execute(
        "SELECT moves FROM commits WHERE table_name = :name AND id = :id", name=table, id=commit
    )
    broken = bytes(packed[:-1]) + bytes([packed[-1] ^ 1])
    place.execute(
        "UPDATE commits SET moves = :moves WHERE table_name = :name AND id = :id", moves=broken, name=table, id=commit
    )


def states(place: Place) -> Counter[str]:
    return Counter(row[0] for row in place.execute("SELECT state FROM commits"))


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


@pytest.fixture
def hub(place: Place, lake: MemoryLake) -> Hub:
    """Return a hub that has landed of two gateways, and has not folded."""
    hub = Hub(place, lake)
    hub.connect("gw1", "gw2")
    hub.land(batch(TEMPERATURE, 0, 9))
    hub.land(batch(PUMP, 0, 4))
    return hub


class TestLanded:
    def test_fold_reads_the_ranges_from_the_lake(self, place: Place, hub: Hub) -> None:
        damage(place)
        hub.lander.fold()
        assert states(place) == {"confirmed": 2}
        assert hub.registry.commits.marks("default", "gw1").landed[TEMPERATURE].mark == 9

    def test_new_start_reads_them_too(self, place: Place, hub: Hub, lake: MemoryLake) -> None:
        damage(place)
        hub.registry.close()
        again = Hub(place, lake)
        again.connect("gw1", "gw2")
        again.land(batch(TEMPERATURE, 0, 12), batch(PUMP, 0, 5))
        assert sequences(lake, TEMPERATURE) == list(range(13))
        assert sequences(lake, PUMP) == list(range(6))

    @pytest.mark.parametrize("gateway", [TEMPERATURE, PUMP], ids=["of the commit", "another"])
    def test_hub_that_takes_over_reads_them_too(
        self, place: Place, hub: Hub, lake: MemoryLake, gateway: SequenceRange
    ) -> None:
        damage(place)
        other = Hub(place, lake, THERE)
        other.connect(gateway.gateway)
        other.land(batch(gateway.stream if isinstance(gateway, SequenceRange) else gateway, 0, 12))
        assert sequences(lake, TEMPERATURE) == list(range(13 if gateway is TEMPERATURE else 10))
        assert sequences(lake, PUMP) == list(range(13 if gateway is PUMP else 5))

    def test_ledger_is_read_from_the_lake(self, place: Place, lake: MemoryLake) -> None:
        hub = Hub(place, lake)
        hub.connect("gw1")
        log = hub.registry.commits
        prepared = log.prepare("ledger", [SequenceRange(*TEMPERATURE, 3, 4)], 1)
        row = dict(TEMPERATURE._asdict(), first_sequence=3, last_sequence=4, bytes=10, reason="expired", decided_at=1)
        lake.append("ledger", record_rows("ledger", [row], 1), TransactionId(log.application(prepared), 1))
        damage(place, "ledger")
        landing = Landing(lake, log)
        assert states(place) == {"confirmed": 1}
        assert landing.land_ledger([[LedgerRange(*TEMPERATURE, 3, 4, 10, "expired", 1)]], 1).new == 0

    def test_all_are_read_back_from_the_lake_without_its_file(self, place: Place, hub: Hub, lake: MemoryLake) -> None:
        """The file was compacted and deleted: its rows are in another one."""
        lake.lose("telemetry")
        damage(place)
        hub.lander.fold()
        assert states(place)["prepared"] == 0
        landing = Landing(lake, hub.registry.commits)
        hub.connect("gw1", "gw2")
        waiting = [batch(TEMPERATURE, 0, 12), batch(PUMP, 0, 6)]
        for _ in range(3):  # the first ones read the landed sequences back
            held = landing.land(waiting, 1_000).held
            waiting = [each for at, each in enumerate(waiting) if at in held]
        assert waiting == []
        assert sequences(lake, TEMPERATURE) == list(range(13))
        assert sequences(lake, PUMP) == list(range(7))


class TestUnknownOutcome:
    def test_commit_that_is_not_in_the_lake_is_forgotten(self, place: Place, hub: Hub, lake: MemoryLake) -> None:
        hub.registry.commits.prepare("telemetry", [SequenceRange(*TEMPERATURE, 10, 19)], 10)
        damage(place, commit=3)
        other = Hub(place, lake, THERE)
        other.connect("gw2")
        other.land(batch(PUMP, 0, 6))
        assert states(place)["forgotten"] == 1
        assert sequences(lake, PUMP) == list(range(7))

    def test_commit_that_is_in_the_lake_counts(self, place: Place, hub: Hub, lake: MemoryLake) -> None:
        """Its hub was killed before it could confirm it."""
        log = hub.registry.commits
        prepared = log.prepare("telemetry", [SequenceRange(*TEMPERATURE, 10, 19)], 10)
        slices = slices_of(batch(TEMPERATURE, 10, 19), [[(10, 19)]])
        lake.append("telemetry", telemetry_rows(slices, 1), TransactionId(log.application(prepared), prepared.commit))
        damage(place, commit=3)
        other = Hub(place, lake, THERE)
        other.connect("gw1")
        other.land(batch(TEMPERATURE, 0, 22))
        assert sequences(lake, TEMPERATURE) == list(range(23))

    def test_ledger_of_connected_gateways_does_not_wait_for_it(self, place: Place, hub: Hub, lake: MemoryLake) -> None:
        other = Hub(place, lake, THERE)
        other.connect("gw9")
        other.registry.commits.prepare("telemetry", [SequenceRange(*PUMP._replace(gateway="gw9"), 0, 9)], 10)
        place.execute("UPDATE commits SET moves = :moves WHERE writer = :writer", moves=b"x", writer=THERE)
        landing = Landing(lake, hub.registry.commits)
        assert landing.land_ledger([[LedgerRange(*TEMPERATURE, 30, 31, 1, "expired", 1)]], 1).new == 1

    def test_gateways_wait_while_another_lake_has_it(self, place: Place, hub: Hub, lake: MemoryLake) -> None:
        """Which of them it names is not known, and neither is its outcome."""
        hub.registry.commits.prepare("telemetry", [SequenceRange(*TEMPERATURE, 10, 19)], 10)
        damage(place, commit=3)
        other = Hub(place, MemoryLake("another"), THERE)
        other.connect("gw2")
        with pytest.raises(RegistryError, match="commit 3"):
            other.registry.commits.take_over([("default", "gw2")])
