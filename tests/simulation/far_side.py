"""Broker of another vendor, from which a gateway receives messages: two queues, and a peer that speaks AMQP 1.0.

Unanswered messages come again over the next connection, in order. So do messages with answers that the broker had not
written down when it ended (`crash`). Messages of one queue have Waypost's names, as another gateway gives them; those
of the other have a message-id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import encode
from bridge.engine import Attached, Closed, DeliveryState, Dispositions, Engine, Event, Link, LinkFlow, PeerOpened
from bridge.message import Run
from bridge.plain import Hop
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.driver import ConnectionDriver
from edge.broker.listeners.tcp import TcpListener
from tests.simulation.gateway import FAR_SIDE, INCOMING
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.scheduler import Process, Scheduler

PERIOD_S = 0.05
WRITE_BYTES_MAX = 1 << 20
UNWRITTEN_MAX = 4
"""Number of answers that a crash loses."""
EPOCH = "f" * 32
"""Epoch of the gateway that named the messages of one queue."""


class Queue:
    """Queue with its messages, in order, each in the form in which it is sent."""

    def __init__(self, name: str, address: str, encoded: Callable[[int, str], bytes]) -> None:
        """Create the queue. `address` is its address at the gateway."""
        self.producer = f"far-{name}"
        self.address = address
        self.ready: deque[int] = deque()
        self.consumer: _Peer | None = None
        """Newest connection that receives from it, which is the only consumer."""
        self.sent: set[int] = set()
        """Messages in flight to the consumer."""
        self.answered: deque[int] = deque(maxlen=UNWRITTEN_MAX)
        """Newest messages that the peer has taken."""
        self.count = 0
        self._encoded = encoded

    def name_of(self, number: int) -> str:
        return f"{self.producer}.{number}"

    def message(self, number: int) -> bytes:
        return self._encoded(number, self.name_of(number))

    def take_back(self, *, crashed: bool) -> None:
        """Take the messages of a closed connection back."""
        again = (*(self.answered if crashed else ()), *self.sent, *self.ready)
        self.ready = deque(sorted(again))
        self.sent.clear()
        self.answered.clear()
        self.consumer = None


def _named(number: int, name: str) -> bytes:
    run = Run(f"far/{name}", "far", 1, b"", [name.encode()])
    return plain.messages(Hop("far", EPOCH), number, run)[0]


def _with_id(_number: int, name: str) -> bytes:
    return b"\x00\x53" + bytes((s.PROPERTIES,)) + encode([name]) + plain.data_section(name.encode())


class FarSide:
    """The broker. Its process never stops; a crash ends its connections and loses unwritten answers."""

    def __init__(self, scheduler: Scheduler, network: Network, history: History, random: Random) -> None:
        self.sending = True
        self.process = Process(FAR_SIDE.host)
        self.queues = {
            name: Queue(name, address, encoded)
            for (name, address), encoded in zip(INCOMING.items(), (_named, _with_id), strict=True)
        }
        self._loop = SimulatedLoop(scheduler, self.process, network)
        self._network = network
        self._history = history
        self._random = random
        self._loop.call_soon(self._serve)

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def waiting(self) -> int:
        """Return the number of messages that have not been taken."""
        return sum(len(queue.ready) + len(queue.sent) for queue in self.queues.values())

    def crash(self) -> None:
        """Restart, and forget the newest answers."""
        for queue in self.queues.values():
            queue.take_back(crashed=True)
        for near in self._network.streams(FAR_SIDE.port):
            if near.other.process is self.process:
                self._network.cut(near)

    def answered(self, queue: Queue, number: int, state: DeliveryState) -> None:
        """Process the peer's outcome of a message."""
        queue.sent.discard(number)
        if state is DeliveryState.ACCEPTED:
            queue.answered.append(number)
            self._history.record("acked", queue.producer, (queue.name_of(number),))
        elif state is DeliveryState.REJECTED:
            self._history.record("raised", self.name, f"{queue.name_of(number)} is rejected")
        else:
            queue.ready = deque(sorted((number, *queue.ready)))

    # --- inside -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        listener = TcpListener("amqp", lambda gone, identity: self._driver(gone))
        self._loop.create_task(listener.start(FAR_SIDE.host, FAR_SIDE.port))
        self._later()

    def _later(self) -> None:
        self._loop.call_later(PERIOD_S * 2 * self._random.random(), self._enqueue)

    def _enqueue(self) -> None:
        """Put a message or two into a queue."""
        if not self.sending:
            return
        self._later()
        queue = self._random.choice(list(self.queues.values()))
        for _ in range(self._random.choice((1, 1, 3))):
            number, queue.count = queue.count, queue.count + 1
            queue.ready.append(number)
            self._history.record("send", queue.producer, queue.address, (queue.name_of(number),), 2)

    def _driver(self, gone: Callable[[ConnectionDriver], None]) -> ConnectionDriver:
        engine = Engine(
            container_id=FAR_SIDE.host,
            server=True,
            sasl=SaslServer(lambda _mechanism, _name, _password: ANONYMOUS, anonymous=ANONYMOUS),
            idle_timeout_s=4.0,
            now=asyncio.get_running_loop().time(),
        )
        return ConnectionDriver(
            engine, lambda driver: _Peer(self, engine, driver), write_bytes_max=WRITE_BYTES_MAX, gone=gone
        )


class _Peer:
    """Connection of a gateway; owner of the driver."""

    def __init__(self, far: FarSide, engine: Engine, driver: ConnectionDriver) -> None:
        self._far = far
        self._engine = engine
        self._driver = driver
        self._links: dict[Queue, Link] = {}
        self._tags: dict[int, tuple[Queue, int]] = {}
        self._next = 0
        self._over = False

    def handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, PeerOpened):
                self._engine.open()
            elif isinstance(event, Attached):
                queue = self._far.queues[str(event.link.source.address)]
                self._engine.accept(event.link)
                self._links[queue] = event.link
                queue.take_back(crashed=False)
                queue.consumer = self
                self._look()
            elif isinstance(event, LinkFlow):
                self._send()
            elif isinstance(event, Dispositions):
                for tag, state, settled, _ in event.items:
                    self._answered(event.link, tag, state, settled=settled)
            elif isinstance(event, Closed):
                self._over = True
                for queue in self._links:
                    if queue.consumer is self:
                        queue.take_back(crashed=False)
        self._send()

    def writable(self) -> None:
        """Do nothing: nothing waits for the socket."""

    def _answered(self, link: Link, tag: int, state: DeliveryState, *, settled: bool) -> None:
        if not settled:
            self._engine.settle_sent(link, tag)
        queue, number = self._tags.pop(tag)
        if queue.consumer is self:
            self._far.answered(queue, number, state)

    def _look(self) -> None:
        """Send pending messages, if there are any."""
        if not self._over:
            self._send()
            asyncio.get_running_loop().call_later(PERIOD_S, self._look)

    def _send(self) -> None:
        for queue, link in self._links.items():
            while queue.consumer is self and queue.ready and link.credit > 0 and not link.closed:
                number = queue.ready.popleft()
                queue.sent.add(number)
                self._tags[self._next] = (queue, number)
                self._engine.send(link, self._next, queue.message(number))
                self._next += 1
        self._driver.flush_soon()
