"""A registry that is an older copy, opened by a hub that has never written: as every pod does."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from cloud.hub.groups import Presence
from cloud.hub.registry.campaign_states import OLDER_COPY
from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import GatewaysMoved
from cloud.hub.registry.registry import Registry
from cloud.lake.delta import DeltaLake
from cloud.lake.faults import RegistryError
from cloud.lake.landing import LandedRanges, Landing, LedgerRange
from cloud.lake.sequences import SequenceRange, SequenceStream
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.contract.registry.copies import RegistryCopy
from tests.contract.registry.landings import PUMP, TEMPERATURE, batch
from tests.support.lake import rows

GATEWAYS = [(s.tenant, s.gateway) for s in (TEMPERATURE, PUMP)]
ANOTHER = "c" * 32


class Hub:
    """Hub on a registry and a lake of Delta tables."""

    def __init__(self, place: Place, lake: Path, writer: str) -> None:
        self.registry: Registry = place.open(writer)
        self.delta = DeltaLake(lake)
        self.registry.commits.write_to(self.delta)
        self.connect()
        self._landing = Landing(self.delta, self.registry.commits)

    def connect(self) -> None:
        """Connect the gateways to this hub."""
        self.registry.directory.presence({key: Presence("-", True, 1, 1) for key in GATEWAYS})

    def reconnect(self) -> None:
        """Lose the connection to the registry, as when its server ends."""
        database: Database = self.registry._database
        for forget in database.in_doubt:
            forget()
        database._engine.dispose()
        self.registry.size_bytes()

    def land(self, *batches: tuple[object, int, int]) -> None:
        """Land batches, also those of gateways that are held until their marks are known."""
        sent = [batch(*each) for each in batches]  # type: ignore[arg-type]
        for _ in range(3):
            held = self._landing.land(sent, 1_000).held
            sent = [each for place, each in enumerate(sent) if place in held]
            if not sent:
                return
        raise AssertionError("gateways are held")

    def land_ledger(self, first: int, last: int) -> LandedRanges:
        names = (*TEMPERATURE, first, last)
        return self._landing.land_ledger([[LedgerRange(*names, 1, "quota", 1)]], 1_000)

    def prepare(self, stream: SequenceStream, first: int, last: int) -> None:
        """Begin a landing, and do not finish it."""
        self.registry.commits.prepare("telemetry", [SequenceRange(*stream, first, last)], last - first + 1)


def landed(lake: Path, gateway: str) -> list[int]:
    """Return the sequences of a gateway in the lake, sorted."""
    return sorted(row["sequence"] for row in rows(lake, "telemetry") if row["gateway"] == gateway)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_hub_with_a_new_writer_id_lands_nothing_twice(place: Place, lake: Path) -> None:
    first = Hub(place, lake, HERE)
    first.land((TEMPERATURE, 0, 9), (PUMP, 0, 9))
    first.land_ledger(100, 109)
    copy = RegistryCopy(place)
    first.land((TEMPERATURE, 10, 19), (PUMP, 10, 12), (TEMPERATURE._replace(gateway="gw3"), 0, 4))
    first.land_ledger(110, 119)
    first.registry.close()
    copy.restore()

    pod = Hub(place, lake, THERE)
    assert pod.registry.commits.is_older_copy
    pod.land((TEMPERATURE, 5, 24), (PUMP, 0, 24), (TEMPERATURE._replace(gateway="gw3"), 0, 9))
    assert (landed(lake, "gw1"), landed(lake, "gw2")) == (list(range(25)), list(range(25)))
    assert landed(lake, "gw3") == list(range(10)), "the copy does not know this gateway"
    assert pod.land_ledger(110, 119).new == 0
    assert pod.land_ledger(100, 109).new == 0

    pod.registry.close()
    assert not Hub(place, lake, ANOTHER).registry.commits.is_older_copy, "the next hub finds it repaired"


def test_running_campaign_of_the_copy_is_paused(place: Place, lake: Path) -> None:
    """It was stopped after the copy was made."""
    first = Hub(place, lake, HERE)
    first.land((TEMPERATURE, 0, 9))
    row = {
        "id": "c1", "tenant": "acme", "made_at": 1, "made_by": "anna", "note": "", "name": "blinker",
        "version": "1.2.0",
        "devices_of": "acme", "soak_s": 1.0, "away_s": 1.0, "failures_max": 0, "enough_percent": 100, "wave": 0,
        "state": "running", "why": "", "stages": "[]", "closed": False,
    }  # fmt: skip
    place.execute(f"INSERT INTO campaigns ({', '.join(row)}) VALUES ({', '.join(':' + name for name in row)})", **row)
    copy = RegistryCopy(place)
    place.execute("UPDATE campaigns SET state = 'aborted', closed = :closed", closed=True)
    first.land((TEMPERATURE, 10, 19))
    first.registry.close()
    copy.restore()
    for _ in range(2):
        Hub(place, lake, THERE).registry.close()
        [(state, why, closed)] = place.execute("SELECT state, why, closed FROM campaigns")
        assert (state, why, bool(closed)) == ("paused", OLDER_COPY, False)
    events = place.execute("SELECT subject FROM events WHERE type = 'campaign.changed'")
    assert events == [("c1",)], "it is paused once"


def test_open_commit_of_the_copy_counts_only_if_the_lake_has_it(place: Place, lake: Path) -> None:
    """The lake has a later commit of the same writer, which does not tell that this one is there."""
    new = TEMPERATURE._replace(gateway="gw5")
    first = Hub(place, lake, HERE)
    first.prepare(new, 0, 4)
    copy = RegistryCopy(place)
    first.registry.close()
    again = Hub(place, lake, HERE)
    again.land((PUMP, 0, 9))
    again.registry.close()
    copy.restore()
    pod = Hub(place, lake, THERE)
    pod.land((new, 0, 4))
    assert landed(lake, "gw5") == list(range(5))


def test_running_hub_checks_after_its_connection_was_lost(place: Place, lake: Path) -> None:
    """Its gateways connect again, because the copy lacks what other hubs have landed since."""
    hub = Hub(place, lake, HERE)
    hub.land((TEMPERATURE, 0, 9))
    copy = RegistryCopy(place)
    other = Hub(place, lake, THERE)
    other.land((TEMPERATURE, 10, 19))
    other.registry.close()
    copy.restore()
    hub.reconnect()
    with pytest.raises(GatewaysMoved):
        hub.land((PUMP, 0, 4))
    assert hub.registry.commits.is_older_copy
    hub.connect()
    hub.land((TEMPERATURE, 5, 24), (PUMP, 0, 4))
    assert (landed(lake, "gw1"), landed(lake, "gw2")) == (list(range(25)), list(range(5)))


def test_copy_from_before_a_hub_knew_its_lake_gets_it(place: Place, lake: Path) -> None:
    """Else no other hub would settle what that hub leaves open, and its gateways would wait for it."""
    registry = place.open(THERE)
    copy = RegistryCopy(place)
    registry.close()
    there = Hub(place, lake, THERE)
    copy.restore()
    place.execute("UPDATE writers SET starts = 2")
    there.reconnect()
    assert there.registry.commits.take_over([]) == []
    there.connect()
    there.prepare(PUMP, 0, 4)
    here = Hub(place, lake, HERE)
    here.land((PUMP, 0, 9))
    assert landed(lake, "gw2") == list(range(10))


EVERYTHING: Final = "SELECT tenant, gateway, epoch, address, mark, checksum FROM marks ORDER BY 1, 2, 3, 4"


class TestLargeFleet:
    """The statements of the repair are bounded; an interrupted repair has not happened, and is made again."""

    STREAMS: Final = [TEMPERATURE._replace(gateway=f"many{n // 3}", address=f"a/{n}") for n in range(15)]
    AT_ONCE: Final = 2

    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("marks", "lake_check"):
            monkeypatch.setattr(f"cloud.hub.registry.{module}.REPAIRED_AT_ONCE", self.AT_ONCE)

    def older(self, place: Place, lake: Path) -> None:
        """Leave a registry that lacks the second half of what is in the lake."""
        first = Hub(place, lake, HERE)
        keys = sorted({stream[:2] for stream in self.STREAMS})
        first.registry.directory.presence({key: Presence("-", True, 1, 1) for key in keys})
        first.land(*((stream, 0, 4) for stream in self.STREAMS[:9]))
        first.registry.commits.fold()
        first.land_ledger(100, 109)
        copy = RegistryCopy(place)
        first.land(*((stream, 0, 9) for stream in self.STREAMS))
        for number in range(5):
            first.land_ledger(200 + number, 200 + number)
        first.registry.close()
        copy.restore()

    def check(self, pod: Hub, lake: Path) -> None:
        pod.registry.directory.presence({stream[:2]: Presence("-", True, 1, 1) for stream in self.STREAMS})
        pod.land(*((stream, 0, 12) for stream in self.STREAMS))
        found = Counter((row["address"], row["sequence"]) for row in rows(lake, "telemetry"))
        assert found == {(stream.address, sequence): 1 for stream in self.STREAMS for sequence in range(13)}
        assert pod.land_ledger(203, 203).new == 0

    def test_no_statement_grows_with_the_fleet(self, place: Place, lake: Path) -> None:
        self.older(place, lake)
        changed: list[int] = []

        def count(_tx: object, cursor: Any, text: str, *_: object) -> None:
            if text.startswith(("UPDATE marks", "UPDATE gateways", "INSERT INTO marks", "INSERT INTO ledgered")):
                changed.append(cursor.rowcount)

        sa.event.listen(sa.Engine, "after_cursor_execute", count)
        try:
            pod = Hub(place, lake, THERE)
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", count)
        assert pod.registry.commits.is_older_copy
        assert sum(changed) > 15
        assert max(changed) <= self.AT_ONCE
        self.check(pod, lake)

    @pytest.mark.parametrize("last", range(1, 17, 5))
    def test_interrupted_repair_is_made_again(self, place: Place, lake: Path, last: int) -> None:
        self.older(place, lake)
        left = [last]

        def interrupt(_tx: object, _cursor: object, text: str, *_: object) -> None:
            left[0] -= text.startswith(("UPDATE", "INSERT"))
            if left[0] < 0:
                raise RegistryError("the server has gone")

        before = place.execute(EVERYTHING)
        sa.event.listen(sa.Engine, "before_cursor_execute", interrupt)
        try:
            with suppress(RegistryError):
                Hub(place, lake, THERE)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", interrupt)
        place.close()  # as a hub does that cannot start
        assert left[0] < 0, "it was interrupted"
        assert place.execute(EVERYTHING) == before
        pod = Hub(place, lake, ANOTHER)
        self.check(pod, lake)
        pod.registry.close()
        assert not Hub(place, lake, HERE).registry.commits.is_older_copy
