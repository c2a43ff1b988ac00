"""A registry that is an older copy of itself: restored, or on a standby that took over too early."""

from __future__ import annotations

import pytest

from cloud.hub.groups import Presence
from cloud.hub.registry.registry import Registry
from cloud.lake.landing import Landing
from tests.contract.registry.conftest import Place
from tests.contract.registry.landings import PUMP, TEMPERATURE, batch, sequences
from tests.support.memory_lake import MemoryLake
from tests.support.simulated_kill import SimulatedKill


def open_lake(place: Place, lake: MemoryLake, die_at: str = "") -> tuple[Registry, Landing]:
    def failpoint(step: str) -> None:
        if step == die_at:
            raise SimulatedKill

    registry = place.open()
    registry.commits.write_to(lake)
    return registry, Landing(lake, registry.commits, failpoint=failpoint)


@pytest.fixture
def lake(place: Place) -> MemoryLake:
    """Lake with three landings of two gateways, and a registry without the last two."""
    lake = MemoryLake()
    registry, landing = open_lake(place, lake)
    registry.directory.presence({(s.tenant, s.gateway): Presence("-", True, 1, 1) for s in (TEMPERATURE, PUMP)})
    landing.land([batch(TEMPERATURE, 0, 9), batch(PUMP, 0, 9)], 1_000)
    before = place.execute("SELECT gateway, mark, spans, checksum FROM marks")
    landing.land([batch(TEMPERATURE, 10, 19)], 1_000)
    landing.land([batch(PUMP, 10, 19)], 1_000)
    registry.close()
    place.execute("DELETE FROM commits WHERE id > 1")
    for gateway, mark, spans, checksum in before:
        values = {"gateway": gateway, "mark": mark, "spans": spans, "checksum": checksum}
        place.execute(
            "UPDATE marks SET mark = :mark, spans = :spans, checksum = :checksum WHERE gateway = :gateway", **values
        )
    return lake


def test_landed_marks_are_read_back(place: Place, lake: MemoryLake) -> None:
    """Gateways without an answer send again: no message lands twice, and new ones land."""
    registry, landing = open_lake(place, lake)
    assert registry.commits.is_older_copy
    assert place.execute("SELECT count(*) FROM events WHERE type = 'registry.copied'") == [(1,)]
    sent = [batch(TEMPERATURE, 0, 24), batch(PUMP, 5, 24)]
    assert set(landing.land(sent, 1_000).held) == {0, 1}, "held until it is known"
    assert landing.land(sent, 1_000).held == {}
    assert sequences(lake, TEMPERATURE) == sequences(lake, PUMP) == list(range(25))


def test_landed_marks_of_a_gateway_newer_than_the_copy_are_read_back(
    place: Place, lake: MemoryLake, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry has no row of the gateway; for an unknown gateway nothing is stored."""
    landed, new = TEMPERATURE._replace(gateway="gw3"), TEMPERATURE._replace(gateway="gw4")
    registry, landing = open_lake(place, lake)
    landing.land([batch(landed, 0, 9)], 1_000)
    registry.close()
    place.execute("DELETE FROM commits WHERE id > 1")
    place.execute("DELETE FROM marks WHERE gateway = 'gw3'")
    _, landing = open_lake(place, lake)
    sent = [batch(landed, 0, 14), batch(new, 0, 4)]
    assert set(landing.land(sent, 1_000).held) == {0}
    assert landing.land(sent, 1_000).held == {}
    assert (sequences(lake, landed), sequences(lake, new)) == (list(range(15)), list(range(5)))
    assert "is not known: the registry was an older copy: rebuilding it from the lake" in caplog.text
    assert "damaged" not in caplog.text


def test_failed_commit_is_not_taken_for_an_earlier_one(place: Place, lake: MemoryLake) -> None:
    """The hub was killed after its first prepare; the lake has other commits with that number and higher ones."""
    registry, landing = open_lake(place, lake, die_at="prepared")
    new = TEMPERATURE._replace(gateway="gw3")
    with pytest.raises(SimulatedKill):
        landing.land([batch(new, 0, 4)], 1_000)
    registry.close()
    registry, landing = open_lake(place, lake)
    assert registry.commits.landed(new).mark == -1
    assert landing.land([batch(new, 0, 4)], 1_000).rows == 5
    registry.close()
    _, landing = open_lake(place, lake)
    assert landing.land([batch(new, 0, 9)], 1_000).rows == 5, "once is enough"
