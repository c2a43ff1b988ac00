"""The crossing over real sockets: dialer, driver, uplink and intake, with hubs that die, refuse and return."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from bridge.amqp_connection import AmqpConnection
from bridge.backoff import Backoff, BackoffPolicy
from bridge.batch import Batch
from bridge.dialer import CLOSE_TIMEOUT_S, Dialer, LinkState, PeerEndpoint
from bridge.engine import Engine
from bridge.flow import Outcomes
from bridge.forwarders.inbox import ForwarderInbox
from bridge.hub_links import HubLinks
from bridge.intake import Intake
from bridge.message import Run, Stored
from bridge.plain import Arrival, Hop
from bridge.reports import Reports
from bridge.socket_attempt import SocketAttempt
from bridge.transport.driver import ConnectionDriver
from bridge.uplink import Uplink
from edge.broker.router.landing.exchange import ReceiptExchange
from tests.support.serving import close, serving

DEADLINE_S = 20.0
BACKOFF = BackoffPolicy(first_s=0.02, limit_s=0.1, stable_s=5.0)
EPOCH = "e" * 32


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Hub:
    """Hub on a real socket; its marks and lake survive `kill`."""

    def __init__(self) -> None:
        self.port = 0
        self.lake: dict[int, bytes] = {}
        self.arrived = self.duplicates = 0
        self.mark = -1
        self.accepting = True
        self.statuses: list[dict[str, Any]] = []
        self.gateways: list[str] = []
        self._server: asyncio.Server | None = None
        self._drivers: set[ConnectionDriver] = set()

    async def start(self) -> None:
        def driver() -> ConnectionDriver:
            made = ConnectionDriver(
                Engine(container_id="hub", server=True), self._own, write_bytes_max=1 << 20, gone=self._drivers.discard
            )
            self._drivers.add(made)
            return made

        self._server = await asyncio.get_running_loop().create_server(driver, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Close listening and established sockets at once, as a crash does."""
        assert self._server is not None
        await close(self._server)
        for driver in list(self._drivers):
            driver.abort()

    def _own(self, driver: ConnectionDriver) -> Intake:
        assert isinstance(driver.connection, Engine)
        return Intake(driver.connection, self, driver)

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        self.gateways.append(gateway)

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        self.gateways.remove(gateway)

    def has_room(self, intake: Intake) -> bool:
        return True

    def unread_changed(self, intake: Intake, by: int) -> None:
        """Ignore the count."""

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, ends: Mapping[int, int], gateway: str) -> None:
        self.arrived += len(batch)
        for stored in batch.stored():
            for sequence, body in enumerate(stored.run.bodies, stored.sequence):
                if sequence <= self.mark:
                    self.duplicates += 1
                    continue
                assert sequence == self.mark + 1, "a gap"
                self.lake[sequence], self.mark = body, sequence
        if self.accepting:
            intake.accept([token])

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, Arrival]], gateway: str) -> None:
        raise AssertionError("batches were offered")

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None:
        self.statuses.append(document)

    def ledger_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        intake.accept([token])

    def manifests_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        intake.accept([token])


class Gateway:
    """Uplink with the log of one forwarder."""

    def __init__(self, ports: Sequence[int], *, connect_timeout_s: float = 5.0, tls: bool = False) -> None:
        self.uplink = Uplink("uplink", Hop("gw1", EPOCH), space="s", outcomes=Outcomes("accepted", "rejected"))
        self.reports = Reports()
        self.inboxes: list[ForwarderInbox] = []
        self.settled = 0
        self.states: list[LinkState] = []
        self._bodies: list[bytes] = []
        self._next = 0
        self.uplink.live.add(self)
        self.dialer = Dialer(
            [PeerEndpoint("127.0.0.1", port, tls) for port in ports],
            lambda dialer, endpoint: SocketAttempt(
                dialer,
                endpoint,
                AmqpConnection(Engine(container_id="gw1", server=False), self._links()),
                timeout_s=connect_timeout_s,
                tls=ssl.create_default_context,
            ),
            backoff=Backoff(BACKOFF, Random(1).random),
            changed=self.states.append,
        )

    def _links(self) -> HubLinks:
        return HubLinks(self.uplink, self.reports, inboxes=self.inboxes)

    def publish(self, count: int) -> None:
        first = len(self._bodies)
        self._bodies += [b'{"reading": %d}' % (first + i) for i in range(count)]
        self.pump()

    def pump(self) -> None:
        while (credit := self.uplink.live.credit) and self._next < len(self._bodies):
            bodies = self._bodies[self._next : self._next + min(credit, 500)]
            run = Run("plant", "dev", 1, b"", bodies, 7)
            self.uplink.live.deliver(self, [Stored(self._next, self._next, run)])
            self._next += len(bodies)

    def settle(self, consumer: object, first: int, last: int, outcome: object) -> None:
        assert outcome == "accepted"
        assert first == self.settled, "out of order"
        self.settled = last + 1


def scenario(test: Callable[[Hub], Any]) -> Callable[[], None]:
    """Run an async scenario with its own hub, and clean up."""

    def run() -> None:
        async def with_hub() -> None:
            made = Hub()
            await made.start()
            try:
                await test(made)
            finally:
                await made.kill()
                await eventually(lambda: not made._drivers)

        asyncio.run(with_hub())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@scenario
async def test_every_message_crosses_and_is_settled(hub: Hub) -> None:
    gateway = Gateway([hub.port])
    gateway.publish(20_000)
    gateway.dialer.start()
    await eventually(lambda: gateway.settled == 20_000)
    assert len(hub.lake) == 20_000
    assert hub.duplicates == 0
    assert gateway.dialer.state.connected
    assert gateway.dialer.state.peer == "hub"
    assert gateway.dialer.state.batching
    gateway.reports.status({"state": "up"})
    await eventually(lambda: hub.statuses == [{"state": "up"}])
    acknowledged: list[bool] = []
    gateway.reports.ledger({"first_sequence": 3}, acknowledged.append)
    await eventually(lambda: acknowledged == [True])
    await gateway.dialer.close()
    await eventually(lambda: not hub.gateways)
    assert not gateway.dialer.state.connected


@scenario
async def test_hub_that_gives_no_receipts_takes_messages(hub: Hub) -> None:
    """A hub of an older version refuses both links for receipts."""
    gateway = Gateway([hub.port])
    gateway.reports.begin_receipt_requests()
    exchange = ReceiptExchange("hub", gateway.reports, lambda _address: True, lambda: True, "gw1")
    gateway.inboxes.append(exchange)
    gateway.publish(1_000)
    gateway.dialer.start()
    await eventually(lambda: gateway.settled == 1_000)
    answered: list[bool] = []
    gateway.reports.request_receipts({"spans": []}, answered.append)
    gateway.publish(1_000)
    await eventually(lambda: gateway.settled == 2_000)
    assert not exchange.is_ready
    assert not answered
    assert gateway.dialer.state.connected
    assert gateway.dialer.state.ended is None, "the first connection lasts"
    await gateway.dialer.close()


@scenario
async def test_hub_killed_before_its_answers_loses_no_message(hub: Hub) -> None:
    gateway = Gateway([hub.port])
    gateway.dialer.start()
    total = 0
    for _ in range(5):
        hub.accepting = False
        gateway.publish(3_000)
        total += 3_000
        await eventually(lambda: hub.mark == total - 1)  # noqa: B023 - awaited at once
        await hub.kill()
        await eventually(lambda: not gateway.dialer.state.connected and gateway.dialer.state.attempts >= 2)
        gateway.publish(100)
        total += 100
        hub.accepting = True
        await hub.start()
        await eventually(lambda: gateway.settled == total)  # noqa: B023
    assert hub.duplicates >= 5 * 3_000
    assert sorted(hub.lake) == list(range(total))
    await gateway.dialer.close()


@scenario
async def test_pause_cuts_the_link_and_resume_restores_it(hub: Hub) -> None:
    gateway = Gateway([hub.port])
    gateway.dialer.start()
    gateway.publish(10)
    await eventually(lambda: gateway.settled == 10)
    gateway.dialer.pause()
    await eventually(lambda: not gateway.dialer.state.connected and not hub.gateways)
    assert gateway.dialer.state.paused
    assert gateway.uplink.live.credit == 0
    gateway.publish(1_000)
    attempts = gateway.dialer.state.attempts
    await asyncio.sleep(BACKOFF.limit_s * 2)
    assert gateway.dialer.state.attempts == attempts, "it tried while paused"
    assert hub.mark == 9
    gateway.dialer.resume()
    await eventually(lambda: gateway.settled == 1_010)
    await gateway.dialer.close()


@scenario
async def test_link_fails_over_to_the_second_endpoint_and_back(hub: Hub) -> None:
    second = Hub()
    await second.start()
    gateway = Gateway([hub.port, second.port])
    await hub.kill()
    gateway.dialer.start()
    await eventually(lambda: gateway.dialer.state.connected)
    assert gateway.dialer.state.endpoint == f"amqp://127.0.0.1:{second.port}"
    await hub.start()
    await second.kill()
    await eventually(lambda: hub.gateways == ["gw1"])
    assert gateway.dialer.state.endpoint == f"amqp://127.0.0.1:{hub.port}"
    await gateway.dialer.close()
    await eventually(lambda: not second._drivers)


@scenario
async def test_silent_peer_is_left_for_the_next_endpoint(hub: Hub) -> None:
    async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(mute) as port:
        gateway = Gateway([port, hub.port], connect_timeout_s=0.2)
        gateway.dialer.start()
        await eventually(lambda: gateway.dialer.state.connected)
        assert any("no link in 0.2 s" in (state.last_error or "") for state in gateway.states)
        await gateway.dialer.close()


@scenario
async def test_peer_of_another_protocol_has_a_readable_error(hub: Hub) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with serving(nonsense) as port:
        gateway = Gateway([port])
        gateway.dialer.start()
        await eventually(lambda: gateway.dialer.state.attempts >= 3)
        assert "amqp:connection:framing-error" in (gateway.dialer.state.last_error or "")
        assert gateway.dialer.state.refused, "somebody is there, and is no hub"
        await gateway.dialer.close()


@scenario
async def test_fault_in_making_a_connection_is_logged_and_retried(hub: Hub) -> None:
    gateway = Gateway([hub.port])
    faults = 3
    attempt = gateway.dialer._make_attempt

    def faulty(dialer: Dialer, endpoint: PeerEndpoint) -> Any:
        nonlocal faults
        if faults:
            faults -= 1
            raise RuntimeError("no certificate")
        return attempt(dialer, endpoint)

    gateway.dialer._make_attempt = faulty
    gateway.dialer.start()
    await eventually(lambda: gateway.dialer.state.connected)
    assert any("no certificate" in (state.last_error or "") for state in gateway.states)
    await gateway.dialer.close()


def test_closing_a_dialer_that_cannot_connect() -> None:
    async def run() -> None:
        gateway = Gateway([1])
        gateway.dialer.start()
        await eventually(lambda: gateway.dialer.state.last_error is not None)
        assert not gateway.dialer.state.refused, "nobody is there"
        await gateway.dialer.close()
        assert not gateway.dialer.state.connected

    asyncio.run(run())


def test_closing_a_dialer_does_not_wait_for_a_silent_peer() -> None:
    """A peer that accepts the connection but never speaks TLS does not delay a change of connector."""

    async def run() -> None:
        taken = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            taken.set()
            await reader.read()

        async with serving(silent) as port:
            gateway = Gateway([port], tls=True)
            gateway.dialer.start()
            await taken.wait()
            async with asyncio.timeout(CLOSE_TIMEOUT_S / 2):
                await gateway.dialer.close()

    asyncio.run(run())
