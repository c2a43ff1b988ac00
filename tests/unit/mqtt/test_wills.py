"""Will Messages that outlive the gateway's process: stored with CONNECT, and published after a start, or dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from bridge.message import RETAIN, Run
from edge.broker.delivery.dead_letters import LossReason
from edge.broker.delivery.durable import Declaration
from edge.broker.limits import WILLS_AFTER_START_S, WILLS_AGAIN_S, WILLS_AT_ONCE
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.mqtt.events import Will
from edge.broker.mqtt.wills import PendingWill, Wills
from edge.broker.router import due_wills
from edge.broker.router.batch import Publication, PublishBatch
from edge.broker.router.logs import QUEUE_LOG
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError
from tests.support.memory_store import MemoryStore

START_S = 1_000.0
QUOTA_BYTES = 100


class Published(Router):
    """Router that records its publications."""

    def publish(self, batch: PublishBatch) -> None:
        assert isinstance(batch, Publication)
        origin, run, _ = batch
        self.runs.append((origin.name, run.address, run.bodies[0], run.flags & RETAIN))
        self.users.append(origin.user)
        super().publish(batch)

    runs: list[tuple[str, str, bytes, int]]
    users: list[str]


class Site:
    """The wills of a gateway that can be killed."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], None]] = deque()
        self.now = 0.0
        self._store = MemoryStore(post=self._posted.append, clock=lambda: self.now)
        self._turns: deque[Callable[[], None]] = deque()
        self.restart()

    def restart(self) -> None:
        """Restart with the committed state; the clock goes on from the first tick."""
        self._turns.clear()
        self._store.commits.listeners.clear()
        self.router = Published(
            self._store,
            AddressTable([AddressRule("queue/#", AddressType.QUEUE)]),
            clock_ns=lambda: 1,
            flush_soon=lambda: None,
            policies={"queue/#": AddressPolicy(quota_bytes=QUOTA_BYTES, when_full=WhenFull.REJECT)},
            monotonic_s=lambda: self.now,
            soon=self._turns.append,
        )
        self.router.runs, self.router.users = [], []
        self.wills = Wills(self.router, self._store.state)
        self.wills.tick(START_S)

    def commit(self) -> None:
        self.router.flush()
        while self._posted:
            self._posted.popleft()()

    def settle(self) -> None:
        """Run delayed work and commits."""
        for _ in range(4):
            self.now += WILLS_AGAIN_S
            self.router.tick()
            while self._turns:
                self.turn()
            self.commit()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Let every commit fail."""
        self._store.failure = StoreError("no")
        yield
        self._store.failure = None

    @property
    def stored(self) -> list[bytes]:
        """Return the bodies of the queue on disk."""
        log = self._store.logs.find(f"{QUEUE_LOG}queue/state")
        return [] if log is None else [body for each in self._store.medium.kept(log) for body in each.run.bodies]

    @property
    def on_disk(self) -> list[bytes]:
        """Return the bodies of pending wills, and of published ones in the queue."""
        kept = [msgspec.msgpack.decode(value, type=Will).run for _, value in self._store.state.items("will")]
        owed = [
            msgspec.msgpack.decode(value, type=PendingWill).run for _, value in self._store.state.items("owed-will")
        ]
        return [*(body for run in (*kept, *owed) for body in run.bodies), *self.stored]

    def turn(self) -> None:
        """Run the next turn of the loop."""
        for _ in range(len(self._turns)):
            self._turns.popleft()()

    def at(self, seconds: float) -> list[bytes]:
        """Return the bodies published up to `seconds` after the start."""
        self.wills.tick(START_S + seconds)
        while self._turns:
            self.turn()
        return [body for _, _, body, _ in self.router.runs]


def will(body: bytes, delay_s: int = 0) -> Will:
    return Will(Run("state", "", 1 | RETAIN, b"", [body]), delay_s)


def test_will_of_an_absent_client_is_published() -> None:
    site = Site()
    site.wills.keep("c", will(b"gone"), expiry_s=0)
    site.commit()
    site.restart()
    assert site.at(WILLS_AFTER_START_S - 1) == []
    site.at(WILLS_AFTER_START_S)
    assert site.router.runs == [("c", "state", b"gone", RETAIN)]
    site.commit()
    site.restart()
    assert site.at(1_000) == []


def test_will_belongs_to_its_user_after_a_restart() -> None:
    """The user owns the retained address. A will of an older version has no user."""
    site = Site()
    site.wills.keep("c", will(b"gone"), expiry_s=0, user="anna")
    site._store.state.put("will", "older", msgspec.msgpack.encode(will(b"older")))
    site.commit()
    site.restart()
    site.at(WILLS_AFTER_START_S)
    assert sorted(zip(site.router.runs, site.router.users, strict=True)) == [
        (("c", "state", b"gone", RETAIN), "anna"),
        (("older", "state", b"older", RETAIN), ""),
    ]


def test_delay_continues_over_a_restart_but_not_beyond_the_session() -> None:
    site = Site()
    site.wills.keep("a", will(b"a", delay_s=60), expiry_s=3_600)
    site.wills.keep("b", will(b"b", delay_s=60), expiry_s=20)
    site.commit()
    site.restart()
    assert site.at(19) == []
    assert site.at(20) == [b"b"]
    assert site.at(59) == [b"b"]
    assert site.at(60) == [b"b", b"a"]


def test_wills_that_were_withdrawn_or_published_are_not_repeated() -> None:
    site = Site()
    for name in ("bye", "back", "anew", "published"):
        site.wills.keep(name, will(name.encode()), expiry_s=60)
    site.commit()
    site.wills.drop("bye")
    site.wills.publish("published", will(b"published"))
    site.commit()
    site.restart()
    site.wills.keep("back", None, expiry_s=60)
    site.wills.keep("anew", will(b"second"), expiry_s=60)
    assert site.at(1_000) == []
    site.commit()
    site.restart()
    assert site.at(1_000) == [b"second"]


def test_end_of_the_session_ends_the_delay() -> None:
    """The end of the session publishes the will, as with a delayed will [MQTT-3.1.3-9]."""
    site = Site()
    site.wills.keep("c", will(b"gone", delay_s=60), expiry_s=3_600)
    site.commit()
    site.restart()
    site.wills.end("c")
    assert site.at(1_000) == [b"gone"]


class TestManyAtOnce:
    """Many clients lose their network."""

    COUNT = 3 * WILLS_AT_ONCE + 1

    def gone(self) -> Site:
        site = Site()
        for number in range(self.COUNT):
            site.wills.keep(f"c{number}", will(b"%d" % number), expiry_s=0)
        site.commit()
        for number in range(self.COUNT):
            site.wills.publish(f"c{number}", will(b"%d" % number))
        return site

    def bodies(self, site: Site) -> list[bytes]:
        return [body for _, _, body, _ in site.router.runs]

    def test_each_turn_publishes_some_in_order(self) -> None:
        site = self.gone()
        done = 0
        while done < self.COUNT:
            assert done < len(self.bodies(site)) <= done + WILLS_AT_ONCE
            done = len(self.bodies(site))
            site.turn()
        site.turn()
        assert self.bodies(site) == [b"%d" % number for number in range(self.COUNT)]

    def test_wills_waiting_at_a_kill_are_published_after_the_start(self) -> None:
        site = self.gone()
        before = self.bodies(site)
        site.commit()
        site.restart()
        assert sorted(before + site.at(WILLS_AFTER_START_S)) == sorted(b"%d" % number for number in range(self.COUNT))

    def test_returning_client_does_not_overtake_its_will(self) -> None:
        site = self.gone()
        last = self.COUNT - 1
        site.wills.keep(f"c{last}", will(b"of its new connection"), expiry_s=0)
        assert self.bodies(site)[-1] == b"%d" % last
        site.at(0)
        assert self.bodies(site).count(b"%d" % last) == 1
        site.commit()
        site.restart()
        assert site.at(WILLS_AFTER_START_S) == [b"of its new connection"]

    def test_all_are_published_when_the_broker_stops(self) -> None:
        site = self.gone()
        site.router.wills.finish()
        assert len(self.bodies(site)) == self.COUNT
        site.wills.publish("late", will(b"late"))
        assert self.bodies(site)[-1] == b"late"


class TestNotStored:
    """Wills that are due when the store cannot take them: their CONNACK has confirmed that they are on disk."""

    def stored_will(self, body: bytes) -> Will:
        return Will(Run("queue/state", "", 1, b"", [body]))

    def gone_while_commits_fail(self) -> Site:
        site = Site()
        site.wills.keep("c", self.stored_will(b"gone"), expiry_s=0)
        site.commit()
        with site.failing():
            site.wills.publish("c", self.stored_will(b"gone"))
            site.settle()
        return site

    def test_will_is_stored_after_failed_commits(self) -> None:
        site = self.gone_while_commits_fail()
        assert site.stored == []
        site.settle()
        assert site.stored == [b"gone"]
        site.restart()
        site.at(WILLS_AFTER_START_S)
        site.settle()
        assert site.stored == [b"gone"]

    def test_will_is_on_disk_exactly_once_at_every_moment(self) -> None:
        site = Site()
        site.wills.keep("c", self.stored_will(b"gone"), expiry_s=0)
        site.commit()
        site.wills.publish("c", self.stored_will(b"gone"))
        for _ in range(2):
            with site.failing():
                site.commit()
                assert site.on_disk == [b"gone"]
            site.commit()  # the rest of the failed commit joins this one: the will in its new place
            assert site.on_disk == [b"gone"]
            site.now += WILLS_AGAIN_S
            site.router.wills.tick(site.now, failing=False)
        site.settle()
        assert site.on_disk == site.stored == [b"gone"]

    def test_will_to_a_full_address_is_stored_once_there_is_room(self) -> None:
        site = Site()
        site.wills.keep("big", self.stored_will(bytes(QUOTA_BYTES)), expiry_s=0)
        site.wills.publish("big", self.stored_will(bytes(QUOTA_BYTES)))
        site.wills.publish("c", self.stored_will(b"gone"))
        site.settle()
        assert site.stored == [bytes(QUOTA_BYTES)]
        site.restart()
        site.settle()
        assert site.stored == [bytes(QUOTA_BYTES)]
        queue = site.router.queues["queue/state"]
        queue.dead_lettering.discard_later(0, 0, LossReason.REJECTED)
        queue.dead_lettering.continue_reading()
        site.settle()
        assert site.stored == [b"gone"]

    def test_returning_client_does_not_overtake_its_waiting_will(self) -> None:
        site = self.gone_while_commits_fail()
        site.wills.keep("c", self.stored_will(b"second"), expiry_s=0)
        site.commit()
        site.wills.mark_connected("c")
        site.wills.publish("c", self.stored_will(b"second"))
        site.settle()
        assert site.stored == [b"gone", b"second"]

    def test_will_of_a_client_that_cannot_return_waits(self) -> None:
        site = self.gone_while_commits_fail()
        with site.failing():
            site.wills.keep("c", self.stored_will(b"second"), expiry_s=0)
            site.settle()
            site.wills.drop("c")  # CONNACK has refused it
            site.settle()
        site.settle()
        assert site.stored == [b"gone"]

    def test_waiting_will_is_dropped_for_a_returning_client_without_room(self) -> None:
        site = Site()
        site.wills.publish("big", self.stored_will(bytes(QUOTA_BYTES)))
        site.wills.publish("c", self.stored_will(b"gone"))
        site.settle()
        site.wills.keep("c", None, expiry_s=0)
        site.wills.mark_connected("c")
        published = len(site.router.runs)
        site.settle()
        assert len(site.router.runs) == published
        site.restart()
        site.settle()
        assert site.router.runs == []
        assert site.on_disk == [bytes(QUOTA_BYTES)]

    def test_waiting_wills_are_bounded(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(due_wills, "WILLS_PUT_OFF_BYTES_MAX", 100)
        site = Site()
        with site.failing():
            for name in ("a", "b", "c"):
                site.wills.publish(name, self.stored_will(name.encode() * 30))
            site.settle()
        assert "dropped the will" in caplog.text
        site.settle()
        assert site.stored == [b"b" * 30, b"c" * 30]
        site.restart()
        site.settle()
        assert site.stored == [b"b" * 30, b"c" * 30]

    def test_will_that_cannot_be_retained_is_published(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site()
        monkeypatch.setattr(site.router.retained, "admits", lambda _run, _user: False)
        site.router.subscriptions.declare(Declaration(name="kept", pattern="state"))
        site.wills.publish("c", will(b"gone"))
        site.settle()
        assert site.router.runs[-1] == ("c", "state", b"gone", 0)
        (kept,) = site.router.durable_subscriptions.figures()
        assert kept.backlog == 1
        assert not site.router.retained.matching("state")
