"""One connection to a neighbour: its control link in each direction, and the links with messages.

Either end may have dialed. `network_links` has the shell of a connector's connection; a session of the broker is the
shell of an accepted one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Protocol

from bridge.engine import Condition, Dispositions, Engine, Link, Transfers, describe_condition
from edge.broker.limits import (
    NETWORK_IN_FLIGHT_BYTES_MAX,
    NETWORK_LINK_BYTES_MAX,
    NETWORK_LINK_IDLE_S,
    NETWORK_LINK_TURN_S,
    NETWORK_LINKS_MAX,
    NETWORK_STATEMENT_BYTES_MAX,
    NETWORK_STATEMENTS_WAITING_BYTES_MAX,
)
from edge.broker.model.authorization import NETWORK
from edge.broker.model.tracing import RelayedMessages, Tracer
from edge.broker.router.networking.capability import CAPABILITY, DESTINATION, KIND
from edge.broker.router.networking.neighbour_traffic import NeighbourTraffic, NetworkCounts

_CONTROL_CREDIT: Final = 64
_since = itemgetter(0)


class EgressOwner(Protocol):
    """Owner of a link to the neighbour."""

    def attached(self) -> None:
        """Process the neighbour's answer to the attach."""
        ...

    def flow(self) -> None:
        """Process a change of the credit."""
        ...

    def accepted(self, tags: list[int]) -> None:
        """Process messages that were accepted and settled."""
        ...

    def settled(self, event: Dispositions) -> None:
        """Process other outcomes."""
        ...

    def detached(self) -> None:
        """Process the end of the link by the neighbour."""
        ...

    def fail(self) -> None:
        """Process the end of the connection."""
        ...

    @property
    def idle_since_s(self) -> float | None:
        """Time at which the link was used last; None without a link, or while messages are unanswered."""
        ...

    def detach_idle(self) -> None:
        """Detach the unused link."""
        ...


class IngressOwner(Protocol):
    """Owner of a link from the neighbour."""

    def received(self, event: Transfers) -> None:
        """Process messages."""
        ...

    def ended(self) -> None:
        """Process the end of the link."""
        ...

    def top_up(self) -> None:
        """Grant credit."""
        ...


class PeeringNetwork(Protocol):
    """The network, as its connections see it."""

    name: str
    counts: NetworkCounts
    tracer: Tracer
    leaving: bool
    """True during an orderly stop: the neighbour gets no further credit."""

    def now_s(self) -> float:
        """Return monotonic seconds."""
        ...

    def now_ns(self) -> int:
        """Return UTC nanoseconds."""
        ...

    def stamp(self) -> tuple[int, int]:
        """Return the time of reception of a run that arrives now, and its flags for the clock."""
        ...

    def document_received(self, peering: Peering, encoded: bytes) -> None:
        """Process a document of the neighbour."""
        ...

    def make_ingress(self, peering: Peering, link: Link) -> IngressOwner | Condition:
        """Return the owner of a link that the neighbour attaches, or the condition with which it is refused."""
        ...


class Peering:
    """Connection to a neighbour. `EgressOwner` and `IngressOwner` are the contexts of its links."""

    def __init__(
        self,
        network: PeeringNetwork,
        key: int,
        engine: Engine,
        wake: Callable[[], None],
        disconnect: Callable[[str], None],
        greeted: Callable[[], None],
        traffic: NeighbourTraffic,
    ) -> None:
        """`wake` requests a write. `disconnect` closes the connection for a reason. `greeted` is called when the
        neighbour has greeted. `traffic` counts its messages."""
        self.network = network
        self.key = key
        self.engine = engine
        self.wake = wake
        self.disconnect = disconnect
        self.peer_name = ""
        """Name of the neighbour; empty before its first greeting."""
        self.heard_s = 0.0
        """Time at which the last messages or answers arrived."""
        self.traffic = traffic
        self.tracer = network.tracer
        self.egress: dict[EgressOwner, None] = {}
        self.ingress: dict[IngressOwner, None] = {}
        self.over = False
        """True after the connection has ended for the network."""
        self._greeted = greeted
        self._in_flight_bytes = 0
        self._number = 0
        self._control: Link | None = None
        self._attached: dict[Link, EgressOwner] = {}
        """Links to the neighbour, other than the control link."""
        self._waiting_links: dict[EgressOwner, None] = {}
        """Owners that have no link because there are too many; each gets its turn."""
        self._turn: EgressOwner | None = None
        """Owner of `_waiting_links` that may attach its link now."""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    # --- for the network ----------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return monotonic seconds."""
        return self.network.now_s()

    def heard(self) -> None:
        """Note that the neighbour is alive."""
        self.heard_s = self.now_s()

    def trace(
        self,
        address: str,
        count: int,
        *,
        from_neighbour: bool,
        route: str = "",
        outcome: str = "",
        payload_bytes: int | None = None,
    ) -> None:
        """Show messages, or their answers, in the packet trace; see `RelayedMessages`."""
        if count and self.tracer.active:
            messages = RelayedMessages(self.peer_name, from_neighbour, address, count, route, outcome, payload_bytes)
            self.network.tracer.relayed(messages)

    def count_outcome(self, outcome: str, messages: int) -> None:
        """Count answers of the neighbour, by the field of `NeighbourTraffic`."""
        setattr(self.traffic, outcome, getattr(self.traffic, outcome) + messages)

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of messages that the neighbour has not answered."""
        return self._in_flight_bytes

    def is_full(self, link_bytes: int) -> bool:
        """Return True while a link with this many unanswered bytes may send nothing more. One without any always may,
        so that none waits for the consumers of others."""
        if self.over or link_bytes == 0:
            return self.over
        return link_bytes >= NETWORK_LINK_BYTES_MAX or self._in_flight_bytes >= NETWORK_IN_FLIGHT_BYTES_MAX

    def count(self, change: int) -> None:
        """Add bytes of unanswered messages; negative: they were answered. Links continue, in turns, when there is room
        again."""
        was_full = self._in_flight_bytes >= NETWORK_IN_FLIGHT_BYTES_MAX
        self._in_flight_bytes += change
        if not was_full:
            return
        for egress in list(self.egress):
            if self._in_flight_bytes >= NETWORK_IN_FLIGHT_BYTES_MAX or self.over:
                return
            if egress in self.egress:
                del self.egress[egress]
                self.egress[egress] = None
                egress.flow()

    def greeted_by(self, name: str) -> None:
        """Note the name of the neighbour."""
        if not self.peer_name:
            self.peer_name = name
            self._greeted()

    def send(self, document: bytes) -> None:
        """Send a document, in order."""
        self._waiting.append(document)
        self._waiting_bytes += len(document)
        if self._waiting_bytes > NETWORK_STATEMENTS_WAITING_BYTES_MAX:
            self.disconnect("the neighbour does not read what routers state")
            return
        self._send_waiting()

    def attach(self, egress: EgressOwner, kind: str, destination: str, address: str) -> Link | None:
        """Attach a link for messages. Return None while there are too many: `egress.flow` is called when its turn has
        come."""
        if self.over or not self._may_attach(egress):
            return None
        self._number += 1
        name = f"{self.network.name}>{kind}>{self._number}"
        properties = {KIND: kind, **({DESTINATION: destination} if destination else {})}
        link = self.engine.attach_sender(name, address, desired_capabilities=(CAPABILITY,), properties=properties)
        link.bind(egress)
        link.report_accepted_by_tag()
        self._attached[link] = egress
        self.wake()
        return link

    @property
    def waiting_links(self) -> int:
        """Number of addresses that wait for a link to the neighbour, because there are too many."""
        return len(self._waiting_links)

    @property
    def attached_links(self) -> int:
        """Number of links with messages to the neighbour."""
        return len(self._attached)

    def tick(self, now_s: float) -> None:
        """Detach unused links, and give links to those that wait, the first one first."""
        for egress in list(self._attached.values()):
            since_s = egress.idle_since_s
            if since_s is not None and now_s - since_s > NETWORK_LINK_IDLE_S:
                egress.detach_idle()
        for egress in list(self._waiting_links):
            if not self._make_room(egress, now_s):
                return
            self._waiting_links.pop(egress, None)
            self._turn = egress
            egress.flow()
            self._turn = None

    def forget(self, egress: EgressOwner) -> None:
        """Forget an owner that needs no link any more."""
        self.egress.pop(egress, None)
        self._waiting_links.pop(egress, None)

    def detach(self, link: Link) -> None:
        """Detach a link of ours."""
        self._attached.pop(link, None)
        link.bind(None)
        if not self.over:
            self.engine.detach(link)
            self.wake()

    # --- for the shell ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Attach the control link: the connection is open."""
        self._control = self.engine.attach_sender(
            f"{self.network.name}>control", NETWORK, desired_capabilities=(CAPABILITY,), snd_settle_mode=1
        )
        self._control.bind(self)
        self.wake()

    def attached(self, link: Link) -> None:
        """Handle a link that the neighbour attached, or its answer to ours."""
        if link.is_sender:
            if link.context is not None and link.context is not self:
                link.context.attached()
            return
        if link.target.address == NETWORK:
            self.engine.accept(link, max_message_size=NETWORK_STATEMENT_BYTES_MAX)
            link.bind(_ControlReceiver(self, link))
            self.engine.grant(link, _CONTROL_CREDIT)
            self.wake()
            return
        if self.over:
            self.engine.refuse(link, Condition("amqp:not-allowed", "this connection is no longer part of the network"))
            self.wake()
            return
        made = self.network.make_ingress(self, link)
        if isinstance(made, Condition):
            self.engine.refuse(link, made)
        else:
            link.bind(made)
            self.engine.accept(link)
            made.top_up()
        self.wake()

    def detached(self, link: Link, condition: Condition | None) -> None:
        """Handle the end of a link by the neighbour."""
        owner = link.context
        self._attached.pop(link, None)
        link.bind(None)
        if owner is self or isinstance(owner, _ControlReceiver):
            self.disconnect(f"the peer links no routers: {describe_condition(condition)}")
        elif owner is not None and link.is_sender:
            owner.detached()
        elif owner is not None:
            owner.ended()

    def flow(self) -> None:
        """Send waiting documents: the neighbour has granted credit for them."""
        self._send_waiting()

    def accepted(self, tags: list[int]) -> None:
        """Do nothing: documents are sent settled."""

    def settled(self, event: Dispositions) -> None:
        """Do nothing, likewise."""

    def stop(self) -> None:
        """Send nothing more: the connection is over for the network."""
        self.over = True

    def close(self) -> None:
        """End all links, after `stop`."""
        for egress in list(self.egress):
            egress.fail()
        self._attached.clear()
        for ingress in list(self.ingress):
            ingress.ended()
        self._waiting.clear()

    # --- inside -------------------------------------------------------------------------------------------------

    def _may_attach(self, egress: EgressOwner) -> bool:
        if self._turn is not None:
            allowed = egress is self._turn
        else:  # no room is made here: the credit of the link that would go may have been read a moment ago
            allowed = not self._waiting_links and len(self._attached) < NETWORK_LINKS_MAX
        if not allowed:
            self._waiting_links[egress] = None
        return allowed

    def _make_room(self, egress: EgressOwner, now_s: float) -> bool:
        """Detach the link that is unused for longest, if there are too many, for another owner. Return False if every
        one is in use."""
        if len(self._attached) < NETWORK_LINKS_MAX:
            return True
        idle = [(since_s, each) for each in self._attached.values() if (since_s := each.idle_since_s) is not None]
        since_s, oldest = min(idle, key=_since, default=(now_s, None))
        if oldest is None or now_s - since_s < NETWORK_LINK_TURN_S:
            return False
        self._turn = egress  # the senders of the other one want it back at once
        oldest.detach_idle()
        self._turn = None
        return True

    def _send_waiting(self) -> None:
        link = self._control
        while self._waiting and link is not None and link.attached and not link.closed and link.credit > 0:
            document = self._waiting.popleft()
            self._waiting_bytes -= len(document)
            self.engine.send(link, 0, _data_section(document), settled=True)
            self.wake()


class _ControlReceiver:
    """Documents of the neighbour."""

    def __init__(self, peering: Peering, link: Link) -> None:
        self._peering = peering
        self._link = link

    def received(self, event: Transfers) -> None:
        """Process documents, and grant credit for more."""
        for message in event.messages:
            self._peering.network.document_received(self._peering, message)
        if self._link.credit * 2 <= _CONTROL_CREDIT and not self._link.closed:
            self._peering.engine.grant(self._link, _CONTROL_CREDIT - self._link.credit)
            self._peering.wake()

    def ended(self) -> None:
        """Do nothing: the connection ends."""


def _data_section(document: bytes) -> bytes:
    return b"\x00\x53\x75\xb0" + len(document).to_bytes(4, "big") + document
