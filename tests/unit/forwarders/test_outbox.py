"""The outgoing interface: messages that a connector takes, their order, and their settlement at the router."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bridge import limits
from bridge.flow import Outcomes
from bridge.forwarders.mapping import Mapping
from bridge.forwarders.outbox import ForwarderOutbox, ForwardRule, Outgoing, Outlet, SendOptions
from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run, Stored

HOUR_NS = 3_600_000_000_000
NOW_NS = 1_800_000_000_000_000_000


class Log:
    """Subscription of the router: published messages wait for credit, and settlements are recorded."""

    def __init__(self) -> None:
        self.outlet: Outlet
        self.settled: dict[int, str] = {}
        self._waiting: list[Stored] = []
        self._next = 0

    def publish(self, *bodies: bytes, received_at: int = NOW_NS, address: str = "plant/7") -> None:
        run = Run(address, "dev", 1, b"", list(bodies), received_at)
        self._waiting.append(Stored(self._next, self._next, run))
        self._next += len(bodies)
        self.pump()

    def pump(self) -> None:
        while self._waiting and (credit := self.outlet.flow.credit) > 0:
            position, sequence, run = self._waiting.pop(0)
            if len(run) > credit:
                rest = Stored(position + credit, sequence + credit, run.part(credit, len(run)))
                self._waiting.insert(0, rest)
                run = run.part(0, credit)
            self.outlet.flow.deliver(self, [Stored(position, sequence, run)])

    def settle(self, consumer: object, first: int, last: int, outcome: str) -> None:
        assert consumer is self.outlet.flow
        for position in range(first, last + 1):
            assert position not in self.settled, "settled twice"
            self.settled[position] = outcome


class Bench:
    """An outbox with a forwarder for each log, and a connected connector."""

    def __init__(self, *rules: ForwardRule, window_bytes: int = 1 << 20) -> None:
        outcomes = Outcomes("accepted", "rejected", "expired")
        self.outbox = ForwarderOutbox(
            "gw1", outcomes, epoch_of=lambda _address, _sequence: "e", now_ns=lambda: NOW_NS, window_bytes=window_bytes
        )
        self.logs = [Log() for _ in rules]
        for log, rule in zip(self.logs, rules, strict=True):
            log.outlet = self.outbox.add(rule)
            log.outlet.flow.add(log)
        self.cuts: list[str] = []
        self.attach()

    def attach(self) -> None:
        self.outbox.attached(lambda: None, self.cuts.append)

    def take(self, count: int = 100) -> list[Outgoing]:
        taken = []
        while (outgoing := self.outbox.take(count, 1 << 20)) is not None:
            taken.append(outgoing)
        return taken


def bodies(taken: Sequence[Outgoing]) -> list[bytes]:
    return [body for outgoing in taken for body in outgoing.stored.run.bodies]


def rule(name: str = "f", remote: str = "cloud/#", **fields: object) -> ForwardRule:
    return ForwardRule(name, Mapping("plant/#", remote, "gw1"), **fields)  # type: ignore[arg-type]


def test_message_has_its_name_and_remote_address() -> None:
    bench = Bench(rule())
    bench.logs[0].publish(b"a", b"b")
    (outgoing,) = bench.take()
    assert (outgoing.address, outgoing.stored.sequence, outgoing.hop) == ("cloud/7", 0, ("gw1", "e"))
    bench.outbox.settle(outgoing.ticket, ForwardOutcome.ACCEPTED)
    assert bench.logs[0].settled == {0: "accepted", 1: "accepted"}


def test_part_of_a_run_is_settled_separately() -> None:
    bench = Bench(rule())
    bench.logs[0].publish(b"a", b"b", b"c")
    (outgoing,) = bench.take()
    bench.outbox.settle(outgoing.ticket, ForwardOutcome.ACCEPTED, count=1)
    assert bench.logs[0].settled == {0: "accepted"}
    bench.outbox.settle(outgoing.ticket, ForwardOutcome.REJECTED, "no", count=1)
    bench.outbox.detached()
    bench.attach()
    assert bodies(bench.take()) == [b"c"], "only what has no outcome goes again"
    assert bench.logs[0].settled == {0: "accepted", 1: "rejected"}


def test_unsettled_messages_are_repeated_in_order() -> None:
    bench = Bench(rule())
    for body in (b"a", b"b", b"c"):
        bench.logs[0].publish(body)
    first, second, third = bench.take()
    bench.outbox.settle(second.ticket, ForwardOutcome.ACCEPTED)
    bench.outbox.detached()
    bench.outbox.settle(third.ticket, ForwardOutcome.ACCEPTED)  # too late: of a connection that has ended
    bench.attach()
    assert bodies(bench.take()) == [b"a", b"c"]
    assert first.ticket not in (outgoing.ticket for outgoing in bench.take())
    assert bench.logs[0].settled == {1: "accepted"}


def test_released_message_ends_the_connection_and_settles_nothing() -> None:
    bench = Bench(rule())
    bench.logs[0].publish(b"a")
    (outgoing,) = bench.take()
    bench.outbox.settle(outgoing.ticket, ForwardOutcome.RELEASED, "full")
    assert bench.cuts
    assert "full" in bench.cuts[0]
    assert bench.logs[0].settled == {}


def test_nothing_is_taken_from_the_router_without_a_connection() -> None:
    bench = Bench(rule())
    bench.outbox.detached()
    bench.logs[0].publish(b"a")
    assert bench.logs[0].outlet.flow.held_bytes == 0
    bench.attach()
    assert bodies(bench.take()) == [b"a"]


def test_window_bounds_the_buffered_messages() -> None:
    size = limits.OUTLET_WINDOW_BYTES_MIN
    bench = Bench(rule(), window_bytes=size)
    for _ in range(100):
        bench.logs[0].publish(bytes(size // 10))
    held = bench.logs[0].outlet.flow.held_bytes
    assert size <= held < 2 * size, "at most the delivery that crossed it"
    for outgoing in bench.take():
        bench.outbox.settle(outgoing.ticket, ForwardOutcome.ACCEPTED)
    assert len(bench.logs[0].settled) >= 10
    assert bench.outbox.waiting, "room was asked to be filled again"


def test_forwarders_share_the_window_of_the_connector() -> None:
    many = 16 * limits.OUTBOX_WINDOW_BYTES // limits.OUTLET_WINDOW_BYTES_MIN
    bench = Bench(*(rule(f"f{i}") for i in range(4)), window_bytes=limits.OUTBOX_WINDOW_BYTES)
    assert bench.outbox.window_bytes == limits.OUTBOX_WINDOW_BYTES // 4
    crowd = Bench(*(rule(f"f{i}") for i in range(many)), window_bytes=limits.OUTBOX_WINDOW_BYTES)
    assert crowd.outbox.window_bytes == limits.OUTLET_WINDOW_BYTES_MIN


def test_higher_priority_goes_first_and_equal_ones_alternate() -> None:
    bench = Bench(rule("low"), rule("one", priority=5), rule("other", priority=5))
    low, one, other = bench.logs
    for i in range(2):
        low.publish(b"low %d" % i)
        one.publish(b"one %d" % i)
        other.publish(b"other %d" % i)
    assert bodies(bench.take()) == [b"one 0", b"other 0", b"one 1", b"other 1", b"low 0", b"low 1"]


def test_filtered_messages_are_settled_and_counted() -> None:
    bench = Bench(rule(wanted=lambda run: [body != b"no" for body in run.bodies]))
    bench.logs[0].publish(b"no", b"yes", b"no", b"no", b"yes")
    taken = bench.take()
    assert bodies(taken) == [b"yes", b"yes"]
    assert [outgoing.stored.sequence for outgoing in taken] == [1, 4]
    assert bench.logs[0].settled == dict.fromkeys((0, 2, 3), "accepted")
    assert bench.logs[0].outlet.figures.filtered == 3


def test_too_old_messages_are_not_sent() -> None:
    bench = Bench(rule(sending=SendOptions(ttl_s=60)))
    bench.logs[0].publish(b"old", received_at=NOW_NS - HOUR_NS)
    bench.logs[0].publish(b"new")
    assert bodies(bench.take()) == [b"new"]
    assert bench.logs[0].settled == {0: "expired"}
    assert bench.logs[0].outlet.figures.expired == 1


@pytest.mark.parametrize("settle_first", [True, False])
def test_removed_forwarder_has_no_effect(settle_first: bool) -> None:
    bench = Bench(rule("ends"), rule("stays"))
    gone, stays = bench.logs
    gone.publish(b"a")
    stays.publish(b"b")
    taken = bench.take()
    outlet = gone.outlet
    outlet.flow.remove(gone)
    bench.outbox.remove(outlet)
    if settle_first:
        for outgoing in taken:
            bench.outbox.settle(outgoing.ticket, ForwardOutcome.ACCEPTED)
    else:
        bench.outbox.detached()
        bench.attach()
        assert bodies(bench.take()) == [b"b"]
    assert gone.settled == {}
    assert outlet.flow.held_bytes == 0


def test_message_without_a_remote_name_after_a_filter_change_is_rejected() -> None:
    bench = Bench(ForwardRule("f", Mapping("plant/+", "cloud/+", "gw1")))
    bench.logs[0].publish(b"a", b"b", address="plant/7/temp")
    bench.logs[0].publish(b"c")
    assert bodies(bench.take()) == [b"c"]
    assert bench.logs[0].settled == {0: "rejected", 1: "rejected"}
    assert bench.logs[0].outlet.figures.rejected == 2
