"""SIGKILL of a gateway under mixed load: no acknowledged message is lost, and only un-acked ones are repeated.

The load is MQTT at QoS 1 and 2 and AMQP. It goes into a topic with durable subscriptions of both protocols; a queue; a
queue with a consumer that rejects every third message (each becomes one dead letter); a queue that drops its oldest
(the ledger has the rest); a topic with commits that wait for more; a topic in memory (each message is delivered or in
the ledger); and a retained one. The test prints the seed, and ``WAYPOST_SEED=n`` repeats the moments. The 1 000 kills:
``./waypost test tests/fault/test_gateway_kills.py -m slow -s`` (about 30 minutes; ``WAYPOST_KILLS=n`` for less).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fault.kills.checker import (
    Consumed,
    Death,
    Given,
    Kill,
    Lives,
    Produced,
    Verdict,
    judge,
    judge_dead,
    judge_memory,
    judge_ring,
)
from tests.fault.kills.load import RESOURCES, Load
from tests.fault.kills.nursery import Nursery
from tests.support.processes import Waypost, free_port, wait_until
from tests.support.seeds import chosen_seed


def kill(gateway: Waypost, load: Load, data: Path, count: int, chance: random.Random) -> list[Kill]:
    """Kill `count` times at random moments.

    Most kills come after something was acked since the start, some during the start. A few come after messages in
    memory were written because a consumer is offline.
    """
    kills: list[Kill] = []
    for number in range(count):
        acked = load.acked()
        if chance.random() < 0.8:
            wait_until(lambda acked=acked: load.acked() > acked, timeout_s=30, what="it serves", every_s=0.01)
        time.sleep(chance.uniform(0.02, 0.4) if number % 30 != 5 else chance.uniform(5.5, 7))  # the random moment
        at = time.monotonic()
        gateway.kill()
        load.died(data)
        gateway.start()
        kills.append(Kill(at, time.monotonic()))
        if number % 50 == 49:
            print(f"{number + 1} kills", flush=True)
    return kills


def campaign(folder: Path, count: int) -> dict[str, Verdict]:
    seed = chosen_seed()
    mqtt, amqp, data = free_port(), free_port(), folder / "gw"
    (folder / "gateway.yaml").write_text(RESOURCES)
    listeners = (f"--mqtt=127.0.0.1:{mqtt}", f"--amqp=127.0.0.1:{amqp}")
    arguments = ("run", "--data", str(data), "--config", str(folder / "gateway.yaml"), *listeners)
    with Nursery(folder / "gw.log", *arguments) as gateway:
        load = Load(mqtt, amqp)
        load.start()
        kills = kill(gateway, load, data, count, random.Random(seed))
        load.end(data)
        assert gateway.stop() == 0
    verdicts = load.verdicts(kills, data)
    for address, verdict in verdicts.items():
        print(f"{count} kills, {address}: {verdict}")
    return verdicts


def hold(verdicts: dict[str, Verdict], kills: int) -> None:
    for address, verdict in verdicts.items():
        assert not verdict.problems, f"{address}: " + "\n".join(verdict.problems[:5])
        assert verdict.acked > kills, "there was load"


def test_6_kills_break_no_promise(tmp_path: Path) -> None:
    verdicts = campaign(tmp_path, 6)
    hold(verdicts, 6)
    assert verdicts["topic/once"].again == 0


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_1000_kills_break_no_promise(tmp_path: Path) -> None:
    kills = int(os.environ.get("WAYPOST_KILLS", "1000"))
    verdicts = campaign(tmp_path, kills)
    hold(verdicts, kills)
    assert verdicts["topic/once"].again == 0


class TestChecker:
    """The checker finds each kind of violation."""

    PRODUCED = Produced("a", [b"a:0", b"a:1"], 3)

    def problems(
        self, *bodies: bytes, acked: float = 9.0, kills: Sequence[float] = (), once: bool = False
    ) -> list[str]:
        consumed = Consumed(
            "c", once, [(float(at), body) for at, body in enumerate(bodies)], dict.fromkeys(bodies, acked)
        )
        return judge([self.PRODUCED], [consumed], [Kill(kill, kill + 0.1) for kill in kills]).problems

    def test_complete_delivery_is_no_problem(self) -> None:
        assert not self.problems(b"a:0", b"a:1")
        assert not self.problems(b"a:0", b"a:1", b"a:2")
        assert not self.problems(b"a:0", b"a:1", b"a:1", kills=[1.5], acked=1.4)

    def test_missing_message_is_a_problem(self) -> None:
        assert "missing" in self.problems(b"a:0")[0]

    def test_message_without_producer_is_a_problem(self) -> None:
        assert "nobody" in self.problems(b"a:0", b"a:1", b"a:7")[0]

    def test_wrong_order_is_a_problem(self) -> None:
        assert "after" in self.problems(b"a:1", b"a:0")[0]

    @pytest.mark.parametrize("kills", [[], [0.5], [2.5]])
    def test_redelivery_without_a_kill_is_a_problem(self, kills: list[float]) -> None:
        assert "again" in self.problems(b"a:0", b"a:1", b"a:1", kills=kills)[0]

    def test_redelivery_long_after_acknowledgement_is_a_problem(self) -> None:
        assert "again" in self.problems(b"a:0", b"a:1", b"a:1", b"a:1", kills=[1.9], acked=1.3)[0]

    @pytest.mark.parametrize(("connected", "well"), [(0.5, True), (1.2, False)])
    def test_late_read_is_allowed_only_from_connection_that_the_kill_ended(self, connected: float, well: bool) -> None:
        body = b"a:1"
        consumed = Consumed("c", got=[(0.0, b"a:0"), (2.0, body), (3.0, body)], came_on={body: connected})
        assert bool(judge([self.PRODUCED], [consumed], [Kill(1.0, 1.1)]).problems) != well

    def test_redelivery_at_qos_2_is_a_problem(self) -> None:
        assert "again" in self.problems(b"a:0", b"a:1", b"a:1", kills=[1.5], once=True)[0]

    RING = Given(3, [(0, 1, 2, "evicted")])

    @pytest.mark.parametrize(("left", "given", "well"), [
        ((b"a:2",), RING, True),
        ((b"a:1", b"a:2"), RING, False),
        ((), RING, False),
        ((b"a:2",), Given(3, [(0, 0, 1, "evicted")]), False),
        ((b"a:2",), Given(3, [(0, 1, 2, "evicted"), (1, 1, 1, "evicted")]), False),
        ((b"a:2",), Given(3, [(0, 1, 2, "expired")]), False),
        ((b"a:0",), RING, False),
        ((b"a:2",), Given(4, [(0, 2, 3, "evicted")]), False),
    ])  # fmt: skip
    def test_message_dropped_by_ring_is_in_the_ledger(self, left: Sequence[bytes], given: Given, well: bool) -> None:
        consumed = Consumed("c", got=[(1.0, body) for body in left])
        assert bool(judge_ring([self.PRODUCED], consumed, given).problems) != well

    @pytest.mark.parametrize(("dead", "given", "well"), [
        ((b"a:0",), Given(1, [(0, 0, 1, "dead-lettered: rejected")]), True),
        ((), Given(1, [(0, 0, 1, "dead-lettered: rejected")]), False),
        ((b"a:0", b"a:1"), Given(2, [(0, 1, 2, "dead-lettered: rejected")]), False),
        ((b"a:0",), Given(2, [(0, 0, 1, "dead-lettered: rejected")]), False),
        ((b"a:0",), Given(1, []), False),
        ((b"a:0",), Given(1, [(0, 0, 1, "dead-lettered: rejected"), (1, 1, 1, "rejected")]), False),
        ((b"a:0", b"a:0"), Given(1, [(0, 0, 1, "dead-lettered: rejected")]), False),
    ])  # fmt: skip
    def test_each_rejected_message_is_one_dead_letter(self, dead: Sequence[bytes], given: Given, well: bool) -> None:
        worker = Consumed("w", got=[(1.0, b"a:0"), (2.0, b"a:1")])
        undertaker = Consumed("u", got=[(3.0, body) for body in dead], acked=dict.fromkeys(dead, 3.0))
        verdict = judge_dead(worker, undertaker, lambda body: body == b"a:0", given, [])
        assert bool(verdict.problems) != well

    LIVES = Lives([(0.0, 0), (2.0, 2)], [Death(1.0, 8)], [(0, 7, "memory")])
    """Two messages in the first life, numbered 0 and 1; two in the second, 8 and 9."""

    @pytest.mark.parametrize(("got", "lives", "well"), [
        ((b"a:0", b"a:1", b"a:2", b"a:3"), LIVES, True),
        ((b"a:0", b"a:2", b"a:3"), LIVES, True),
        ((b"a:2", b"a:3"), LIVES, True),
        ((b"a:0", b"a:1", b"a:2"), LIVES, False),
        ((b"a:0", b"a:1", b"a:3"), LIVES, False),
        ((b"a:2", b"a:3"), LIVES._replace(ledger=[(1, 7, "memory")]), False),
        ((b"a:2", b"a:3"), LIVES._replace(ledger=[(0, 7, "evicted")]), False),
        ((b"a:0", b"a:1", b"a:2", b"a:3"), LIVES._replace(deaths=[Death(1.0, 1)]), False),
        ((b"a:0", b"a:1", b"a:2", b"a:3"), LIVES._replace(deaths=[]), False),
        ((b"a:0", b"a:2", b"a:1", b"a:3"), LIVES, False),
        ((b"a:0", b"a:1", b"a:1", b"a:2", b"a:3"), LIVES, False),
        ((b"a:0", b"a:1", b"a:2", b"a:3", b"b:0"), LIVES, False),
    ])  # fmt: skip
    def test_message_lost_from_memory_is_in_the_ledger(self, got: Sequence[bytes], lives: Lives, well: bool) -> None:
        produced = Produced("a", [b"a:0", b"a:1", b"a:2", b"a:3"], 4)
        consumed = Consumed("c", got=[(float(at), body) for at, body in enumerate(got)])
        assert bool(judge_memory(produced, consumed, lives, []).problems) != well
