"""Gateways that move between two hubs, leave them and are dropped from memory: each message lands once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud.hub.groups import GatewaySession, LandingGroup, LandingOutcome, QueueEntry
from cloud.hub.limits import LEFT_KEPT_S
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.contract.registry.landing_hub import LandingHub
from tests.contract.registry.landings import TEMPERATURE, batch, sequences
from tests.support.medium import fast_folder
from tests.support.memory_lake import MemoryLake

GATEWAYS: Final = ("gw0", "gw1")
gateway, hub = st.sampled_from(GATEWAYS), st.integers(0, 1)
steps = st.one_of(
    st.tuples(st.just("connect"), gateway, hub),
    st.tuples(st.just("leave"), gateway, hub),
    st.tuples(st.just("send"), gateway, st.integers(1, 9)),
    st.tuples(st.just("late"), gateway, hub),
    st.tuples(st.just("wait"), hub, st.sampled_from([LEFT_KEPT_S / 2, LEFT_KEPT_S])),
    st.tuples(st.just("lose"), gateway, hub),
    st.tuples(st.just("fold"), hub),
)


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """Yield an empty registry."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        file = Path(folder) / "registry.db"
        Registry(sqlite_url(file), "f" * 32).close()
        yield file


class TwoHubs:
    """Two hubs on one registry and one lake, and gateways with numbered messages."""

    def __init__(self, file: Path) -> None:
        self.lake = MemoryLake()
        self.place = Place(sqlite_url(file))
        self.hubs = [LandingHub(self.place, self.lake, writer) for writer in (HERE, THERE)]
        for each in self.hubs:
            each.registry.directory.admission.limit_to(lambda _: len(GATEWAYS))
        self.made = dict.fromkeys(GATEWAYS, 0)
        self.answered = dict.fromkeys(GATEWAYS, 0)
        """First message without an answer."""
        self.at: dict[str, int] = {}
        """Hub of each connected gateway."""
        self.there: list[set[str]] = [set(), set()]
        """Gateways that each hub takes for connected."""

    def connect(self, gateway: str, hub: int) -> None:
        self.at[gateway] = hub
        self.there[hub].add(gateway)
        self.hubs[hub].connect(gateway)
        self.send(gateway, 0)

    def leave(self, gateway: str, hub: int) -> None:
        """Let a hub notice the end of the connection that it has: it may be long over."""
        if gateway in self.there[hub]:
            self.there[hub].remove(gateway)
            self.hubs[hub].disconnect(gateway)
            if self.at.get(gateway) == hub:
                del self.at[gateway]

    def send(self, gateway: str, count: int) -> None:
        """Send new messages, and everything that has no answer again."""
        self.made[gateway] += count
        if gateway in self.at and self._land(gateway, self.at[gateway], self.answered[gateway]):
            self.answered[gateway] = self.made[gateway]

    def late(self, gateway: str, hub: int) -> None:
        """Land at a hub what it got over an earlier connection, without an answer."""
        self._land(gateway, hub, 0)

    def wait(self, hub: int, seconds: float) -> None:
        self.hubs[hub].now_s += seconds
        self.hubs[hub].lander.tidy()

    def lose(self, gateway: str, hub: int) -> None:
        """Lose cached marks."""
        self.hubs[hub].registry.commits._marks.drop([("default", gateway)])

    def fold(self, hub: int) -> None:
        self.hubs[hub].lander.fold()

    def _land(self, gateway: str, hub: int, first: int) -> bool:
        last = self.made[gateway] - 1
        if first > last:
            return False
        sent = batch(TEMPERATURE._replace(gateway=gateway), first, last)
        session = GatewaySession("default", gateway, "-")
        entry = QueueEntry(session, sent, lambda _outcome, _words: None, 0.0)
        self.hubs[hub].lander.land(LandingGroup([entry]), 1_000)
        return entry.verdict is LandingOutcome.LANDED

    def check(self) -> None:
        for name in GATEWAYS:
            landed = sequences(self.lake, TEMPERATURE._replace(gateway=name))
            assert landed == list(range(len(landed))), "once, and without a gap"
            assert self.answered[name] <= len(landed) <= self.made[name]
        for each in self.hubs:
            generations, marks = each.registry.directory._generations, each.registry.commits._marks
            assert marks._loaded.keys() <= generations._given.keys()

    def end(self) -> None:
        for number, each in enumerate(self.hubs):
            for name in GATEWAYS:
                self.connect(name, number)
                assert self.answered[name] == self.made[name]
            for name in GATEWAYS:
                self.leave(name, number)
            self.wait(number, LEFT_KEPT_S)
            assert not each.registry.directory._generations._given
            assert not each.registry.commits._marks._loaded


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=8, max_size=24))
def test_each_message_lands_once_whenever_gateways_are_dropped(template: Path, script: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        file = Path(folder) / "registry.db"
        shutil.copy(template, file)
        hubs = TwoHubs(file)
        try:
            for name, *arguments in script:
                getattr(hubs, name)(*arguments)
                hubs.check()
            hubs.end()
            hubs.check()
        finally:
            hubs.place.close()
