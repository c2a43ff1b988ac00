"""Live copies: their receivers, the bound of waiting ones, and their share of the loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.batch import Batch, decode, encode
from bridge.lane import BatchLane
from bridge.message import Run, Stored
from cloud.hub.copies import RUN_BYTES, Copies
from cloud.hub.limits import COPIED_AT_ONCE, COPIES_REST, COPIES_SLICE_S, LIVE_WAITING_BYTES_MAX, SPACES_MAX
from cloud.hub.spaces import Spaces

CHUNK_S = COPIES_SLICE_S / 2
"""Seconds of the test's clock for one chunk of copies."""


def batch(address: str = "plant/1", messages: int = 1, *, lane: BatchLane = BatchLane.LIVE) -> Batch:
    run = Run(address, "device", 1, b"", [b"x" * 100] * messages, 5)
    return decode(encode([Stored(0, 7, run)], space="default", epoch="e", lane=lane))


class Rig:
    """Copies for tenants; their applications receive from the given addresses."""

    def __init__(self, *receiving: str, bytes_max: int = 1 << 20, tenants: tuple[str, ...] = ("acme",)) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self.delivered: list[tuple[str, Run]] = []
        self.receiving = receiving
        spaces = {tenant: self._space(tenant) for tenant in tenants}
        self.copies = Copies(
            cast(Spaces, SpacesStub(spaces)),
            clock=lambda: self.now,
            later=lambda delay_s, call: self.calls.append((delay_s, call)),
            bytes_max=bytes_max,
        )

    def _space(self, tenant: str) -> Any:
        live = SimpleNamespace(match=lambda address: [address] if address in self.receiving else [])

        def publish(run: Run) -> None:
            self.now += CHUNK_S
            self.delivered.append((tenant, run))

        router = SimpleNamespace(
            subscriptions=SimpleNamespace(live=live),
            publish_live=publish,
            now_ns=lambda: 9,
            pool=SimpleNamespace(dropped=0),
        )
        return SimpleNamespace(tenant=tenant, router=router, has_live_subscription=bool(self.receiving))

    def turn(self) -> float:
        """Run one turn of the copying; return the delay before it."""
        [(delay_s, call)] = self.calls
        self.calls.clear()
        call()
        return delay_s


class SpacesStub(dict[str, Any]):
    def __iter__(self) -> Any:
        return iter(self.values())


def test_nothing_is_copied_without_a_receiver() -> None:
    rig = Rig()
    rig.copies.take("acme", "gw1", cast(Batch, SimpleNamespace(lane=BatchLane.LIVE)))
    rig.copies.take("nobody", "gw1", cast(Batch, None))
    assert not rig.calls


def test_messages_with_a_receiver_are_copied() -> None:
    rig = Rig("plant/1")
    rig.copies.take("acme", "gw1", batch())
    rig.copies.take("acme", "gw1", batch("plant/2"))
    rig.copies.take("acme", "gw1", batch(lane=BatchLane.BACKLOG))
    assert rig.turn() == 0.0
    [(tenant, run)] = rig.delivered
    assert (tenant, run.address, run.device, len(run), run.qos) == ("acme", "plant/1", "device", 1, 0)
    assert rig.copies.figures("acme").made == 1
    assert not rig.calls


def test_waiting_copies_are_bounded() -> None:
    size = batch().stored()[0].run.size + RUN_BYTES
    rig = Rig("plant/1", bytes_max=3 * size)
    for _ in range(5):
        rig.copies.take("acme", "gw1", batch())
    assert rig.copies.figures("acme").missed == 2
    rig.turn()
    while rig.calls:
        rig.turn()
    assert rig.copies.figures("acme").made == 3
    rig.copies.take("acme", "gw1", batch())
    assert rig.copies.figures("acme").missed == 2, "there is room again"


def test_copies_leave_most_of_the_loop_to_others() -> None:
    rig = Rig("plant/1")
    rig.copies.take("acme", "gw1", batch(messages=6 * COPIED_AT_ONCE))
    assert rig.turn() == 0.0
    assert len(rig.delivered) == 2, "a slice"
    assert rig.turn() == pytest.approx(COPIES_SLICE_S * COPIES_REST)
    assert len(rig.delivered) == 4


def test_tenants_take_turns() -> None:
    rig = Rig("plant/1", tenants=("acme", "other"))
    rig.copies.take("acme", "gw1", batch(messages=6 * COPIED_AT_ONCE))
    rig.copies.take("other", "gw1", batch())
    rig.turn()
    assert [tenant for tenant, _ in rig.delivered] == ["acme", "other"]


class TestSpaces:
    def test_memory_is_shared_and_spaces_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert SPACES_MAX > 2
        monkeypatch.setattr("cloud.hub.spaces.SPACES_MAX", 2)

        async def scenario() -> None:
            spaces = Spaces(tmp_path, lambda _tenant: ())
            spaces.follow(("acme", "other", "third"))
            await spaces.start()
            assert sorted(space.tenant for space in spaces) == ["acme", "other"]
            assert list(spaces.troubles) == ["third"]
            assert {space.router.pool.bytes_max for space in spaces} == {LIVE_WAITING_BYTES_MAX // 2}
            await spaces.stop()

        asyncio.run(scenario())

    def test_space_that_cannot_be_opened_is_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "spaces").mkdir()
        (tmp_path / "spaces" / "acme").write_text("no directory")

        async def scenario() -> None:
            spaces = Spaces(tmp_path, lambda _tenant: ())
            spaces.follow(("acme",))
            await spaces.start()
            assert spaces.get("acme") is None
            assert "acme" in spaces.troubles
            await spaces.stop()

        asyncio.run(scenario())
        assert "the address space of tenant acme is not open" in caplog.text
