"""Connections that send a message now and then, many of them: received from, and answered, with all others at once.

A connection gets a *lane* when it sends one message, where its socket is a plain one. From then on it is received from
with all others that are ready, in one call (`bridge.engine.loops`): a message that begins as the one before it did
is taken there and then, and what a queue or a durable subscription keeps of all these is given to the router as one
`Stretch`. Everything else goes the way it goes without a lane. What is to be written at the end of a turn is written in
one call too, one write a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Final

from bridge.engine import Engine, Event, Transfers
from bridge.engine.loops import SMALL_BYTES, EngineLoops, Message
from bridge.message import AMQP, DURABLE, Run
from bridge.transport.driver import Driver
from bridge.transport.ready import Together
from bridge.transport.tcp import TcpTransport
from bridge.transport.turn import Turn
from edge.broker.amqp.incoming import IncomingLink
from edge.broker.message.translation import lasting_header, read_header
from edge.broker.model.interfaces import Explanation, Origin, Refusal
from edge.broker.model.isolation import answered, end_party, origin_called
from edge.broker.router.batch import AnycastBatch, Column, ColumnBatch, LogRuns, LogSink, Publication
from edge.broker.router.router import Router

QOS: Final = 1
"""Of a message that is not settled."""

WRITTEN_AT_ONCE: Final = 128
"""Connections written to before others have their turn; 1 ms."""

Watch = Callable[[Callable[[Sequence[int]], None]], Together]

Member = tuple[IncomingLink, int, bytes, int, bytes]
"""Who sent a message, under which number, and with which header section, flags and body."""

Kept = tuple[IncomingLink, Run, tuple[int]]
"""Who sent a run of one message, and under which number."""


def _accept(origin: IncomingLink, number: int, deliveries: list[int]) -> None:
    """`IncomingLink.accept_one`; what it raises ends it alone."""
    try:
        origin.accept_one(number, deliveries)
    except Exception as error:
        end_party(origin, error)


class LoggedMessages(ColumnBatch):
    """Messages of many connections, one of each, that logs keep and no live subscription gets."""

    __slots__ = ("_loops", "_members", "logs", "messages", "offers")

    def __init__(self, loops: EngineLoops, members: Sequence[Kept], logs: Sequence[LogRuns]) -> None:
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
        """There are no such answers."""

    def wait(self, awaiting: MutableMapping[Origin, int]) -> None:
        for origin, _, _ in self._members:
            awaiting[origin] = awaiting.get(origin, 0) + 1

    def heard(self, awaiting: MutableMapping[Origin, int]) -> None:
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
            answered(origin, its_tokens, why)


class AnycastMessages(AnycastBatch):
    """Messages of many connections, one of each, for the consumers of one address. An answered message is released, as
    the others may wait for long."""

    __slots__ = ("_clock", "_loops", "_members", "_received_at", "address", "encoded", "name")

    def __init__(
        self, loops: EngineLoops, address: str, members: Sequence[Member], received_at: int, clock: int
    ) -> None:
        """`received_at` and `clock` are what `Router.stamp` returned when they came."""
        self.name = "the senders of a turn"
        self.address = address
        self.encoded = encoded_messages(members)
        """Empty where a message has a time to live, which is looked at run by run."""
        self._loops = loops
        self._members: list[Member | None] = list(members)
        self._received_at = received_at
        self._clock = clock

    def run(self, place: int) -> Run:
        member = self._members[place]
        if member is None:
            raise LookupError(place)  # it is answered
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
            answered(origin, (number,), why)

    def explained(self, tokens: Sequence[int], said: Explanation) -> None:
        for member in (self._members[place] for place in tokens):
            if member is not None:
                origin_called(member[0], member[0].explained, (member[1],), said)

    def abort(self) -> None:
        for member in self._members:
            if member is not None:
                member[0].abort()

    def _answered(self, places: Sequence[int]) -> list[tuple[IncomingLink, int]]:
        """Who sent them, and under which number."""
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
    """Return the messages as they are written on a link whenever that is; none where one has a time to live."""
    encoded: list[bytes] = []
    for _, _, header, _, body in members:
        lasting = lasting_header(header) if header else header
        if lasting is None:
            return []
        encoded.append(lasting + body if lasting else body)
    return encoded


class Lane:
    """One connection; it has begun when it has a socket."""

    __slots__ = ("_arrivals", "_flags", "driver", "engine", "header", "socket")

    def __init__(self, arrivals: Arrivals, driver: Driver, engine: Engine) -> None:
        self._arrivals = arrivals
        self.driver = driver
        self.engine = engine
        self.socket = -1
        self.header = b""
        """What its messages begin with as a rule."""
        self._flags = AMQP | QOS

    def learn(self, origin: IncomingLink) -> None:
        """The connection has sent a message on this link."""
        if origin.header_usual != self.header:
            self.header = origin.header_usual
            durable = bool(self.header) and read_header(self.header).durable
            self._flags = AMQP | QOS | (DURABLE if durable else 0)
        transport = self.driver.transport
        if self.driver.connection is not self.engine or not isinstance(transport, TcpTransport):
            return  # in frames, or traced
        if self.socket < 0:
            self.socket = transport.get_extra_info("descriptor")
        self.driver.write_by(self)
        self.driver.read_by(self)

    def took(self, message: Message) -> Member | list[Event]:
        """What there is to publish of it; or the events it makes, where it is not as usual."""
        engine, header = self.engine, self.header
        address, delivery, body, usual, _ = message
        found = engine.took(address, delivery, len(header) + len(body)) if usual else None
        if found is None:
            return list(engine.took_otherwise(address, delivery, header + body if usual else body))
        link, number = found
        origin = link.context
        if not isinstance(origin, IncomingLink) or origin.address is None:
            return [Transfers(link, range(number, number + 1), [header + body], False)]
        origin.took()
        return origin, number, header, self._flags, body

    def look(self, brought: int | bytes) -> None:
        """Take what is not a message as usual."""
        if isinstance(brought, bytes):
            if len(brought) > SMALL_BYTES:
                self.driver.read_by(None)  # what brings much at once has turns of its own, until it brings little
            self.driver.data_received(brought)
        elif brought:
            self.engine.given(brought)
            self.driver.data_received(b"")
        else:
            self.driver.read_by(None)  # the transport finds out, and why

    def resume_reading(self) -> None:
        """See `bridge.transport.driver.Reader`."""
        self._arrivals.watch(self)

    def pause_reading(self) -> None:
        """See `bridge.transport.driver.Reader`."""
        self._arrivals.leave(self)

    def add(self, _writer: Driver) -> None:
        """See `bridge.transport.driver.Gatherer`."""
        self._arrivals.write_soon(self)


class Arrivals:
    """The lanes of one broker; used inside the loop only."""

    def __init__(self, loops: EngineLoops, router: Router, turn: Turn, together: Watch) -> None:
        """`together` makes what watches sockets, and serves them by what it is given."""
        self._loops = loops
        self._router = router
        self._turn = turn
        self._together = together(self._arrived)
        self._lanes: dict[int, Lane] = {}
        """Those that are received from, by socket."""
        self._writing: list[Lane] = []

    def lane(self, driver: Driver, engine: Engine) -> Lane:
        """Of a new connection."""
        return Lane(self, driver, engine)

    def watch(self, lane: Lane) -> None:
        """Receive of it. Idempotent."""
        self._lanes[lane.socket] = lane
        self._together.watch(lane.socket)

    def leave(self, lane: Lane) -> None:
        """Receive of it no more. Idempotent."""
        if self._lanes.pop(lane.socket, None) is not None:
            self._together.leave(lane.socket)

    def close(self) -> None:
        """Nothing more is received."""
        self._lanes.clear()
        self._together.close()

    # --- what comes -------------------------------------------------------------------------------------------

    def _arrived(self, sockets: Sequence[int]) -> None:
        self._receive([self._lanes[each] for each in sockets])

    def _receive(self, lanes: Sequence[Lane]) -> None:
        """Each of them once. All messages are noted with their engines before anybody acts on one of them: what is done
        then may end another's connection."""
        brought = self._loops.receive_all([(lane.socket, *lane.engine.pointers, lane.header) for lane in lanes])
        members: list[Member] = []
        told: list[tuple[Lane, list[Event]]] = []
        others: list[tuple[Lane, int | bytes]] = []
        for lane, each in zip(lanes, brought, strict=True):
            if isinstance(each, tuple):
                taken = lane.took(each)
                if isinstance(taken, tuple):
                    members.append(taken)
                else:
                    told.append((lane, taken))
                if each[-1]:
                    others.append((lane, b""))
            elif each is not None:
                others.append((lane, each))
        if members:
            self._publish(members)
        for lane, events in told:
            lane.driver.take(events)
        for lane, each in others:
            lane.look(each)

    def _publish(self, members: Sequence[Member]) -> None:
        """What only logs keep goes to the router as one, and so does what consumers of an address get; what has more to
        it, by itself."""
        received_at, clock = self._router.stamp()
        columns: dict[str, Column | None] = {}
        logs: dict[LogSink, list[Run]] = {}
        kept: list[Kept] = []
        others: dict[str, list[Member]] = {}
        for member in members:
            origin, number, header, flags, body = member
            address = origin.address or ""
            if address not in columns:
                columns[address] = self._router.column(address, QOS)
            column = columns[address]
            if column is None or column.log is None or column.live:
                others.setdefault(address, []).append(member)
                continue
            run = Run(address, origin.name, flags | clock, header, [body], received_at)
            kept.append((origin, run, (number,)))
            logs.setdefault(column.log, []).append(run)
        if kept:
            rows = [
                LogRuns(sink, runs, sum(len(run.bodies[0]) for run in runs), len(runs)) for sink, runs in logs.items()
            ]
            logged = LoggedMessages(self._loops, kept, rows)
            origin_called(logged, self._router.publish, logged)
        for address, theirs in others.items():
            batch = AnycastMessages(self._loops, address, theirs, received_at, clock)
            if origin_called(batch, self._router.publish, batch):
                for origin, _, _, _, _ in theirs:
                    if origin.wants_credit:
                        origin_called(origin, origin.top_up)

    # --- what goes --------------------------------------------------------------------------------------------

    def write_soon(self, lane: Lane) -> None:
        """It has something to write at the end of this turn."""
        if self._turn.unhurried:
            self._turn.add(lane.driver)
            return
        if not self._writing:
            self._turn.add(self)
        self._writing.append(lane)

    def write(self) -> None:
        """See `bridge.transport.turn.Writer`."""
        lanes, self._writing = self._writing[:WRITTEN_AT_ONCE], self._writing[WRITTEN_AT_ONCE:]
        if self._writing:
            self._turn.add(self)
        sockets: list[tuple[int, int]] = []
        drivers: list[Driver] = []
        for lane in lanes:
            transport, _ = lane.engine.pointers
            if transport and lane.driver.written():
                sockets.append((lane.socket, transport))
                drivers.append(lane.driver)
            else:
                self._turn.add(lane.driver)  # there may be much: it is written where the time is looked at
        for index in self._loops.write_all(sockets):
            self._turn.add(drivers[index])
