"""Sessions of browsers in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import sha256

import msgspec
import pytest
import sqlalchemy as sa

from cloud.hub.limits import HUB_CLOCKS_S
from cloud.hub.registry.database import Database
from cloud.hub.registry.sessions import RegistrySessions
from edge.broker.http.limits import SESSION_IDLE_S, SESSION_LIFE_S, SESSION_RENEWAL_S, SESSION_STAY_S
from edge.broker.http.session_archive import BY_PASSWORD, KeptSession
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security.proof import TokenOrigin
from tests.contract.registry.conftest import Place

NOW_S = 1_700_000_000.0
"""In the past: the database has the time of today, and the earlier of both times counts."""
RULES = (AccessRule(("plant/#",), frozenset({Operation.VIEW})),)


def session(name: str, user: str = "ann@acme", **more: object) -> KeptSession:
    base = KeptSession(
        key=sha256(name.encode()).digest(), user=user, by=BY_PASSWORD, secret="s1", opened_at_s=NOW_S, used_at_s=NOW_S
    )
    return msgspec.structs.replace(base, **more)


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def archive(place: Place, clock: Clock) -> Iterator[RegistrySessions]:
    opened = RegistrySessions(place.url, clock, most=6)
    yield opened
    opened.close()


def test_everything_is_kept(archive: RegistrySessions, place: Place, clock: Clock) -> None:
    origin = TokenOrigin("", "a1", "s1", NOW_S - 1)
    more = {"sealed": b"\0sealed", "by": "https://id", "origin": origin}
    given = session("one", rules=RULES, expires_at_s=NOW_S + 300, stays=True, **more)
    assert archive.add(given) == []
    other = RegistrySessions(place.url, clock)
    assert other.find(given.key) == given
    assert other.all() == [given]
    archive.touch({given.key: NOW_S + 60})
    archive.touch({given.key: NOW_S + 30, sha256(b"unknown").digest(): NOW_S})
    assert other.all() == [msgspec.structs.replace(given, used_at_s=NOW_S + 60)], "a later use counts"
    other.remove([given.key])
    assert archive.find(given.key) is None
    archive.touch({given.key: NOW_S + 90})
    assert archive.all() == [], "an ended one does not come back"
    other.close()


def test_sessions_of_a_user_are_removed(archive: RegistrySessions) -> None:
    mine, others = [session("one"), session("two")], session("three", "bob@acme")
    for each in (*mine, others):
        archive.add(each)
    assert sorted(archive.remove_user("ann@acme")) == sorted(each.key for each in mine)
    assert archive.all() == [others]


def test_tenant_with_the_most_makes_room(archive: RegistrySessions) -> None:
    small = session("small", "first@small")
    archive.add(small)
    for number in range(5):
        archive.add(session(f"big {number}", f"user{number}@big", used_at_s=NOW_S + number))
    assert archive.add(session("another", "first@third")) == [session("big 0").key]
    assert archive.find(small.key) == small
    for number in range(4):
        archive.add(session(f"third {number}", "first@third", used_at_s=NOW_S + 10 + number))
    assert archive.find(session("another").key) is None, "a user has four"
    assert len(archive.all()) == 6


def test_those_that_are_over_are_deleted(archive: RegistrySessions, clock: Clock) -> None:
    kinds = {
        "idle": session("idle"),
        "stays": session("stays", "b@acme", stays=True),
        "token": session("token", "c@acme", stays=True, expires_at_s=NOW_S + 60),
        "sealed": session("sealed", "d@acme", stays=True, expires_at_s=NOW_S + 60, sealed=b"x"),
        "old": session("old", "e@acme", stays=True, opened_at_s=NOW_S - SESSION_LIFE_S + SESSION_IDLE_S),
    }
    for each in kinds.values():
        archive.add(each)
    clock.now_s += SESSION_IDLE_S
    archive.touch({})
    assert len(archive.all()) == len(kinds), "another hub may be behind"
    clock.now_s += HUB_CLOCKS_S
    archive.touch({})
    assert {each.key for each in archive.all()} == {kinds["stays"].key, kinds["sealed"].key}
    assert all(each.is_over(clock.now_s) for name, each in kinds.items() if name not in ("stays", "sealed"))
    clock.now_s += SESSION_STAY_S
    archive.touch({})
    assert archive.all() == []


def test_session_is_added_again_after_a_lost_answer(archive: RegistrySessions) -> None:
    given = session("one")
    archive.add(given)
    later = msgspec.structs.replace(given, used_at_s=NOW_S + 60)
    assert archive.add(later) == []
    assert archive.all() == [later]


def test_those_that_are_over_take_no_place(archive: RegistrySessions, clock: Clock) -> None:
    phone = session("phone", stays=True, used_at_s=NOW_S - 1)
    archive.add(phone)
    for number in range(3):
        archive.add(session(f"desk {number}"))
    clock.now_s += SESSION_IDLE_S + 1
    again = session("desk again", opened_at_s=clock.now_s, used_at_s=clock.now_s)
    assert archive.add(again) == []
    assert archive.find(phone.key) == phone


@pytest.mark.parametrize("ahead_s", [1_800, 86_400, 366 * 86_400])
def test_hub_that_is_ahead_ends_no_session(archive: RegistrySessions, clock: Clock, ahead_s: float) -> None:
    now_s = float(int(time.time()))
    clock.now_s = now_s + ahead_s
    given = session("one", opened_at_s=now_s, used_at_s=now_s, expires_at_s=now_s + 60)
    archive.add(given)
    archive.add(session("two", opened_at_s=clock.now_s, used_at_s=clock.now_s))
    archive.touch({})
    assert archive.find(given.key) == given


def test_hub_that_is_behind_keeps_its_sessions(archive: RegistrySessions, clock: Clock) -> None:
    behind_s = NOW_S - HUB_CLOCKS_S
    given = session("one", opened_at_s=behind_s, used_at_s=behind_s)
    archive.add(given)
    clock.now_s += SESSION_IDLE_S - 1
    archive.touch({})
    assert archive.find(given.key) == given


def test_lookup_waits_for_no_landing(archive: RegistrySessions, place: Place) -> None:
    given = session("one")
    archive.add(given)
    landing = Database(place.url)

    def work(tx: sa.Connection) -> None:
        tx.execute(sa.text("DELETE FROM sessions WHERE key = 'none'"))
        assert archive.find(given.key) == given
        assert archive.find(sha256(b"made up").digest()) is None
        assert archive.all() == [given]

    landing.transaction(work)  # a look that waited for the lock would end with an error
    landing.close()


def test_one_hub_renews_a_token(archive: RegistrySessions) -> None:
    given = session("one", expires_at_s=NOW_S + 300, sealed=b"first")
    archive.add(given)
    assert archive.claim(given.key, NOW_S + 300, NOW_S)
    assert not archive.claim(given.key, NOW_S + 300, NOW_S + 1)
    assert archive.claim(given.key, NOW_S + 300, NOW_S + SESSION_RENEWAL_S + 1), "that hub is gone"
    fresh = msgspec.structs.replace(given, expires_at_s=NOW_S + 600, sealed=b"second", rules=RULES)
    archive.renewed(fresh)
    assert archive.find(given.key) == fresh
    assert not archive.claim(given.key, NOW_S + 300, NOW_S + 100), "it was renewed"
    assert archive.claim(given.key, NOW_S + 600, NOW_S + 100)
