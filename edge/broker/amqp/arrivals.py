"""Fast path for connections that send single messages now and then, read in C.

A connection gets a *lane* when a link has received one message by itself. From then on the lane reads what the
transport receives. A message with the same beginning as the one before is read with one call (`bridge.engine.loops`).
At the end of a turn the router gets the messages of all connections together. Everything else goes to the engine,
behind the messages that the lane has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Final

from bridge.engine import Engine, Transfers
from bridge.engine.loops import SMALL_BYTES, EngineLoops, Message
from bridge.message import AMQP, DURABLE, Run
from bridge.transport.driver import ConnectionDriver
from edge.broker.amqp.incoming import IncomingLink
from edge.broker.message.translation import lasting_header, read_header
from edge.broker.model.interfaces import Explanation, Origin, Refusal
from edge.broker.model.isolation import call_origin, end_party, send_answer
from edge.broker.router.batch import AnycastBatch, CollectedBatch, LogRuns, LogSink, Publication, RouteTargets
from edge.broker.router.flows import AddressFlow
from edge.broker.router.router import Router

QOS: Final = 1
"""QoS of an unsettled message."""

Member = tuple[IncomingLink, int, bytes, int, bytes]
"""Sender, delivery number, header section, flags and body of a message."""

SingleRun = tuple[IncomingLink, Run, tuple[int]]
"""Sender, run of one message, and delivery number."""


def _accept(origin: IncomingLink, number: int, deliveries: list[int]) -> None:
    """Call `IncomingLink.accept_one`. An exception ends only its connection."""
    try:
        origin.accept_one(number, deliveries)
    except Exception as error:
        end_party(origin, error)


class LoggedMessages(CollectedBatch):
    """Single messages of many connections, for logs only and not for live subscriptions."""

    __slots__ = ("_loops", "_members", "logs", "messages", "offers")

    def __init__(self, loops: EngineLoops, members: Sequence[SingleRun], logs: Sequence[LogRuns]) -> None:
        self._loops = loops
        self._members = members
        self.logs = logs
        self.offers = ()
        self.messages = len(members)

    def members(self) -> Iterable[tuple[Origin, Run, Sequence[int]]]:
        return self._members

    def part(self, awaiting: Mapping[Origin, int]) -> tuple[int, int]:
        return 0, len(self._members)

    def accept_now(self) -> None:
        """Do nothing: all messages wait for the commit."""

    def count_waits(self, awaiting: MutableMapping[Origin, int]) -> None:
        for origin, _, _ in self._members:
            awaiting[origin] = awaiting.get(origin, 0) + 1

    def count_answered(self, awaiting: MutableMapping[Origin, int]) -> None:
        for origin, _, _ in self._members:
            left = awaiting.pop(origin) - 1
            if left:
                awaiting[origin] = left

    def accepted(self, tokens: Sequence[int]) -> None:
        deliveries: list[int] = []
        for origin, _, (number,) in self._members:
            _accept(origin, number, deliveries)
        self._loops.settle_all(deliveries)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for origin, _, its_tokens in self._members:
            send_answer(origin, its_tokens, why)


class AnycastMessages(AnycastBatch):
    """Single messages of many connections for the consumers of one address.

    An answered message is freed at once, as others may wait for long.
    """

    __slots__ = ("_clock", "_loops", "_members", "_received_at", "address", "encoded", "name")

    def __init__(
        self, loops: EngineLoops, address: str, members: Sequence[Member], received_at: int, clock: int
    ) -> None:
        """`received_at` and `clock`: result of `Router.stamp` when they were received."""
        self.name = "the senders of a turn"
        self.address = address
        self.encoded = encoded_messages(members)
        """Encoded messages; empty if one has a time to live, which is evaluated for each run."""
        self._loops = loops
        self._members: list[Member | None] = list(members)
        self._received_at = received_at
        self._clock = clock

    def run(self, place: int) -> Run:
        member = self._members[place]
        if member is None:
            raise LookupError(place)  # it has been answered
        origin, _, header, flags, body = member
        return Run(origin.address or "", origin.name, flags | self._clock, header, [body], self._received_at)

    def members(self, start: int) -> Iterable[Publication]:
        for member in self._members[start:]:
            if member is not None:
                origin, number, header, flags, body = member
                yield Publication(origin, Run(self.address, origin.name, flags, header, [body]), (number,))

    def accepted(self, tokens: Sequence[int]) -> None:
        deliveries: list[int] = []
        for origin, number in self._answered(tokens):
            _accept(origin, number, deliveries)
        self._loops.settle_all(deliveries)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for origin, number in self._answered(tokens):
            send_answer(origin, (number,), why)

    def explained(self, tokens: Sequence[int], explanation: Explanation) -> None:
        for member in (self._members[place] for place in tokens):
            if member is not None:
                call_origin(member[0], member[0].explained, (member[1],), explanation)

    def abort(self) -> None:
        for member in self._members:
            if member is not None:
                member[0].abort()

    def _answered(self, places: Sequence[int]) -> list[tuple[IncomingLink, int]]:
        """Free answered messages; return their senders and delivery numbers."""
        members, encoded = self._members, self.encoded
        senders: list[tuple[IncomingLink, int]] = []
        for place in places:
            member = members[place]
            if member is not None:
                senders.append((member[0], member[1]))
                members[place] = None
                encoded[place] = b""
        return senders


def encoded_messages(members: Sequence[Member]) -> list[bytes]:
    """Encode messages for a receiving link; return an empty list if one has a time to live."""
    encoded: list[bytes] = []
    for _, _, header, _, body in members:
        lasting = lasting_header(header) if header else header
        if lasting is None:
            return []
        encoded.append(lasting + body if lasting else body)
    return encoded


class AmqpLane:
    """Reads messages with the usual header from the transport of one connection."""

    __slots__ = ("_arrivals", "_diverted", "_driver", "_engine", "_flags", "_header", "_loops", "_waits_in")

    def __init__(self, arrivals: AmqpLanes, loops: EngineLoops, driver: ConnectionDriver, engine: Engine) -> None:
        self._arrivals = arrivals
        self._loops = loops
        self._driver = driver
        self._engine = engine
        self._diverted = False
        self._header = b""
        """Header section of the last messages."""
        self._flags = AMQP | QOS
        self._waits_in = 0
        """Number of the last turn in which it read a message."""

    def learn(self, origin: IncomingLink) -> None:
        """Read messages like the single one that this link has received, from now on."""
        if origin.header_usual != self._header:
            self._header = origin.header_usual
            durable = bool(self._header) and read_header(self._header).durable
            self._flags = AMQP | QOS | (DURABLE if durable else 0)
        if not self._diverted and self._driver.connection is self._engine:  # not over WebSocket, which adds frames
            self._diverted = True
            self._driver.divert(self._receive, self._lost)

    def publish(self) -> None:
        """Publish the messages of this turn before a later event is processed."""
        if self._waits_in == self._arrivals.turn:
            self._arrivals.publish()

    def _receive(self, data: bytes) -> None:
        """Process bytes of the transport (`asyncio.Protocol.data_received`)."""
        engine, driver = self._engine, self._driver
        transport, collector = engine.pointers
        takes = driver.connection is engine and driver.up_to_date  # else it is traced or behind
        if takes and transport and len(data) <= SMALL_BYTES:
            message = self._loops.take(transport, collector, self._header, data)
            if message is None:
                engine.given(len(data))
            elif not self._process(message):
                return
            data = b""
        driver.data_received(data)

    def _lost(self, error: Exception | None) -> None:
        """Process the end of the connection (`asyncio.Protocol.connection_lost`)."""
        self.publish()
        self._driver.connection_lost(error)

    def _process(self, message: Message) -> bool:
        """Process a message; one with the usual header is published at the end of the turn.

        Return True if Proton has further events.
        """
        engine, header = self._engine, self._header
        address, delivery, body, usual, more = message
        found = engine.record_taken(address, delivery, len(header) + len(body)) if usual else None
        if found is None:
            self._driver.take(engine.handle_taken(address, delivery, header + body if usual else body))
            return more
        link, number = found
        origin = link.context
        if isinstance(origin, IncomingLink) and origin.address is not None:
            origin.count_taken()
            self._waits_in = self._arrivals.turn
            self._arrivals.add((origin, number, header, self._flags, body))
        else:
            self._driver.take([Transfers(link, range(number, number + 1), [header + body], False)])
        return more


class AmqpLanes:
    """Lanes of one broker. Use it inside the loop only."""

    def __init__(self, loops: EngineLoops, router: Router) -> None:
        self._loops = loops
        self._router = router
        self._members: list[Member] = []
        """Messages of this turn."""
        self.turn = 1
        """Number of this turn."""
        router.add_source(self)

    def lane(self, driver: ConnectionDriver, engine: Engine) -> AmqpLane:
        """Create the lane of a new connection."""
        return AmqpLane(self, self._loops, driver, engine)

    def add(self, member: Member) -> None:
        """Publish this message at the end of the turn."""
        if not self._members:
            self._router.flush_soon()
        self._members.append(member)

    def publish(self) -> None:
        """Give the messages of this turn to the router (`edge.broker.router.router.PublishSource`)."""
        members, self._members = self._members, []
        self.turn += 1
        if members:
            self._publish(members)

    def forget_routes(self) -> None:
        """Do nothing, as no routes are cached here (`edge.broker.router.router.PublishSource`)."""

    def count_flows(self) -> None:
        """Do nothing, as each batch is counted at once (`edge.broker.router.router.PublishSource`)."""

    def _publish(self, members: Sequence[Member]) -> None:
        """Publish messages for logs as one batch, and messages for consumers of an address as one batch each."""
        received_at, clock = self._router.stamp()
        columns: dict[str, RouteTargets | None] = {}
        logs: dict[tuple[LogSink, AddressFlow], list[Run]] = {}
        kept: list[SingleRun] = []
        others: dict[str, list[Member]] = {}
        for member in members:
            origin, number, header, flags, body = member
            address = origin.address or ""
            if address not in columns:
                columns[address] = self._router.find_targets(address, QOS)
            column = columns[address]
            if column is None or column.log is None or column.live:
                others.setdefault(address, []).append(member)
                continue
            run = Run(address, origin.name, flags | clock, header, [body], received_at)
            kept.append((origin, run, (number,)))
            logs.setdefault((column.log, column.flow), []).append(run)
        if kept:
            rows = []
            for (sink, flow), runs in logs.items():
                rows.append(LogRuns(sink, runs, sum(len(run.bodies[0]) for run in runs), len(runs)))
                flow.received += len(runs)
            logged = LoggedMessages(self._loops, kept, rows)
            call_origin(logged, self._router.publish, logged)
        for address, theirs in others.items():
            batch = AnycastMessages(self._loops, address, theirs, received_at, clock)
            if call_origin(batch, self._router.publish, batch):
                for origin, _, _, _, _ in theirs:
                    if origin.wants_credit:
                        call_origin(origin, origin.top_up)
