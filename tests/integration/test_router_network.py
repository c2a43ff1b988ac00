"""Direct messages over a network of routers: credit, outcomes, paths and loops, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

from edge.broker.model.interfaces import DeliveryOutcome, Refusal
from edge.broker.tracing.events import line_of
from edge.broker.tracing.watch import TraceFilter
from tests.support.router_network import NetworkConsumer, NetworkOrigin, eventually, routers

LINE = (("a", "b", 1), ("b", "c", 1))
RING = (("a", "b", 1), ("b", "d", 1), ("a", "c", 5), ("c", "d", 5))


def scenario(run: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """Run a test on its own event loop."""

    @wraps(run)
    def test() -> None:
        asyncio.run(run())

    return test


@scenario
async def test_a_message_reaches_a_consumer_two_hops_away_and_its_outcome_returns() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, _, c):
        sender = NetworkOrigin(a, "jobs/x")
        assert sender.credit == 0
        receiver = NetworkConsumer(c, "jobs/x", credit=70)
        await eventually(lambda: sender.credit == 70, "the credit of the consumer")
        sender.publish("1", "2", "3")
        await eventually(lambda: len(sender.answers) == 3)
        assert sender.outcomes == {"accepted": 3}
        assert receiver.got == ["1", "2", "3"]
        assert receiver.runs[0].hops == ("a", "b")  # type: ignore[attr-defined]


@scenario
async def test_without_a_consumer_anywhere_there_is_no_credit() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, _, c):
        sender = NetworkOrigin(a, "jobs/x")
        assert sender.credit == 0
        receiver = NetworkConsumer(c, "jobs/x")
        await eventually(lambda: sender.credit)
        receiver.leave()
        await eventually(lambda: not sender.credit, "no credit after the only consumer has left")
        sender.publish("late")
        await eventually(lambda: sender.answers)
        assert sender.outcomes == {Refusal.NO_CONSUMER: 1}


@scenario
async def test_every_outcome_returns_over_two_hops_with_its_condition() -> None:
    expected = {
        DeliveryOutcome.ACCEPTED: "accepted",
        DeliveryOutcome.REJECTED: Refusal.REJECTED,
        DeliveryOutcome.RELEASED: Refusal.RELEASED,
        DeliveryOutcome.MODIFIED_FAILED: Refusal.DELIVERY_FAILED,
        DeliveryOutcome.MODIFIED_UNDELIVERABLE: Refusal.UNDELIVERABLE,
    }
    async with routers("a", "b", "c", links=LINE) as (a, _, c):
        for number, (outcome, answer) in enumerate(expected.items()):
            sender = NetworkOrigin(a, f"jobs/{number}")
            NetworkConsumer(c, f"jobs/{number}", outcome=outcome)
            await eventually(lambda: sender.credit)  # noqa: B023 - awaited in the same pass
            sender.publish("x")
            await eventually(lambda: sender.answers)  # noqa: B023
            assert sender.outcomes == {answer: 1}, outcome


@scenario
async def test_consumers_here_come_first_and_others_take_what_they_have_no_credit_for() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, b, c):
        here, near, far = (NetworkConsumer(each, "jobs/x", credit=2, outcome=None) for each in (a, b, c))
        sender = NetworkOrigin(a, "jobs/x")
        await eventually(lambda: sender.credit == 2)
        sender.publish("1", "2")
        assert here.got == ["1", "2"]
        await eventually(lambda: sender.credit == 2, "the credit of the near consumer")
        sender.publish("3", "4")
        await eventually(lambda: near.got == ["3", "4"])
        await eventually(lambda: sender.credit == 2, "the credit of the far consumer")
        sender.publish("5", "6")
        await eventually(lambda: far.got == ["5", "6"])
        for each in (here, near, far):
            for subscription, position in each.held:
                subscription.settle(each, position, position, DeliveryOutcome.ACCEPTED)
        await eventually(lambda: sender.outcomes == {"accepted": 6})


@scenario
async def test_multicast_reaches_every_consumer_of_every_router_once() -> None:
    async with routers("a", "b", "c", "d", links=RING) as (a, b, c, d):
        sender = NetworkOrigin(a, "news/x")
        assert sender.credit == 0
        receivers = [NetworkConsumer(each, filters) for each in (a, b, c, d, d) for filters in ("news/x", "news/#")]
        await eventually(lambda: len(a.network.sinks("news/x")) == 2)
        assert sender.credit > 0
        sender.publish(*map(str, range(100)))
        await eventually(lambda: all(len(each.got) >= 100 for each in receivers))
        assert [each.got for each in receivers] == [[str(i) for i in range(100)]] * len(receivers)
        assert sender.outcomes == {"accepted": 100}
        # a copy for each router: b passes d's on, and c, which is behind a link of higher cost, gets its own
        received = sum(each.traffic.received for router in (b, c, d) for each in router.network.peerings.values())
        assert received == 300


@scenario
async def test_messages_take_the_cheapest_path_and_another_one_after_its_loss() -> None:
    async with routers("a", "b", "c", "d", links=RING) as (a, b, _, d):
        sender = NetworkOrigin(a, "jobs/x")
        receiver = NetworkConsumer(d, "jobs/x")
        await eventually(lambda: sender.credit)
        sender.publish("1")
        await eventually(lambda: sender.outcomes == {"accepted": 1})
        assert receiver.runs[0].hops == ("a", "b")  # type: ignore[attr-defined]
        await b.stop()
        await eventually(lambda: a.reached == {"a", "c", "d"})
        await eventually(lambda: sender.credit)
        sender.publish("2")
        await eventually(lambda: sender.outcomes == {"accepted": 2})
        assert receiver.runs[1].hops == ("a", "c")  # type: ignore[attr-defined]


@scenario
async def test_unanswered_messages_of_a_lost_link_fail_and_go_to_nobody_else() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, b, c):
        sender = NetworkOrigin(a, "jobs/x")
        receiver = NetworkConsumer(c, "jobs/x", outcome=None)
        await eventually(lambda: sender.credit)
        sender.publish("1", "2")
        await eventually(lambda: len(receiver.got) == 2)
        other = NetworkConsumer(a, "jobs/x")
        await b.stop()
        await eventually(lambda: len(sender.answers) == 2)
        assert sender.outcomes == {Refusal.PATH_LOST: 2}
        assert other.got == []


@scenario
async def test_the_packet_trace_shows_messages_of_links_between_routers_and_their_answers() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, b, c):
        sender = NetworkOrigin(a, "jobs/x")
        NetworkConsumer(c, "jobs/x", outcome=DeliveryOutcome.REJECTED)
        await eventually(lambda: sender.credit)
        traced = (
            (a, TraceFilter(), "-> b relayed jobs/x", "1 message to c"),
            (b, TraceFilter("a"), "<- a relayed jobs/x", "1 message by a"),
            (b, TraceFilter("c"), "-> c relayed jobs/x", "1 message to c"),
            (b, TraceFilter(address="jobs/#"), "== a relayed jobs/x", "refused because"),
            (a, TraceFilter("b"), "== b relayed jobs/x", "rejected, 1 message, the answer of the neighbour"),
        )
        watches = [router.broker.tracer.watch(about, lambda: None) for router, about, *_ in traced]
        other = b.broker.tracer.watch(TraceFilter(address="news/#"), lambda: None)
        sender.publish("1")
        await eventually(lambda: sender.answers)
        for watch, (router, _, begin, words) in zip(watches, traced, strict=True):
            lines = [line_of(event).partition(" ")[2] for event in watch.take()]
            assert any(line.startswith(begin) and words in line for line in lines), (router.name, begin, lines)
        assert not [event for event in other.take() if event.name == "relayed"]


@scenario
async def test_the_packet_trace_shows_multicast_messages_between_routers() -> None:
    async with routers("a", "b", links=LINE[:1]) as (a, b):
        sender = NetworkOrigin(a, "news/x")
        receiver = NetworkConsumer(b, "news/x")
        await eventually(lambda: a.network.sinks("news/x"))
        watch = b.broker.tracer.watch(TraceFilter("a"), lambda: None)
        sender.publish("1", "2")
        await eventually(lambda: len(receiver.got) == 2)
        assert any(event.name == "relayed" and event.address == "news/x" for event in watch.take())


@scenario
async def test_an_orderly_stop_waits_for_the_outcomes_of_messages_that_pass_through() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, b, c):
        sender = NetworkOrigin(a, "jobs/x")
        receiver = NetworkConsumer(c, "jobs/x", outcome=None)
        await eventually(lambda: sender.credit)
        sender.publish("1", "2")
        await eventually(lambda: len(receiver.got) == 2)
        stopping = asyncio.create_task(b.stop_orderly())
        await eventually(lambda: a.reached == {"a"}, "no path over the router that stops")
        assert not sender.credit
        assert not sender.answers
        for subscription, position in receiver.held:
            subscription.settle(receiver, position, position, DeliveryOutcome.ACCEPTED)
        await stopping
        assert sender.outcomes == {"accepted": 2}


@scenario
async def test_an_orderly_stop_waits_for_its_own_consumers_and_senders() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, b, c):
        senders = [NetworkOrigin(a, "jobs/b"), NetworkOrigin(b, "jobs/c")]
        receivers = [NetworkConsumer(b, "jobs/b", outcome=None), NetworkConsumer(c, "jobs/c", outcome=None)]
        for sender in senders:
            await eventually(lambda: sender.credit)  # noqa: B023 - awaited in the same pass
            sender.publish("1")
        await eventually(lambda: all(each.got for each in receivers))
        stopping = asyncio.create_task(b.stop_orderly())
        await eventually(lambda: a.reached == {"a"}, "no path to the router that stops")
        for receiver in receivers:
            for subscription, position in receiver.held:
                subscription.settle(receiver, position, position, DeliveryOutcome.ACCEPTED)
        await stopping
        assert [sender.outcomes for sender in senders] == [{"accepted": 1}] * 2


@scenario
async def test_an_orderly_stop_does_not_wait_for_ever() -> None:
    async with routers("a", "b", links=LINE[:1]) as (a, b):
        sender = NetworkOrigin(a, "jobs/x")
        receiver = NetworkConsumer(b, "jobs/x", outcome=None)
        await eventually(lambda: sender.credit)
        sender.publish("1")
        await eventually(lambda: receiver.got)
        await b.stop_orderly(patience_s=0.2)
        await eventually(lambda: sender.outcomes == {Refusal.PATH_LOST: 1})


@scenario
async def test_an_orderly_stop_moves_messages_to_another_path_without_losing_one() -> None:
    async with routers("a", "b", "c", "d", links=RING) as (a, b, _, d):
        sender = NetworkOrigin(a, "jobs/x")
        NetworkConsumer(d, "jobs/x")
        await eventually(lambda: sender.credit)
        stopping = asyncio.create_task(b.stop_orderly())
        sent = 0
        while not stopping.done() or sent < 1_000:
            await eventually(lambda: sender.credit)
            sender.publish(*map(str, range(sent, sent + 10)))
            sent += 10
            await asyncio.sleep(0)
        await eventually(lambda: len(sender.answers) == sent)
        assert set(sender.outcomes) <= {"accepted", Refusal.RELEASED, Refusal.NO_CONSUMER}


@scenario
async def test_a_better_path_takes_over_without_losing_unanswered_messages() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, _, c):
        sender = NetworkOrigin(a, "jobs/x")
        receiver = NetworkConsumer(c, "jobs/x", outcome=None)
        await eventually(lambda: sender.credit)
        sender.publish("1")
        await eventually(lambda: receiver.got == ["1"])
        a.dial(c.port)
        await eventually(lambda: a.network.protocol.paths.next_hop("a", "c") == "c")
        await eventually(lambda: sender.credit)
        sender.publish("2")
        await eventually(lambda: receiver.got == ["1", "2"])
        assert [run.hops for run in receiver.runs] == [("a", "b"), ("a",)]  # type: ignore[attr-defined]
        for subscription, position in receiver.held:
            subscription.settle(receiver, position, position, DeliveryOutcome.ACCEPTED)
        await eventually(lambda: sender.outcomes == {"accepted": 2})
        (egress,) = a.network._remote["jobs/x"].egress
        assert egress.peering.peer_name == "c"
        await eventually(
            lambda: not any(peering.egress for peering in a.network.peerings.values() if peering.peer_name == "b")
        )


@scenario
async def test_a_filter_is_announced_and_a_message_to_a_matching_address_arrives() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, _, c):
        receiver = NetworkConsumer(c, "jobs/+/new")
        sender = NetworkOrigin(a, "jobs/7/new")
        await eventually(lambda: sender.credit)
        sender.publish("x")
        await eventually(lambda: sender.outcomes == {"accepted": 1})
        assert receiver.got == ["x"]
        receiver.leave()
        await eventually(lambda: not sender.credit)


@scenario
async def test_two_routers_of_one_name_are_not_linked() -> None:
    async with routers("a") as (a,), routers("a") as (other,):
        a.dial(other.port)
        (connector,) = a.uplinks
        await eventually(lambda: connector.dialer.state.last_error)
        assert "name of this router" in str(connector.dialer.state.last_error)


@scenario
async def test_the_larger_traffic_of_two_directions_is_complete() -> None:
    async with routers("a", "b", "c", links=LINE) as (a, _, c):
        NetworkConsumer(a, "jobs/left"), NetworkConsumer(c, "jobs/right")
        senders = [NetworkOrigin(a, "jobs/right"), NetworkOrigin(c, "jobs/left")]
        for _ in range(50):
            for sender in senders:
                await eventually(lambda: sender.credit >= 100)  # noqa: B023 - awaited in the same pass
                sender.publish(*map(str, range(100)))
        await eventually(lambda: all(sender.outcomes == {"accepted": 5_000} for sender in senders))
