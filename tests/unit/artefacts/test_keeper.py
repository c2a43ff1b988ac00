"""Artefacts that a gateway fetches: once, verified, in the quiet lane, and never before its messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.artefacts.faults import ArtefactFault
from bridge.pace import Pacer, PaceSettings
from edge.appliance.artefacts import index
from edge.appliance.artefacts.keeper import ArtefactKeeper, CardRoom
from edge.appliance.artefacts.limits import (
    EVICTION_MARGIN_BYTES,
    FETCH_MARGIN_BYTES,
    HEADER_BYTES,
    MANIFEST_CHECK_S,
    RANGE_BYTES,
    REFUSED_RETRY_S,
    WRONG_IMAGES_MAX,
)
from tests.support.artefact_gateway import NOON, ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.artefacts import IMAGE, KEY, OTHER_KEY, sealed

LARGE = random.Random(7).randbytes(2 * RANGE_BYTES + 1_000)
FLOOR = 10 << 20
BLINKER = {"name": "blinker", "version": "1.2.0"}


@pytest.fixture
def hub() -> Iterator[ArtefactHubServer]:
    with ArtefactHubServer() as made:
        yield made


@pytest.fixture
def gateway(tmp_path: Path, hub: ArtefactHubServer) -> ArtefactGateway:
    made = ArtefactGateway(tmp_path / "data", hub.port)
    made.want()
    return made


def test_artefact_is_fetched_once_in_ranges(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add(LARGE)
    assert gateway.fetch() == [LARGE]
    assert hub.ranges() == [
        f"bytes=0-{RANGE_BYTES - 1}",
        f"bytes={RANGE_BYTES}-{2 * RANGE_BYTES - 1}",
        f"bytes={2 * RANGE_BYTES}-{len(LARGE) - 1}",
    ]
    assert gateway.last[1] == []
    asked = len(hub.asked)
    assert gateway.fetch() == [LARGE], "after another start"
    assert len(hub.asked) == asked


def test_fetch_continues_after_breaks(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add(LARGE)
    hub.cuts = [1_000, 0]
    assert gateway.fetch() == [LARGE]
    assert [each.partition("-")[0] for each in hub.ranges()] == [
        "bytes=0",
        "bytes=1000",
        "bytes=1000",
        f"bytes={RANGE_BYTES + 1_000}",
        f"bytes={2 * RANGE_BYTES + 1_000}",
    ][: len(hub.ranges())], "what has arrived is kept"
    assert len(hub.ranges()) == 4


def test_other_endpoint_is_asked_after_a_failure(tmp_path: Path, hub: ArtefactHubServer) -> None:
    with ArtefactHubServer() as away:
        away.statuses = [503]
        gateway = ArtefactGateway(tmp_path / "data", away.port, hub.port)
        gateway.want()
        hub.add()
        assert gateway.fetch() == [IMAGE]
        assert len(away.asked) == 1


@pytest.mark.parametrize("status", [404, 409])
def test_artefact_that_the_hub_does_not_have_is_a_problem(
    gateway: ArtefactGateway, hub: ArtefactHubServer, status: int
) -> None:
    hub.statuses = [status]
    assert "at the hub" in gateway.problem("hub") or "does not have" in gateway.last[1][0]
    hub.add()
    assert gateway.fetch() == [IMAGE]
    assert gateway.last[1] == []


@pytest.mark.parametrize(
    ("envelope", "entry", "fault"),
    [
        (sealed(key=OTHER_KEY), {}, ArtefactFault.UNKNOWN_KEY),
        (sealed()[:-1] + bytes([sealed()[-1] ^ 1]), {}, ArtefactFault.FORGED),
        (sealed(name="other"), {}, ArtefactFault.FORGED),
        (sealed()[:-10], {}, ArtefactFault.TRUNCATED),
        (bytes(20_000), {}, ArtefactFault.TOO_LARGE),
        (bytes(2), {}, ArtefactFault.MALFORMED),
        (sealed(), {"boards": ["esp32"]}, ArtefactFault.WRONG_BOARD),
        (sealed(not_before=int(NOON) + 10**6), {}, ArtefactFault.NOT_YET_VALID),
    ],
)
def test_refused_manifest_costs_no_image(
    gateway: ArtefactGateway, hub: ArtefactHubServer, envelope: bytes, entry: dict[str, object], fault: ArtefactFault
) -> None:
    gateway.want(BLINKER | entry)
    hub.add(envelope=envelope)
    assert "blinker 1.2.0" in gateway.problem(f"({fault.value})")
    gateway.settle()
    assert hub.ranges() == []
    assert len(hub.asked) == 2, "one after each start, until an hour is over"
    assert gateway.last[0] == {}


def test_refused_manifest_is_replaced(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add(envelope=sealed(key=OTHER_KEY))
    gateway.problem("unknown-key")
    hub.add()
    begin = gateway.now
    assert gateway.fetch() == [IMAGE]
    assert gateway.now - begin < REFUSED_RETRY_S, "a start asks at once"


def test_artefact_is_not_yet_valid_only_by_a_good_clock(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    gateway.clock_good = False
    hub.add(envelope=sealed(not_before=int(NOON) + 10**6))
    assert gateway.fetch() == [IMAGE]


def test_wrong_image_is_refused(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    hub.files["blinker/1.2.0/image"] = IMAGE[:-1] + b"x"
    gateway.problem("(forged)")
    assert len(hub.ranges()) == WRONG_IMAGES_MAX
    gateway.settle()
    assert len(hub.ranges()) == WRONG_IMAGES_MAX, "also after a start"
    assert list((gateway.data / "artefacts").glob("*.part")) == []
    hub.add(version="1.2.0", sequence=13)
    assert gateway.fetch() == [IMAGE], "another manifest is another image"


@pytest.mark.parametrize(("image", "fault"), [(IMAGE[:-1], "truncated"), (IMAGE + b"x", "too-large")])
def test_image_of_another_size_is_refused(
    gateway: ArtefactGateway, hub: ArtefactHubServer, image: bytes, fault: str
) -> None:
    hub.add()
    hub.files["blinker/1.2.0/image"] = image
    gateway.problem(f"({fault})")


def test_downgrade_is_refused(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    hub.add(version="1.1.0", sequence=11)
    hub.add(version="1.0.0", sequence=10)
    gateway.want({"name": "blinker", "version": "1.1.0"}, BLINKER)
    gateway.fetch("1.1.0", "1.2.0")
    gateway.want({"name": "blinker", "version": "1.0.0"})
    assert "blinker 1.0.0" in gateway.problem("(downgraded)")
    gateway.want({"name": "blinker", "version": "1.1.0"})
    assert gateway.fetch("1.1.0") == [IMAGE], "what was held before may come back"


def test_image_that_is_not_wanted_is_deleted(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    gateway.fetch()
    gateway.want({"name": "other", "version": "1"})
    gateway.settle()
    assert list((gateway.data / "artefacts").glob("*.image")) == []


def test_key_that_is_not_trusted_any_more(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    gateway.fetch()
    gateway.want(keys=[OTHER_KEY.public.pem])
    gateway.problem("(unknown-key)")
    assert gateway.last[0] == {}
    hub.add(envelope=sealed(key=OTHER_KEY))
    assert gateway.fetch() == [IMAGE]
    assert len(hub.ranges()) == 1, "the image is the same"


def test_messages_need_the_room(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    gateway.room = CardRoom(FLOOR + FETCH_MARGIN_BYTES + len(IMAGE), FLOOR)
    gateway.fetch()
    gateway.room = CardRoom(FLOOR + EVICTION_MARGIN_BYTES, FLOOR)
    assert gateway.settle() == [], "at the margin it stays"
    gateway.room = CardRoom(FLOOR + EVICTION_MARGIN_BYTES - 1, FLOOR)
    gateway.problem("no room")
    assert list((gateway.data / "artefacts").glob("*.image")) == []
    gateway.room = CardRoom(FLOOR + FETCH_MARGIN_BYTES + len(IMAGE) - 1, FLOOR)
    gateway.settle()
    assert len(hub.ranges()) == 1, "it does not come back as long as it would leave again"
    gateway.room = CardRoom(FLOOR + FETCH_MARGIN_BYTES + len(IMAGE), FLOOR)
    assert gateway.fetch() == [IMAGE]


def test_images_have_a_limit(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    hub.add(version="1.3.0", sequence=13)
    both = [BLINKER, {"name": "blinker", "version": "1.3.0"}]
    gateway.want(*both, storage={"bytes": 2 * len(IMAGE) - 1})
    assert "1.3.0" in gateway.problem("storage.bytes")
    gateway.fetch("1.2.0")
    gateway.want(*both, storage={"bytes": 2 * len(IMAGE)})
    gateway.fetch("1.2.0", "1.3.0")


def test_budget_of_the_connector_counts(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    gateway.pacer = Pacer(PaceSettings(monthly_budget=1 << 20), "", utc_s=lambda: NOON)
    gateway.fetch()
    assert gateway.pacer.spent.bytes == len(sealed()) + len(IMAGE) + 2 * HEADER_BYTES
    gateway.pacer.count_bytes(1 << 20)
    gateway.want({"name": "blinker", "version": "1.3.0"})
    asked = len(hub.asked)
    gateway.settle()
    assert len(hub.asked) == asked, "the budget is used up"


def test_rate_bounds_each_request(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    gateway.want(rate=1_000)
    begin = gateway.now
    gateway.fetch()
    assert hub.ranges()[0] == "bytes=0-999"
    assert gateway.now - begin > len(IMAGE) / 1_000


def test_nothing_is_fetched_in_quiet_hours_or_without_the_uplink(
    gateway: ArtefactGateway, hub: ArtefactHubServer
) -> None:
    hub.add()
    gateway.want(quietHours="11:00-14:00")
    gateway.settle()
    gateway.want()
    gateway.connected = False
    gateway.settle()
    assert hub.asked == []


def test_damaged_index_costs_a_fetch(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.add()
    gateway.fetch()
    (gateway.data / "artefacts" / "index.db").write_bytes(b"no database" * 1_000)
    assert gateway.fetch() == [IMAGE]
    assert len(hub.ranges()) == 2


def test_index_of_a_newer_program_is_left_alone(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    import sqlite3  # noqa: PLC0415

    hub.add()
    gateway.fetch()
    with sqlite3.connect(gateway.data / "artefacts" / "index.db") as changed:
        changed.execute("PRAGMA user_version = 99")
    gateway.problem("update Waypost")
    assert list((gateway.data / "artefacts").glob("*.image")) != []


def test_gateway_without_a_hub_says_so(gateway: ArtefactGateway) -> None:
    gateway.connectors = []
    gateway.problem("no connector to a hub")


def test_gateway_without_artefacts_has_no_folder(tmp_path: Path) -> None:
    gateway = ArtefactGateway(tmp_path / "data")
    gateway.data.mkdir()
    gateway.settle()
    assert not (gateway.data / "artefacts").exists()


class TestSignedAgain:
    """A version that was signed again with another image."""

    NEW = b"signed again" * 400
    KEYS = (KEY.public.pem, OTHER_KEY.public.pem)

    @pytest.fixture
    def held(self, gateway: ArtefactGateway, hub: ArtefactHubServer) -> ArtefactGateway:
        """Return a gateway that holds the old image, at a hub with the new one."""
        hub.add()
        gateway.fetch()
        hub.add(self.NEW, sequence=13)
        return gateway

    def test_old_image_is_served_until_the_new_one_is_verified(
        self, held: ArtefactGateway, hub: ArtefactHubServer
    ) -> None:
        hub.files["blinker/1.2.0/image"] = self.NEW[:-1] + b"x"
        served: list[bytes] = []

        def is_wrong(keeper: ArtefactKeeper) -> bool:
            held.now += MANIFEST_CHECK_S / 10
            served.extend(each.image.read_bytes() for each in keeper.held.values())
            return any("forged" in each.what for each in keeper.problems())

        held.run(is_wrong)
        assert set(served) == {IMAGE}
        assert held.fetch() == [IMAGE], "also after a start"
        hub.add(self.NEW, sequence=13)
        held.run(lambda keeper: self.advance(held) and self.image(keeper) == self.NEW)
        assert [each.name for each in (held.data / "artefacts").glob("*.image")] == ["2.image"]
        assert held.last[1] == []

    def test_check_that_fails_is_no_problem(self, held: ArtefactGateway, hub: ArtefactHubServer) -> None:
        asked = len(hub.asked)
        hub.files.clear()
        held.run(lambda _: self.advance(held) and len(hub.asked) >= asked + 4)
        assert (list(held.last[0]), held.last[1]) == ([("blinker", "1.2.0")], [])

    def test_old_image_makes_room_for_the_new_one(self, held: ArtefactGateway, hub: ArtefactHubServer) -> None:
        held.room = CardRoom(FLOOR + FETCH_MARGIN_BYTES + len(self.NEW) - len(IMAGE), FLOOR)
        held.run(lambda _: self.advance(held) and not (held.data / "artefacts" / "1.image").exists())
        held.room = CardRoom(FLOOR + FETCH_MARGIN_BYTES + len(self.NEW), FLOOR)
        assert held.fetch() == [self.NEW]

    def test_storage_has_room_for_one_of_them(self, held: ArtefactGateway, hub: ArtefactHubServer) -> None:
        held.want(storage={"bytes": len(IMAGE)})
        held.run(lambda keeper: self.advance(held) and self.image(keeper) == self.NEW)

    def test_old_image_stays_if_the_new_one_has_no_room_at_all(
        self, held: ArtefactGateway, hub: ArtefactHubServer
    ) -> None:
        large = bytes(2 * len(IMAGE))
        hub.add(large, sequence=14)
        held.want(storage={"bytes": len(large) - 1})
        held.run(lambda keeper: self.advance(held) and any("storage.bytes" in each.what for each in keeper.problems()))
        assert held.last[0]["blinker", "1.2.0"].image.read_bytes() == IMAGE

    def test_old_image_stays_while_nothing_can_be_fetched(self, held: ArtefactGateway, hub: ArtefactHubServer) -> None:
        """There is room for one image only, and the link breaks after the new manifest has come."""
        held.want(storage={"bytes": len(IMAGE)})
        hub.broken.add("blinker/1.2.0/image")
        held.run(lambda _: self.advance(held) and len(hub.ranges()) >= 3)
        held.connected = False
        held.settle()
        assert held.last[0]["blinker", "1.2.0"].image.read_bytes() == IMAGE

    def test_removed_version_is_requested_rarely(self, held: ArtefactGateway, hub: ArtefactHubServer) -> None:
        """The new image was wrong twice, and then the operator has removed the version at the hub."""
        hub.files["blinker/1.2.0/image"] = self.NEW[:-1] + b"x"
        held.run(lambda keeper: self.advance(held) and any("forged" in each.what for each in keeper.problems()))
        hub.files.clear()
        asked = len(hub.asked)
        held.settle()
        assert len(hub.asked) - asked <= 8, "in ten minutes"
        assert held.last[0]["blinker", "1.2.0"].image.read_bytes() == IMAGE

    def test_third_image_replaces_the_second_one(self, held: ArtefactGateway, hub: ArtefactHubServer) -> None:
        """The second one is dropped in the middle, as the trust in its key ends, and the first one is served."""
        second, third = bytes(3 * RANGE_BYTES), bytes(len(IMAGE) + 7)
        hub.files["blinker/1.2.0/manifest"] = sealed(second, OTHER_KEY, sequence=13)
        hub.files["blinker/1.2.0/image"] = second
        held.want(keys=self.KEYS)
        held.run(lambda _: self.advance(held) and (held.data / "artefacts" / "2.part").exists())
        hub.add(third, sequence=14)
        held.want()
        held.run(lambda keeper: self.image(keeper) in (IMAGE, third) and self.image(keeper) == third)
        assert [each.name for each in (held.data / "artefacts").glob("*.*t")] == []

    @pytest.mark.parametrize("sequence", [12, 14])
    def test_image_that_returns_is_not_fetched_again(
        self, held: ArtefactGateway, hub: ArtefactHubServer, sequence: int
    ) -> None:
        """The maker has taken the second image back before it was here."""
        second = bytes(3 * RANGE_BYTES)
        hub.add(second, sequence=13)
        held.run(lambda _: self.advance(held) and (held.data / "artefacts" / "2.part").exists())
        hub.add(sequence=sequence)
        asked = len(hub.ranges())

        def is_back(keeper: ArtefactKeeper) -> bool:
            self.advance(held)
            found = keeper.held.get(("blinker", "1.2.0"))
            return found is not None and found.manifest.sequence == sequence and keeper.known == keeper.held

        held.run(lambda keeper: is_back(keeper) and not (held.data / "artefacts" / "2.part").exists())
        assert len(hub.ranges()) - asked <= 1, "the size of the image says that it is another one"
        assert [each.name for each in (held.data / "artefacts").glob("*.*t")] == []
        assert [each.name for each in (held.data / "artefacts").glob("*.image")] == ["1.image"]
        assert held.fetch() == [IMAGE], "also after a start"
        assert held.settle() == []
        hub.add(version="1.1.0", sequence=sequence - 1)
        held.want({"name": "blinker", "version": "1.1.0"})
        assert "downgraded" in held.problem("downgraded")

    def test_untrusted_image_is_not_served_meanwhile(self, held: ArtefactGateway, hub: ArtefactHubServer) -> None:
        hub.files["blinker/1.2.0/manifest"] = sealed(self.NEW, OTHER_KEY, sequence=13)
        hub.broken.add("blinker/1.2.0/image")
        held.want(keys=[OTHER_KEY.public.pem])
        held.settle()
        assert held.last[0] == {}
        hub.broken.clear()
        assert held.fetch() == [self.NEW]

    def advance(self, gateway: ArtefactGateway) -> bool:
        """Let time pass; return True."""
        gateway.now += MANIFEST_CHECK_S / 10
        return True

    def image(self, keeper: ArtefactKeeper) -> bytes | None:
        """Return the served image."""
        found = keeper.held.get(("blinker", "1.2.0"))
        return found.image.read_bytes() if found is not None and found.image.exists() else None


def test_names_have_a_limit_and_none_is_forgotten(
    gateway: ArtefactGateway, hub: ArtefactHubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "NAMES_MAX", 2)
    for name in "abc":
        hub.add(name=name)
        hub.add(name=name, version="1.0.0", sequence=10)
    for name in "ab":
        gateway.want({"name": name, "version": "1.2.0"})
        gateway.run(lambda keeper: bool(keeper.held))
    gateway.want({"name": "c", "version": "1.2.0"})
    assert gateway.problem("(too-many-names)").startswith("artefact c ")
    for name in "ab":
        gateway.want({"name": name, "version": "1.0.0"})
        gateway.problem("(downgraded)")
    hub.add(name="b", version="1.3.0", sequence=13)
    gateway.want({"name": "b", "version": "1.3.0"})
    gateway.run(lambda keeper: bool(keeper.held))
