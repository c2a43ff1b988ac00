"""A gateway starts with a wrong clock and gets the time later: the lake can compute each time of receipt."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.clock import YEAR_S, Clock
from tests.support.lake import rows
from tests.support.paho_client import PahoClient, mqtt_client
from tests.support.processes import edge, free_port, hub, landing_soon, wait_until

WAIT_S = 40.0
EXACT = timedelta(seconds=3)
"""Two seconds that a clock may be off before it counts as set, and one second for rounding."""


class Sent(NamedTuple):
    """Times between which a gateway received a message."""

    before: datetime
    after: datetime

    def includes(self, received: datetime) -> bool:
        return self.before - EXACT <= received <= self.after + EXACT


def told(lake: Path) -> list[dict[str, Any]]:
    return rows(lake, "clock_offsets")


def whole(lake: Path) -> set[int]:
    """Return the clock stretches with a complete offset."""
    return {row["stretch"] for row in told(lake) if row["whole"]}


def times(lake: Path) -> dict[bytes, datetime]:
    """Return the time of receipt by body: the stamp, corrected by the clock offset where it is known."""
    found = {}
    offsets = told(lake)
    for row in rows(lake, "telemetry"):
        at: datetime = row["received_at"]
        if row["clock_quality"] != "good":
            off = {one["offset_low_us"] for one in offsets if _covers(one, row)}
            assert len(off) == 1, (row["body"], off)
            at += timedelta(microseconds=off.pop())
        found[row["body"]] = at
    return found


def _covers(offset: dict[str, Any], row: dict[str, Any]) -> bool:
    if (offset["epoch"], offset["address"]) != (row["epoch"], row["address"]):
        return False
    after, until = offset["stamped_after"], offset["stamped_until"]
    stamped = (after is None or row["received_at"] > after) and (until is None or row["received_at"] <= until)
    return bool(stamped and offset["first_sequence"] <= row["sequence"] <= offset["last_sequence"])


def publish(client: PahoClient, sent: dict[bytes, Sent], *bodies: bytes) -> None:
    for number, body in enumerate(bodies):
        before = datetime.now(UTC)
        client.publish(f"plant/{number % 2}", body, 1)
        sent[body] = Sent(before, datetime.now(UTC))


def test_times_are_corrected_once_the_clock_is_set(tmp_path: Path) -> None:
    """Messages with stamps of decades ago land before and after the clock is set; another gateway's stay unchanged."""
    lake, port, sent = tmp_path / "hub" / "lake", free_port(), dict[bytes, Sent]()
    with Clock(tmp_path, synchronized=False) as clock:
        clock.set(-30 * YEAR_S, synchronized=False)
        near = edge(tmp_path, "gw1", f"--hub=amqp://127.0.0.1:{port}", "--gateway=gw1", "--forward=plant/#")
        near.environment = clock.environment
        with near:
            with mqtt_client(near, "d") as client:
                publish(client, sent, b"before the hub is there", b"and this")
            near.kill()
            near.start()
            with hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)), mqtt_client(near, "d") as client:
                publish(client, sent, b"after a start", b"of the same boot")
                wait_until(lambda: len(rows(lake, "telemetry")) == len(sent), timeout_s=WAIT_S, what="landed, wrong")
                announced = told(lake)
                assert {(row["known"], row["address"]) for row in announced} == {("not yet", None)}
                off = announced[0]["heard_at"] - announced[0]["told_at"]
                assert timedelta(seconds=30 * YEAR_S) <= off < timedelta(seconds=30 * YEAR_S + WAIT_S)
                clock.set(30 * YEAR_S, synchronized=False)
                time.sleep(0.01)  # the clock shows that time for a moment
                publish(client, sent, b"from the future", b"this too")
                clock.set(0, synchronized=True)
                publish(client, sent, b"right", b"and right")
                wait_until(lambda: len(rows(lake, "telemetry")) == len(sent), timeout_s=WAIT_S, what="all has landed")
                wait_until(lambda: whole(lake) == {1, 2}, timeout_s=WAIT_S, what="what was off is known")
    assert {row["known"] for row in told(lake) if row["whole"]} == {"measured"}
    found = times(lake)
    assert found.keys() == sent.keys()
    assert {body: at for body, at in sent.items() if not at.includes(found[body])} == {}
    assert sum(row["clock_quality"] == "good" for row in rows(lake, "telemetry")) == 2
