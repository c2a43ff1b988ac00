"""Forgotten gateways, on SQLite and on PostgreSQL: state that no longer counts, and state that stays for ever."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from bridge.enrolment import RefusalReason
from cloud.hub.groups import Key, Presence, StoredState
from cloud.hub.observed import NO_TIME_US
from cloud.hub.registry import names
from cloud.hub.registry.configurations import Configurations
from cloud.hub.registry.enrolments import (
    CertificateRecord,
    EnrolmentRefused,
    Enrolments,
    ForgetRefusal,
    NotForgotten,
    TenantFull,
)
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import SCHEMA_VERSION, gateways
from cloud.lake.sequences import SequenceRange
from tests.contract.registry.conftest import THERE, Place
from tests.contract.registry.enrolling import LIFE, claim, enrol, refusal_of, signing, token
from tests.contract.registry.landings import land

HALL: Key = ("acme", "hall")
NUMBERS = iter(range(1_000_000))


@pytest.fixture
def enrolments(place: Place) -> Iterator[Enrolments]:
    with contextlib.closing(Enrolments(place.url)) as made:
        yield made


def came(at_us: int, times: int = 1) -> dict[Key, Presence]:
    return {HALL: Presence("-", True, at_us, connects=times)}


def went(at_us: int) -> dict[Key, Presence]:
    return {HALL: Presence("-", False, at_us)}


def enrol_one(to: Enrolments, gateway: str, now: int, most: int, only_for: str | None = None) -> CertificateRecord:
    name = f"t{next(NUMBERS)}"
    to.add([token(name, gateway=only_for, ends=now + 10)])
    who = claim(name.encode(), name=name, gateway=gateway)
    return to.enrol(who, now, signing(who.key_id, now), lambda _tenant: most)  # type: ignore[arg-type]


def why_not(to: Enrolments, now: int, gateway: str = "hall") -> ForgetRefusal:
    with pytest.raises(NotForgotten) as caught:
        to.forget("acme", gateway, now)
    return caught.value.why


def known(place: Place) -> dict[str, bool]:
    with contextlib.closing(open_registry(place.url).database) as database:
        return dict(Configurations(database).known("acme"))


def test_forgetting_is_refused_while_the_gateway_may_return_or_is_connected(
    enrolments: Enrolments, place: Place
) -> None:
    directory = place.open().directory
    assert why_not(enrolments, 1) is ForgetRefusal.UNKNOWN
    enrol_one(enrolments, "hall", 1, 5)
    directory.presence(came(2))
    assert why_not(enrolments, 3) is ForgetRefusal.GOOD_CERTIFICATE
    enrolments.revoke("acme", "hall", 4)
    assert why_not(enrolments, 5) is ForgetRefusal.CONNECTED
    directory.presence(went(6))
    assert enrolments.forget("acme", "hall", 7) == 7
    assert why_not(enrolments, 8) is ForgetRefusal.UNKNOWN, "it is forgotten already"
    assert enrolments.forgotten() == {HALL: 7}


def test_expired_certificate_does_not_block_forgetting(enrolments: Enrolments) -> None:
    enrol_one(enrolments, "hall", 1, 5)
    assert why_not(enrolments, LIFE) is ForgetRefusal.GOOD_CERTIFICATE
    assert enrolments.forget("acme", "hall", 1 + LIFE) == 1 + LIFE


def test_forgetting_follows_the_last_connection_at_any_clock(enrolments: Enrolments, place: Place) -> None:
    directory = place.open().directory
    directory.presence(came(100))
    directory.presence(went(200))
    assert enrolments.forget("acme", "hall", 50) == 201


def test_next_gateway_of_the_name_begins_without_observations(enrolments: Enrolments, place: Place) -> None:
    directory = place.open().directory
    directory.presence(came(2))
    text = '{"status": {"reported_at": 1, "backlog_messages": 3, "room_hours": 0.0}, "newest_received_at": 5}'
    directory.seen({HALL: 2}, {HALL: text})
    directory.presence(went(3))
    place.execute("UPDATE gateways SET landed = 7")
    enrolments.forget("acme", "hall", 6)
    assert directory.presence(came(8)) == {HALL: StoredState(7, None)}
    columns = place.execute("SELECT refusing, waiting, full_at FROM gateways")
    assert [(bool(refusing), *more) for refusing, *more in columns] == [(False, 0, NO_TIME_US)]


def test_quota_gives_the_place_to_another(enrolments: Enrolments, place: Place) -> None:
    enrol_one(enrolments, "hall", 1, 1)
    place.open().directory.presence(came(2))
    place.open().directory.presence(went(3))
    enrolments.revoke("acme", "hall", 4)
    with pytest.raises(TenantFull, match="waypost gateway forget"):
        enrol_one(enrolments, "yard", 5, 1)
    enrolments.forget("acme", "hall", 6)
    assert known(place) == {}
    enrol_one(enrolments, "yard", 7, 1)
    assert known(place) == {"yard": False}
    with pytest.raises(TenantFull):
        enrol_one(enrolments, "hall", 8, 1, only_for="hall")
    assert enrolments.forgotten() == {HALL: 6}, "who was refused is still forgotten"
    enrol_one(enrolments, "hall", 9, 2)
    assert (enrolments.forgotten(), known(place)) == ({}, {"hall": False, "yard": False})
    enrolments.add([token("again")])
    assert refusal_of(enrolments, claim(b"k", name="again"), 10) is RefusalReason.NAME_TAKEN


def test_used_token_does_not_restore_the_gateway(enrolments: Enrolments) -> None:
    enrolments.add([token("once")])
    enrol(enrolments, claim(b"mine", name="once"))
    enrolments.revoke("acme", "hall", 2)
    enrolments.forget("acme", "hall", 3)
    assert refusal_of(enrolments, claim(b"mine", name="once"), 4) is RefusalReason.SPENT
    assert enrolments.forgotten() == {HALL: 3}


def test_revocations_stay_on_the_list(enrolments: Enrolments) -> None:
    given = enrol_one(enrolments, "hall", 1, 5)
    enrolments.revoke("acme", "hall", 2)
    before = enrolments.revoked()
    enrolments.forget("acme", "hall", 3)
    assert [each.serial for each in enrolments.revoked()] == [given.serial]
    assert enrolments.revoked() == before


def test_generations_and_marks_continue(enrolments: Enrolments, place: Place) -> None:
    """A hub with an older connection is fenced, and marks of landed messages remain."""
    here, there = place.open(), place.open(THERE)
    there.directory.presence(came(1))
    there.directory.presence(went(2))
    moved = SequenceRange("acme", "hall", "e" * 32, "plant", 0, 9)
    land(here, moved)
    enrolments.forget("acme", "hall", 3)
    assert here.directory.gateways() == []
    here.directory.presence(came(4))
    assert [(each.name, each.generation) for each in here.directory.gateways()] == [("hall", 2)]
    assert enrolments.forgotten() == {}
    assert there.directory.fenced([HALL]) == {HALL}
    assert here.commits.landed(moved.stream).spans == [(0, 9)]


def test_ended_connection_does_not_restore_the_gateway(enrolments: Enrolments, place: Place) -> None:
    directory = place.open().directory
    directory.presence(came(1))
    directory.presence(went(2))
    enrolments.forget("acme", "hall", 3)
    directory.presence(went(4))
    directory.seen({HALL: 5})
    assert enrolments.forgotten() == {HALL: 3}
    directory.presence({HALL: Presence("-", False, 6, connects=1)})
    assert enrolments.forgotten() == {}, "it came, and has gone again"


def test_gateway_may_be_forgotten_and_enrolled_simultaneously(enrolments: Enrolments, place: Place) -> None:
    """In either order, no gateway with a valid certificate is forgotten."""
    for now in range(10, 60, 10):
        enrol_one(enrolments, "hall", now, 5, only_for="hall")
        enrolments.revoke("acme", "hall", now + 1)
        started = threading.Barrier(2)

        def forget(at: int = now + 2, started: threading.Barrier = started) -> None:
            with contextlib.closing(Enrolments(place.url)) as beside, contextlib.suppress(NotForgotten):
                started.wait(30)
                beside.forget("acme", "hall", at)

        thread = threading.Thread(target=forget)
        thread.start()
        started.wait(30)
        with contextlib.suppress(EnrolmentRefused):
            enrol_one(enrolments, "hall", now + 2, 5, only_for="hall")
        thread.join(60)
        assert not thread.is_alive()
        assert any(each.good(now + 3) for each in enrolments.certificates())
        assert enrolments.forgotten() == {}
        assert known(place) == {"hall": False}
        enrolments.revoke("acme", "hall", now + 3)


def test_forgotten_gateway_is_sent_nothing(enrolments: Enrolments, place: Place) -> None:
    enrol_one(enrolments, "hall", 1, 5)
    enrolments.revoke("acme", "hall", 2)
    with contextlib.closing(open_registry(place.url).database) as database:
        assert database.transaction(lambda tx: names.is_known(tx, *HALL))
        enrolments.forget("acme", "hall", 3)
        assert not database.transaction(lambda tx: names.is_known(tx, *HALL))
        assert database.transaction(lambda tx: names.count_known(tx, "acme")) == 0


def test_registry_of_an_old_schema_gets_column_and_indexes(place: Place) -> None:
    place.open().directory.presence(came(1))
    for index in gateways.indexes:
        place.execute(f"DROP INDEX {index.name}")
    place.execute("ALTER TABLE gateways DROP COLUMN forgotten_at")
    place.execute("UPDATE schema_version SET version = 8")
    assert [each.name for each in place.open().directory.gateways()] == ["hall"]
    assert place.execute("SELECT version FROM schema_version") == [(SCHEMA_VERSION,)]
    for index in gateways.indexes:
        place.execute(f"DROP INDEX {index.name}")
