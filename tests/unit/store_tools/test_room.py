"""Hours until full: by the medium, the floor, the quota of the space and those of its addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.appliance.main import run
from edge.appliance.store.room import AddressFull, LogUsage, StoreBounds, hours_until, room_of
from edge.broker.limits import Limits
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.output.errors import Exit
from tests.support.command import item_in
from tests.support.stores import make

TABLE = AddressTable([AddressRule("queue/#", AddressType.QUEUE), AddressRule("events", AddressType.QUEUE)])
LOGS = [
    LogUsage("queue queue/a", 100, 10.0, 5.0),
    LogUsage("queue queue/b", 100, 10.0, 0.0),
    LogUsage("topic plant/#", 50, 20.0, 20.0),
]


def room(
    free: int = 1_000, reusable: int = 0, bounds: StoreBounds | None = None
) -> tuple[int, float | None, float | None]:
    found = room_of(LOGS, free, reusable, bounds or StoreBounds(), known=True)
    return found.usable_bytes, found.hours_of_autonomy, found.hours_to_full


class TestHours:
    @pytest.mark.parametrize(("space", "rates", "left", "hours"), [
        (100, {}, {}, None),
        (100, {"a": 0.0}, {}, None),
        (100, {"a": 10.0}, {}, 10.0),
        (0, {"a": 10.0}, {}, 0.0),
        (100, {"a": 10.0, "b": 40.0}, {}, 2.0),
        (100, {"a": 10.0}, {"a": 99.0}, None),
        (100, {"a": 10.0}, {"a": 100.0}, 10.0),
        (100, {"a": 10.0, "b": 40.0}, {"b": 40.0}, 6.0),  # b ends after an hour
        (100, {"a": 10.0, "b": 40.0}, {"a": 20.0, "b": 40.0}, None),
        (100, {"a": 10.0, "b": 40.0}, {"b": 0.0}, 10.0),
    ])  # fmt: skip
    def test_quotas_limit_the_arriving_messages(
        self, space: int, rates: dict[str, float], left: dict[str, float], hours: float | None
    ) -> None:
        assert hours_until(space, rates, left) == (None if hours is None else pytest.approx(hours))


class TestRoom:
    def test_medium_alone_limits(self) -> None:
        assert room(900, 100) == (1_000, 25.0, 40.0)

    def test_floor_is_not_available(self) -> None:
        assert room(900, 100, StoreBounds(floor_bytes=200)) == (800, 20.0, 32.0)
        assert room(100, 0, StoreBounds(floor_bytes=200)) == (0, 0.0, 0.0)

    def test_quota_of_the_space_limits(self) -> None:
        assert room(bounds=StoreBounds(space_bytes=650)) == (400, 10.0, 16.0)
        assert room(bounds=StoreBounds(space_bytes=100)) == (0, 0.0, 0.0)

    def test_reserves_are_excluded(self) -> None:
        policies = {"events": AddressPolicy(reserve_bytes=100), "queue/#": AddressPolicy(reserve_bytes=120)}
        bounds = StoreBounds(space_bytes=750, table=TABLE, policies=policies)
        assert room(bounds=bounds)[0] == 750 - 250 - 100, "queue/# keeps more than is reserved for it"

    @pytest.mark.parametrize("when_full", WhenFull)
    def test_address_is_full_before_the_medium(self, when_full: WhenFull) -> None:
        bounds = StoreBounds(table=TABLE, policies={"queue/#": AddressPolicy(quota_bytes=260, when_full=when_full)})
        found = room_of(LOGS, 1_000, 0, bounds, known=True)
        assert found.hours_of_autonomy == 3.0, "both queues fall under one resource"
        assert found.first_full == AddressFull("queue/#", when_full.value, 3.0)
        assert found.hours_to_full == pytest.approx((1_000 - 60) / 20.0), "60 bytes more, and it holds its quota"

    @pytest.mark.parametrize(("quota", "when_full", "used_up"), [
        (200, WhenFull.REJECT, ["queue/#"]),
        (300, WhenFull.REJECT, []),
        (200, WhenFull.DROP_OLDEST, []),
    ])  # fmt: skip
    def test_rejecting_address_is_full(self, quota: int, when_full: WhenFull, used_up: list[str]) -> None:
        bounds = StoreBounds(table=TABLE, policies={"queue/#": AddressPolicy(quota_bytes=quota, when_full=when_full)})
        assert room_of(LOGS, 1_000, 0, bounds, known=True).used_up == used_up

    def test_quotas_may_prevent_a_full_store(self) -> None:
        policies = {"queue/#": AddressPolicy(quota_bytes=300), "plant/#": AddressPolicy(quota_bytes=450)}
        found = room_of(LOGS, 1_000, 0, StoreBounds(table=TABLE, policies=policies), known=True)
        assert found.hours_to_full is None
        assert found.hours_of_autonomy == 5.0

    def test_unknown_rate_gives_no_hours(self) -> None:
        found = room_of([LogUsage("queue q", 10, 0.0, 0.0)], 1_000, 0, StoreBounds(), known=False)
        assert (found.bytes_per_hour, found.hours_of_autonomy, found.hours_to_full) == (None, None, None)


RESOURCES = """
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {quota: {bytes: 30000}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},
  spec: {address: jobs, type: queue, quota: {bytes: 10000}}}
"""


class TestCommand:
    def told(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
        assert run(["store", "info", "--json", *arguments]) == 0
        found: dict[str, float] = item_in(capsys.readouterr().out)["room"]
        return found

    def test_bounds_are_those_applied_or_given(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        made = make(tmp_path / "data")
        data, config = str(made.path.parent), tmp_path / "gateway.yaml"
        config.write_text(RESOURCES)
        free = self.told(capsys, "--data", data)
        assert free["usable_bytes"] <= free["free_bytes"] + free["reusable_bytes"] - Limits().free_floor_bytes
        given = self.told(capsys, "--data", data, "--config", str(config))
        assert 0 < given["usable_bytes"] < 30_000
        assert run(["apply", "--data", data, "-f", str(config)]) == 0
        capsys.readouterr()
        assert self.told(capsys, "--data", data)["usable_bytes"] == given["usable_bytes"]
        assert run(["store", "info", "--data", data]) == 0
        assert "for messages" in capsys.readouterr().out

    def test_invalid_bounds_are_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        made, config = make(tmp_path / "data"), tmp_path / "gateway.yaml"
        config.write_text(RESOURCES.replace("10000", "many"))
        assert run(["store", "info", "--data", str(made.path.parent), "--config", str(config)]) == Exit.USAGE
        assert "many" in capsys.readouterr().err

    def test_unreadable_configuration_is_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        made, config = make(tmp_path / "data"), tmp_path / "gateway.yaml"
        config.write_text(RESOURCES)
        assert run(["apply", "--data", str(made.path.parent), "-f", str(config)]) == 0
        (made.path.parent / "config" / "resources.json").write_text("{nonsense")
        capsys.readouterr()
        assert run(["store", "info", "--data", str(made.path.parent)]) == 0
        assert "not counted" in capsys.readouterr().err
