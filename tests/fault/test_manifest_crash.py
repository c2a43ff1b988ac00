"""A gateway that ends between any two commits states every message once: it continues with the files of each commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridge.manifest import GENESIS, ManifestStatement
from edge.broker.retention import manifests
from edge.broker.store.limits import StoreLimits
from tests.contract.store.rig import sqlite_rig
from tests.support.manifest_bench import ManifestBench, read_statements

ADDRESSES = ("plant/1", "plant/2", "plant/3")


def hour_ends(bench: ManifestBench) -> None:
    """End an hour, and look until all of its addresses are stated."""
    bench.later(1)
    while bench.manifests.close_requested:
        bench.look()


def live(bench: ManifestBench) -> None:
    """Run six hours of a gateway: messages, ends of hours, and a hub that takes the statements in some of them."""
    for hour in range(6):
        for address in ADDRESSES[: hour + 1]:
            bench.append(address, 2 + hour)
        hour_ends(bench)
        if hour % 2:
            bench.taken()


def held(statements: list[ManifestStatement]) -> dict[str, int]:
    """Return the number of stated messages by address; fail unless each statement follows the one before."""
    known: dict[str, ManifestStatement] = {}
    for one in statements:
        known.setdefault(one.digest, one)  # a statement that is repeated after a crash is the same
    ends: dict[str, tuple[int, str]] = {}
    for one in known.values():
        first, previous = ends.get(one.address, (0, GENESIS))
        assert (one.first_sequence, one.previous) == (first, previous), "nothing is left out, nothing twice"
        ends[one.address] = (one.last_sequence + 1, one.digest)
    return {address: end for address, (end, _) in ends.items()}


@pytest.mark.parametrize("together", [2, 1_000])
def test_every_message_is_stated_once_after_a_crash_at_any_commit(
    tmp_path: Path, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "ADDRESSES_STATED_TOGETHER", together)
    rig = sqlite_rig(tmp_path / "gw", StoreLimits(counted_commits_max=5))
    bench = ManifestBench(rig)
    copies: list[tuple[Path, list[ManifestStatement]]] = []
    received: list[ManifestStatement] = []

    def keep(_commit: object) -> None:
        copy = tmp_path / f"copy{len(copies)}"
        copy.mkdir()
        for file in (tmp_path / "gw").glob("store.sqlite*"):
            shutil.copy(file, copy)
        copies.append((copy, stated(bench)))

    rig.store.commits.listeners.append(keep)
    live(bench)
    received += stated(bench)
    everything = dict(rig.store.lineage.sequences())
    rig.store.close()
    assert held(received) == everything
    assert len(copies) > 20
    for copy, before in copies:
        again = sqlite_rig(copy)
        after = ManifestBench(again)
        after.hours = bench.hours
        hour_ends(after)
        hour_ends(after)
        assert held([*before, *after.taken()]) == dict(again.store.lineage.sequences()), copy.name
        again.store.close()


def stated(bench: ManifestBench) -> list[ManifestStatement]:
    """Return all statements sent to the hub so far."""
    return [statement for _, document in bench.wire.sent for statement in read_statements(document)]
