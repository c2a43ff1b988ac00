"""Fast path for PUBLISH packets to known topics, read in C (`arrivals.c`) for all connections.

A connection gets a *lane* with its first PUBLISH that a log stores or live subscribers get. From then on the lane reads
what the client sends. It learns a topic after the state machine has read the first message. Further messages of the
topic are read without a call of Python and given to the router at the end of the turn, in their order. Everything else
goes to the state machine, behind the messages that the lane took before. After a change of routes the router processes
the next message of each topic on its own, and decides whether the topic stays on the fast path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from bridge.message import DURABLE, RETAIN, Run
from bridge.native import functions as native
from bridge.transport.driver import ConnectionDriver, answer_all
from edge.broker.delivery.batches import LiveOffer
from edge.broker.model.authorization import Grant, do_nothing
from edge.broker.model.interfaces import Acceptance, Origin, Refusal
from edge.broker.model.isolation import call_origin, send_answer
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import PublishEvent
from edge.broker.mqtt.limits import HEAD_BYTES_MAX, HEADS_CACHED_MAX, PREFIXES_KNOWN_MAX
from edge.broker.mqtt.unread import UNREADY
from edge.broker.router.batch import CollectedBatch, LogRuns, Publication, RouteTargets
from edge.broker.router.live_subscriptions import LiveSink
from edge.broker.router.router import Router

log = logging.getLogger(__name__)

LONG, LATE = 1, 2
"""Kinds of reads in `arrivals.c`: LONG yields to other connections afterwards, LATE has to wait for its turn."""


class LanePublisher(Origin, Protocol):
    """The handler of a connection, as its lane uses it."""

    connection: MqttConnection


class LaneBatch(CollectedBatch):
    """Consecutive messages of lanes."""

    __slots__ = ("_batch", "logs", "messages", "offers")

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.logs = [LogRuns(*row) for row in native.mqtt_list_rows(batch)]
        self.offers = [(row[0], LiveOffer(*row[1:])) for row in native.mqtt_list_offers(batch)]
        self.messages = native.mqtt_count_messages(batch)

    def members(self) -> Iterable[tuple[Origin, Run, Sequence[int]]]:
        return native.mqtt_list_members(self._batch)

    def part(self, awaiting: Mapping[Origin, int]) -> tuple[int, int]:
        return native.mqtt_part_answers(self._batch, awaiting)

    def count_waits(self, awaiting: MutableMapping[Origin, int]) -> None:
        native.mqtt_count_waits(self._batch, awaiting)

    def count_answered(self, awaiting: MutableMapping[Origin, int]) -> None:
        native.mqtt_count_answered(self._batch, awaiting)

    def accept_now(self) -> None:
        self._accept(waiting=False)

    def accepted(self, tokens: Sequence[int]) -> None:
        self._accept(waiting=True)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for origin, its_tokens, kept in native.mqtt_list_waiting(self._batch):
            send_answer(origin, its_tokens, why if kept else Acceptance.ACCEPTED)

    def _accept(self, *, waiting: bool) -> None:
        answers, failed = native.mqtt_accept_all(self._batch, waiting)
        answer_all(answers)
        for origin in failed:
            log.error("%s: writing its answers failed, closing the connection", origin.name)
            origin.abort()


class MqttLane:
    """Reads the messages of one connection on the fast path."""

    __slots__ = ("_connection", "_driver", "_grant", "_lane", "_publish", "_receive")

    def __init__(
        self,
        turn: Any,
        publish: Callable[[], None],
        publisher: LanePublisher,
        driver: ConnectionDriver,
        grant: Grant | None,
    ) -> None:
        """`publish` gives the messages of all lanes to the router. `grant`: rights of the client, None: all."""
        self._publish = publish
        self._driver = driver
        self._connection = connection = publisher.connection
        self._grant = grant
        if grant is not None:
            grant.call_when_replaced(self.forget)
        inbound = connection.receiver
        self._lane, self._receive = native.mqtt_make_lane(
            turn,
            publisher,
            inbound.device,
            inbound,
            self._read_on,
            (driver, inbound.out),
            connection.version,
            inbound.receive_maximum,
            inbound.known_length_max,
            HEADS_CACHED_MAX,
        )

    def start(self) -> None:
        """Read what the client sends from now on."""
        self._driver.divert(self._receive, self.lost)

    def lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol.connection_lost`."""
        native.mqtt_close_lane(self._lane)
        self._driver.connection_lost(error)

    def learn(self, event: PublishEvent, column: Any) -> None:
        """Read messages of the same topic and properties from now on. The client has the right to send them."""
        run = event.run
        first = 0x32 if run.flags & DURABLE else 0x30
        native.mqtt_learn_topic(self._lane, first, event.head, event.block, run.address, run.properties, column)

    def permit(self, prefix: Any) -> None:
        """Read messages to all topics of a prefix. The client has the right to send to them."""
        native.mqtt_permit_prefix(self._lane, prefix)

    def forget(self) -> None:
        """Forget all topics, as the rights of the client have changed."""
        native.mqtt_forget_learned(self._lane)
        self._connection.receiver.forget_topics()

    def close(self) -> None:
        """Close the lane after the end of the connection."""
        native.mqtt_close_lane(self._lane)

    @property
    def received_at_s(self) -> float:
        """Time of the last message, by the clock of the loop."""
        return native.mqtt_last_received(self._lane)

    @property
    def received(self) -> int:
        """Messages that it has read."""
        return native.mqtt_received(self._lane)

    def leave(self) -> None:
        """Publish waiting messages when the session ends, before its will."""
        if self._grant is not None:
            self._grant.call_when_replaced(do_nothing)
        if native.mqtt_is_waiting(self._lane):
            self._publish()

    @property
    def held_bytes(self) -> int:
        """Memory of the learned topics."""
        return native.mqtt_held_bytes(self._lane)

    def _read_on(self, data: bytes, kind: int) -> int:
        """Pass these bytes to the state machine. Return how many it needs to complete a packet
        (`MqttConnection.missing_bytes`)."""
        if kind == LATE:
            self._driver.defer(data)
        elif data:
            self._driver.data_received(data)
        if kind == LONG:
            self._driver.yield_turn()
        return self._connection.missing_bytes if self._driver.up_to_date else UNREADY


class Loop(Protocol):
    """The part of `asyncio.AbstractEventLoop` that is used."""

    def time(self) -> float:
        """Return the time of its clock in seconds."""
        ...


class MqttLanes:
    """Lanes of one broker."""

    def __init__(self, router: Router, loop: Loop) -> None:
        self._router = router
        self._loop = loop
        self._turn = native.mqtt_make_turn(self._begin, self.publish, Run)
        self._columns: dict[RouteTargets, Any] = {}
        self._logs: dict[int, Any] = {}
        self._live: dict[tuple[LiveSink, ...], tuple[LiveSink, ...]] = {}
        self._prefixes: dict[str, Any] = {}
        self._directed: dict[str, Any] = {}
        """Prefixes with current routes; many connections share one."""
        self._generation = 0
        """Number of times that the routes were forgotten."""
        router.add_source(self)

    def learn(
        self,
        event: PublishEvent,
        lane: MqttLane | None,
        publisher: LanePublisher,
        driver: ConnectionDriver,
        grant: Grant | None,
    ) -> MqttLane | None:
        """Teach the lane of a connection the topic of these published messages, if logs and live subscribers are their
        only destinations.

        `lane` is the current lane of the connection. Return the lane it has then; None if the bytes of the transport
        are not those of MQTT (WebSocket).
        """
        connection = publisher.connection
        column = self._column(event.run.address, event.run.qos)
        retains = event.run.flags & RETAIN
        if column is None or retains or driver.connection is not connection or connection.closed:
            return lane
        if lane is None:
            lane = MqttLane(self._turn, self.publish, publisher, driver, grant)
            connection.receiver.attach_lane(lane)
            lane.start()
        lane.learn(event, column)
        prefix = self._prefix(event.run.address, grant)
        if prefix is not None:
            lane.permit(prefix)
        return lane

    def _prefix(self, address: str, grant: Grant | None) -> Any:
        """Return the longest prefix with one route for all its topics, all allowed for the client; or None."""
        found = self._router.routes.prefix(address)
        end = len(found)
        while found and grant is not None and not grant.may_send_below(found):
            end = address.find("/", end) + 1
            found = address[:end]
        if not found or not found.isascii() or len(found) > HEAD_BYTES_MAX:
            return None
        prefix = self._directed.get(found)
        if prefix is None:
            prefix = self._directed[found] = self._prefix_named(found)
            self._direct_all(prefix, address)
        return prefix

    def _prefix_named(self, name: str) -> Any:
        prefix = self._prefixes.get(name)
        if prefix is None:
            if len(self._prefixes) >= PREFIXES_KNOWN_MAX:
                self._prefixes.clear()
                self._directed.clear()
            prefix = self._prefixes[name] = native.mqtt_make_prefix(name.encode())
        return prefix

    def _direct_all(self, prefix: Any, address: str) -> None:
        """Set the route of this address for all topics of a current prefix."""
        native.mqtt_route_prefix(self._turn, prefix, *(self._column(address, qos) for qos in (0, 1)))

    def _begin(self) -> None:
        router = self._router
        received_at, clock = router.stamp()
        native.mqtt_stamp_turn(self._turn, self._loop.time(), received_at, clock, 1 | DURABLE | clock)
        router.flush_soon()

    def publish(self) -> None:
        """Give the messages of this turn to the router."""
        generation = self._generation
        for each in native.mqtt_take_messages(self._turn):
            if type(each) is tuple:
                self._publish_alone(*each)
            else:
                self._publish_together(LaneBatch(each), generation)

    def _publish_together(self, batch: LaneBatch, generation: int) -> None:
        """Publish a batch. `generation`: that of the routes when the batch was made; publishing may change them."""
        if generation == self._generation:
            call_origin(batch, self._router.publish, batch)
            return
        self._router.publish_members(batch)

    def _publish_alone(self, origin: Origin, run: Run, tokens: Sequence[int], topic: Any) -> None:
        if call_origin(origin, self._router.publish, Publication(origin, run, tokens)):
            begins = native.mqtt_route_topic(self._turn, topic, self._column(run.address, run.qos))
            if begins is not None:
                prefix, name = begins
                now = self._router.routes.prefix(run.address)
                if now and name.startswith(now):
                    self._direct_all(prefix, run.address)

    def _column(self, address: str, qos: int) -> Any:
        """Return the targets of messages to this address; None if the router has to process each message."""
        column = self._router.find_targets(address, qos)
        if column is None:
            return None
        made = self._columns.get(column)
        if made is None:
            made = self._columns[column] = self._make_column(column)
        return made

    def _make_column(self, column: RouteTargets) -> Any:
        """Make a column, which shares the objects for its log or live subscribers with other columns."""
        live, sink = self._live.setdefault(column.live, column.live), column.log
        if sink is not None and sink.log not in self._logs:
            self._logs[sink.log] = native.mqtt_make_log(sink)
        return native.mqtt_make_column(None if sink is None else self._logs[sink.log], live or None)

    def forget_routes(self) -> None:
        """See `PublishSource`."""
        native.mqtt_forget_routes(self._turn)
        self._clear()
        self._generation += 1

    def count_flows(self) -> None:
        """See `PublishSource`."""
        for targets, column in self._columns.items():
            targets.flow.add(native.mqtt_take_received(column), len(targets.live))

    def close(self) -> None:
        """Stop reading and free what C holds, which the garbage collector does not see."""
        native.mqtt_close_turn(self._turn)
        self._clear()

    def _clear(self) -> None:
        self.count_flows()
        self._columns.clear()
        self._logs.clear()
        self._live.clear()
        self._directed.clear()
