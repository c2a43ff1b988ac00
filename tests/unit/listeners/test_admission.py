"""Admission closes connections to make room: the greediest, the oldest unknown, and no other
(`listeners.admission`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from edge.broker.limits import (
    MIB,
    STRAINED_CHECK_S,
    TRIM_CALM_S,
    TRIM_GROWTH_BYTES,
    TRIM_LATEST_S,
    TRIM_SETTLED_BYTES,
    TRIM_SETTLED_S,
    Limits,
)
from edge.broker.listeners import admission as admission_module
from edge.broker.listeners import relief as relief_module
from edge.broker.listeners.admission import Admission, ConnectionMeter
from edge.broker.listeners.resident_memory import ResidentMemory
from edge.broker.model.budget import Budget
from edge.broker.model.remote import remote_of

MEMORY = 96 * MIB
LIMITS = Limits(memory_bytes_max=MEMORY, packet_bytes_max=4 * MIB, connections_max=100)
POOL = MEMORY // 3
COST = 3_000


class Connection:
    """Driver as admission sees it."""

    def __init__(self, counted: ConnectionMeter, address: str = "192.0.2.1") -> None:
        self.address = address
        self.peername = f"{address}:1"
        self.account: Any = None
        self.held_bytes = 0
        self.paused: set[str] = set()
        self.ended = ""
        self._counted = counted
        counted.begun(self)  # type: ignore[arg-type]

    def charge(self, account: Any) -> None:
        self.account = account

    def hold(self, held: int) -> None:
        self.held_bytes = held
        self._counted.held(self, held)  # type: ignore[arg-type]

    def identify(self, user: str = "") -> bool:
        return self._counted.identified(self, user)  # type: ignore[arg-type]

    def count(self) -> None:
        """Do nothing: the test sets the held bytes."""

    def pause_reading(self, reason: str) -> None:
        self.paused.add(reason)

    def resume_reading(self, reason: str) -> None:
        self.paused.discard(reason)

    def shed(self, *, explain: bool = True) -> None:
        self.ended = "shed" if explain else "aborted"
        self._counted.ended(self)  # type: ignore[arg-type]


class Rig:
    def __init__(self) -> None:
        self.admission = Admission(LIMITS, Budget(MEMORY, "default"), lambda: 0)
        self.counted = ConnectionMeter(self.admission, COST)

    def known(self, address: str = "192.0.2.1", user: str = "", held: int = 0) -> Connection:
        made = Connection(self.counted, address)
        assert made.identify(user)
        made.hold(held)
        return made


def run(case: Callable[[Rig], object]) -> None:
    async def main() -> None:
        found = case(Rig())
        if asyncio.iscoroutine(found):
            await found

    asyncio.run(main())


async def settled(rig: Rig) -> None:
    """Wait for the end of all pending closes."""
    async with asyncio.timeout(20):
        while rig.admission._shedding:
            await asyncio.sleep(0)


def test_one_connection_holds_at_most_two_messages() -> None:
    def case(rig: Rig) -> None:
        connection, other = rig.known(), rig.known("192.0.2.2", held=4 * MIB)
        connection.hold(8 * MIB)
        assert not connection.ended
        connection.hold(8 * MIB + 1)
        assert (connection.ended, other.ended) == ("shed", "")
        assert rig.admission.figures.shed == 1

    run(case)


def test_one_address_holds_at_most_half_and_its_largest_holder_is_closed() -> None:
    def case(rig: Rig) -> None:
        other = rig.known("192.0.2.2", held=8 * MIB)
        small = rig.known(held=MIB)
        large = [rig.known(held=5 * MIB + number) for number in range(3)]
        small.hold(MIB + 2)
        assert [one.ended for one in large] == ["", "", "shed"], "16 MiB of 32, and some bytes"
        assert not other.ended
        assert not small.ended

    run(case)


def test_largest_address_of_the_pool_is_closed() -> None:
    """Many small connections of one address hold more than the large connection of another."""

    async def case(rig: Rig) -> None:
        many = [rig.known(f"192.0.2.{1 + number % 2}", held=MIB) for number in range(26)]
        honest = rig.known("192.0.2.9", held=6 * MIB)
        honest.hold(POOL - 26 * MIB + 1)
        assert rig.admission.budget.space.bytes <= POOL, "at once"
        assert sum(one.ended == "shed" for one in many) == 1
        await settled(rig)
        assert not honest.ended
        assert {one.ended for one in many} == {"shed", ""}
        assert rig.admission.budget.space.bytes <= POOL * 3 // 4

    run(case)


def test_many_closings_are_spread_over_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "SHED_S", 0.0)

    async def case(rig: Rig) -> None:
        many = [rig.known(f"192.0.2.{number % 4}", held=MIB * 2 // 5) for number in range(80)]
        many[0].hold(MIB * 2 // 5 + MIB)
        many[1].hold(MIB * 2 // 5 + MIB)
        closed = [sum(bool(one.ended) for one in many)]
        assert 0 < closed[0] < 5, "what exceeds the pool, at once"
        while rig.admission._shedding:
            await asyncio.sleep(0)
            closed.append(sum(bool(one.ended) for one in many))
            assert closed[-1] - closed[-2] <= 1
        assert closed[-1] > 10
        assert rig.admission.budget.space.bytes <= POOL * 3 // 4

    run(case)


def test_effects_of_a_close_are_counted_before_another_is_closed() -> None:
    """The end of one connection raises the bytes of another, as its will does."""

    class Leaving(Connection):
        heir: Connection

        def shed(self, *, explain: bool = True) -> None:
            super().shed(explain=explain)
            self.heir.hold(3 * MIB)

    async def case(rig: Rig) -> None:
        leaving = Leaving(rig.counted)
        assert leaving.identify()
        others = [rig.known(f"192.0.2.{2 + number}", held=2 * MIB) for number in range(13)]
        leaving.heir = others[0]
        leaving.hold(7 * MIB)
        assert leaving.ended
        await settled(rig)
        assert rig.admission.budget.space.bytes <= POOL * 3 // 4

    run(case)


def test_user_holds_at_most_half_from_all_addresses() -> None:
    def case(rig: Rig) -> None:
        joe = [rig.known(f"192.0.2.{number}", "joe", 4 * MIB) for number in range(4)]
        ann = rig.known("192.0.2.1", "ann", 6 * MIB)
        joe[0].hold(4 * MIB + 1)
        assert joe[0].ended == "shed"
        assert not ann.ended

    run(case)


def test_under_pressure_only_the_largest_holder_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is read again when the strain ends, and closed when the strain stays."""
    monkeypatch.setattr(relief_module, "STRAINED_S_MAX", 0.05)

    async def case(rig: Rig) -> None:
        others = [rig.known("192.0.2.2", held=6 * MIB) for _ in range(2)]
        greedy = [rig.known(held=7 * MIB + number) for number in range(2)]
        await asyncio.sleep(2 * STRAINED_CHECK_S)
        assert [bool(one.paused) for one in (*greedy, *others)] == [True, False, False, False]
        greedy[1].hold(0)
        rig.admission.tick(lambda: ())
        assert not greedy[0].paused, "it is read again"
        greedy[1].hold(7 * MIB + 1)
        rig.admission.tick(lambda: ())
        await asyncio.sleep(0.06)  # longer than the patience
        rig.admission.tick(lambda: ())
        await settled(rig)
        assert greedy[1].ended == "shed"
        assert not any(one.ended for one in (greedy[0], *others))

    run(case)


def test_thousands_of_holders_are_examined_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission pauses one connection a turn until only the greediest are read."""
    monkeypatch.setattr(relief_module, "ADMISSION_CHECK_S", 0.0)

    async def case(rig: Rig) -> None:
        many = [rig.known(held=MIB // 4) for _ in range(35)]
        greedy = rig.known(held=6 * MIB)
        other = rig.known("192.0.2.2", held=8 * MIB)
        rig.known("192.0.2.3", held=4 * MIB)
        rig.admission.tick(lambda: ())
        waiting = [sum(bool(one.paused) for one in many)]
        async with asyncio.timeout(20):
            while not all(one.paused for one in many):
                await asyncio.sleep(0)
                waiting.append(sum(bool(one.paused) for one in many))
                assert waiting[-1] - waiting[-2] <= 1
        assert not greedy.paused
        assert not other.paused
        other.hold(0)
        async with asyncio.timeout(20):
            while any(one.paused for one in many):
                rig.admission.tick(lambda: ())
                await asyncio.sleep(0)

    run(case)


def test_oldest_unidentified_connection_of_the_largest_address_is_closed() -> None:
    def case(rig: Rig) -> None:
        lone = Connection(rig.counted, "192.0.2.9")
        assert not rig.admission.make_room(), "nobody gives way for his equal"
        silent = [Connection(rig.counted) for _ in range(3)]
        rig.known()
        assert rig.admission.make_room()
        assert [one.ended for one in silent] == ["aborted", "", ""]
        assert rig.admission.make_room()
        assert not rig.admission.make_room()
        assert not lone.ended
        assert rig.admission.figures.displaced == 2

    run(case)


def test_unidentified_peers_share_a_separate_pool() -> None:
    """Their cost counts, and the connection with the largest share is closed first."""

    def case(rig: Rig) -> None:
        pool = rig.admission.budget.unauthenticated
        known = rig.known(held=MIB)
        silent = Connection(rig.counted, "192.0.2.2")
        half = [Connection(rig.counted) for _ in range(120)]
        for one in half:
            one.hold(300_000)
        assert pool.bytes <= pool.bytes_max
        assert sum(one.ended == "aborted" for one in half) > 10
        assert not silent.ended
        assert not known.ended

    run(case)


def test_last_places_are_for_addresses_with_few_connections() -> None:
    def case(rig: Rig) -> None:
        for _ in range(90):
            rig.known(user="greedy")
        assert not Connection(rig.counted).identify("greedy")
        assert Connection(rig.counted, "192.0.2.2").identify("greedy"), "the same user from elsewhere"
        assert Connection(rig.counted).identify("other"), "another user from the same address"
        assert rig.admission.figures.refused == 1

    run(case)


def test_displaced_connection_is_not_admitted_afterwards() -> None:
    def case(rig: Rig) -> None:
        first, second = Connection(rig.counted), Connection(rig.counted)
        rig.admission.make_room()
        assert not first.identify("joe")
        assert second.identify("joe")

    run(case)


def test_no_new_connection_is_admitted_while_the_process_uses_too_much() -> None:
    async def case(rig: Rig) -> None:
        taken = [MEMORY + 1]
        rig.admission.resident = ResidentMemory(MEMORY, read=lambda: taken[0], trim=lambda: None)
        connections = [rig.known(f"192.0.2.{number}", held=4 * MIB) for number in range(4)]
        assert rig.admission.lets_in
        rig.admission.tick(lambda: ())
        assert not rig.admission.lets_in
        await settled(rig)
        assert sum(one.ended == "shed" for one in connections) == 2, "half of what is held"
        taken[0] = MEMORY // 2
        rig.admission.tick(lambda: ())
        assert rig.admission.lets_in

    run(case)


def test_allocator_is_rarely_queried_while_it_has_nothing_to_return() -> None:
    asked: list[float] = []
    now = 0.0
    resident = ResidentMemory(100 * MIB, read=lambda: 60 * MIB, trim=lambda: asked.append(now))
    for step in range(4 * 600):
        now = step / 4
        resident.update(now, freed=False)
    assert 5 < len(asked) < 12
    resident.update(now + 3, freed=True)
    assert asked[-1] == now, "much was given up: it is asked at once"
    resident.update(now + 1, freed=True)
    assert not resident.update(now + 1.5, freed=False), "not again that soon"
    assert resident.update(now + 6, freed=False), "and what was given up meanwhile is not forgotten"


def test_memory_of_departed_peers_is_returned() -> None:
    taken, asked = [40 * MIB], list[float]()
    resident = ResidentMemory(256 * MIB, read=lambda: taken[0], trim=lambda: asked.append(taken[0]))
    assert not resident.update(0.0, freed=False, left=True), "others may leave too"
    assert resident.update(TRIM_CALM_S, freed=False)
    taken[0] += TRIM_GROWTH_BYTES + MIB
    assert not resident.update(10.0, freed=False), "those who have it may be there"
    assert not resident.update(11.0, freed=False, left=True)
    assert resident.update(11.0 + TRIM_CALM_S, freed=False)
    assert not resident.update(20.0, freed=False, left=True), "it has not grown since"
    assert not resident.update(20.0 + TRIM_CALM_S, freed=False)


def test_memory_of_a_burst_is_returned_afterwards() -> None:
    """No connection has closed."""
    taken, asked = [40 * MIB], list[float]()
    resident = ResidentMemory(256 * MIB, read=lambda: taken[0], trim=lambda: asked.append(taken[0]))
    resident.update(0.0, freed=False)
    assert resident.update(TRIM_SETTLED_S, freed=False), "what the start took"
    for step in range(8):
        taken[0] += TRIM_SETTLED_BYTES
        assert not resident.update(10.0 + step, freed=False)
    assert resident.update(18.0 + TRIM_SETTLED_S, freed=False)
    taken[0] += TRIM_SETTLED_BYTES // 2
    assert not any(resident.update(100.0 + step, freed=False) for step in range(100))


@pytest.mark.parametrize("share", [4, 2])
def test_allocator_is_rarely_queried_while_peers_leave(share: int) -> None:
    """Each trim stops the loop for milliseconds. A process with much memory trims without waiting."""
    bytes_max, now = 1_024 * MIB, 0.0
    taken, asked = [bytes_max // share], list[float]()

    def look(**what: bool) -> None:
        taken[0] += MIB
        resident.update(now, freed=True, **what)

    resident = ResidentMemory(bytes_max, read=lambda: taken[0], trim=lambda: asked.append(now))
    for step in range(4 * 30):
        now = step / 4
        look(left=True)
    assert len(asked) == (4 if share == 4 else 15)
    assert TRIM_LATEST_S <= 10, "what was given up is given back within 10 s"


def test_memory_of_an_attack_is_returned_soon() -> None:
    asked: list[float] = []
    now = 0.0
    resident = ResidentMemory(1_024 * MIB, read=lambda: 100 * MIB, trim=lambda: asked.append(now))
    for step in range(4 * 20):
        now = step / 4
        resident.update(now, freed=step < 4 * 5, left=step < 4 * 5)
    assert asked
    assert asked[0] - 5 <= TRIM_CALM_S + 0.25


def test_ended_connections_are_reported_to_the_memory_check() -> None:
    def case(rig: Rig) -> None:
        asked: list[int] = []
        rig.admission.resident = ResidentMemory(
            MEMORY, read=lambda: 2 * TRIM_GROWTH_BYTES, trim=lambda: asked.append(1)
        )
        connection = rig.known("192.0.2.1", held=0)
        rig.admission.tick(lambda: ())
        assert not asked
        rig.counted.ended(connection)  # type: ignore[arg-type]
        rig.admission.tick(lambda: ())
        rig.admission.resident.update(asyncio.get_running_loop().time() + TRIM_CALM_S, freed=False)
        assert asked

    run(case)


@pytest.mark.parametrize(
    ("host", "remote"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::7", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
        ("", ""),
    ],
)
def test_remote_addresses_are_normalised(host: str, remote: str) -> None:
    assert remote_of(host) == remote


# --- several address spaces -------------------------------------------------------------------------------------------


class Spaces(Rig):
    """Admission of the gateway's own space and one tenant's."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = self.admission.add_space("acme")

    def tenant(self, user: str, held: int = 0) -> Connection:
        made = Connection(self.counted, "198.51.100.1")
        self.admission.choose(made, self.pool)  # type: ignore[arg-type]
        assert made.identify(user)
        made.hold(held)
        return made


def test_spaces_share_memory_equally_while_they_exist() -> None:
    async def main() -> None:
        rig = Spaces()
        own = rig.admission.budget.space
        assert own.bytes_max == rig.pool.bytes_max == POOL // 2
        rig.admission.remove_space(rig.pool)
        assert own.bytes_max == POOL

    asyncio.run(main())


def test_full_space_pauses_and_closes_only_its_own_connections() -> None:
    async def main() -> None:
        rig = Spaces()
        own = [rig.known(f"192.0.2.{n}", "alice", 2 * MIB) for n in range(3)]
        tenants = [rig.tenant(user, held * MIB) for user, held in (("a", 3), ("a", 4), ("b", 3), ("b", 3))]
        rig.admission.tick(lambda: [])
        assert [bool(each.paused) for each in tenants] == [True, False, False, False]  # the largest goes on
        assert not any(each.paused for each in own)
        more = [rig.tenant("b", MIB) for _ in range(4)]
        await settled(rig)
        assert any(each.ended for each in (*tenants, *more))
        assert not any(each.ended for each in own)

    asyncio.run(main())


def test_space_has_its_share_of_the_connections() -> None:
    async def main() -> None:
        rig = Spaces()
        served = [rig.tenant("alice") for _ in range(45)]
        late = Connection(rig.counted, "198.51.100.1")
        rig.admission.choose(late, rig.pool)  # type: ignore[arg-type]
        assert not late.identify("alice")
        assert len([rig.known("192.0.2.1", "alice") for _ in range(45)]) == len(served)

    asyncio.run(main())


def test_client_of_a_removed_space_is_refused() -> None:
    async def main() -> None:
        rig = Spaces()
        waiting = Connection(rig.counted)
        rig.admission.choose(waiting, rig.pool)  # type: ignore[arg-type]
        rig.admission.remove_space(rig.pool)
        assert not waiting.identify("alice")

    asyncio.run(main())
