"""Links of one session: each becomes an origin or a consumer of the router until it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bridge.engine import Condition, Engine, Link, TerminusKind
from bridge.message import Run
from edge.broker.amqp.addressing import (
    CONDITIONS,
    COORDINATOR,
    SERVICES,
    TEMPORARY_QUEUE,
    AttachRefused,
    ReceiverTarget,
    parse_receiver,
    parse_sender,
    with_timeout,
)
from edge.broker.amqp.administration import Administration
from edge.broker.amqp.containers import ContainerRegistry, LinkFigures, LinkName, MessageTotals, Steal
from edge.broker.amqp.incoming import IncomingLink
from edge.broker.amqp.interception import InterceptedOrigin
from edge.broker.amqp.outgoing import STOLEN, OutgoingLink
from edge.broker.amqp.peer import NOT_AUTHORIZED, AmqpPeer, denied
from edge.broker.amqp.scheduler import Scheduler
from edge.broker.amqp.services import PutToken, ServiceLink
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import MANAGEMENT, NETWORK, Grant, Operation
from edge.broker.model.interfaces import AddressError
from edge.broker.model.refusals import RefusalCause
from edge.broker.router.networking.capability import CAPABILITY
from edge.broker.router.router import Router

if TYPE_CHECKING:
    from edge.broker.amqp.coordinator import CoordinatorLink
    from edge.broker.router.networking.peering import Peering
    from edge.broker.router.transactions.transaction import Transaction


class LinkAttachment(NamedTuple):
    """Owner and properties of an attached link."""

    owner: IncomingLink | ServiceLink | InterceptedOrigin | CoordinatorLink | OutgoingLink
    address: str | None
    """Address that the link sends to or receives from; None: the anonymous relay."""
    allowed: Callable[[Grant], bool] | None = None
    """Returns True if a grant allows the link, for changed grants; None: always allowed."""
    configured: tuple[str, AddressType] | None = None
    """Configured address, and its type at the attach."""
    dynamic: str | None = None
    """Dynamic node that the link created; its user may always use it."""
    named: tuple[LinkName, Steal] | None = None
    """Its entry in the container registry."""


class SessionLinks:
    """Attaches, finds and ends the links of one connection."""

    __slots__ = (
        "_administration",
        "_attached",
        "_clock_ns",
        "_containers",
        "_disconnect",
        "_driver",
        "_ended_received",
        "_ended_sent",
        "_engine",
        "_peer",
        "_peering",
        "_put_token",
        "_replies",
        "_router",
        "_transactions",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        router: Router,
        driver: Scheduler,
        peer: AmqpPeer,
        *,
        clock_ns: Callable[[], int],
        put_token: PutToken | None,
        administration: Administration | None,
        containers: ContainerRegistry,
        disconnect: Callable[[str], None],
    ) -> None:
        """`clock_ns`: UTC, for time to live. `put_token` processes tokens of `$cbs`, `administration` changes of
        addresses over `$management`; None: not supported. `disconnect` closes the connection for a reason."""
        self._engine = engine
        self._router = router
        self._driver = driver
        self._peer = peer
        self._clock_ns = clock_ns
        self._put_token = put_token
        self._administration = administration
        self._containers = containers
        self._attached: dict[Link, LinkAttachment] = {}
        self._ended_received = self._ended_sent = 0
        """Messages of links that have ended."""
        self._transactions: dict[bytes, Transaction] = {}
        """Open transactions of the connection, by txn-id."""
        self._disconnect = disconnect
        self._peering: Peering | None = None
        """Links of a router of the network; None: the peer is not a router."""
        self._replies: dict[str, str] = {}
        """Target addresses of receivers of a service's answers, and their addresses at the router."""

    @property
    def outgoing(self) -> list[OutgoingLink]:
        """Links on which the peer receives."""
        return [each.owner for each in self._attached.values() if isinstance(each.owner, OutgoingLink)]

    def figures(self) -> Iterator[LinkFigures]:
        """Yield the figures of each link, in the order of attach."""
        for link, (owner, address, *_) in self._attached.items():
            figures = link.credit, owner.unsettled, owner.delivered
            is_service = address in SERVICES or address == COORDINATOR
            yield LinkFigures(link.name, link.is_sender, address, is_service, *figures)

    def totals(self) -> MessageTotals:
        """Return the counts of messages of all links, also of ended ones."""
        received, sent, unsettled, receivers = self._ended_received, self._ended_sent, 0, 0
        for link, (owner, *_) in self._attached.items():
            if link.is_sender:
                sent += owner.delivered
                unsettled += owner.unsettled
                receivers += 1
            else:
                received += owner.delivered
        return MessageTotals(received, sent, unsettled, receivers)

    def attach(self, link: Link) -> None:
        """Accept or refuse a link."""
        if self._peering is not None and (link.context is not None or CAPABILITY in link.desired_capabilities):
            self._peering.attached(link)
            return
        try:
            self._peer.require(True, "attach", link.name)
            if CAPABILITY in link.desired_capabilities:
                self._attach_router(link)
            elif link.is_sender:
                self._attach_receiver(link)
            else:
                self._attach_sender(link)
        except AttachRefused as error:
            if error.condition.name == NOT_AUTHORIZED and not self._peer.closing:
                self._record_forbidden(link)
            self._engine.refuse(link, error.condition)
        except AddressError as error:
            self._engine.refuse(link, Condition(CONDITIONS[error.refusal], str(error)))

    def _attach_router(self, link: Link) -> None:
        """Accept the control link of a router: the connection belongs to a network of routers from now on."""
        peer, router = self._peer, self._router
        proven = peer.grant is not None and peer.grant.may_route  # without authentication anybody could be a router
        peer.require(proven and router.links_routers, "link routers over", NETWORK)
        if link.is_sender or link.target.address != NETWORK:
            raise AttachRefused("amqp:not-allowed", f"the first link of a router is the one to {NETWORK!r}")
        network = router.join_network(self._engine.container_id)
        self._peering = network.open(self._engine, self._driver.flush_soon, self._disconnect)
        self._peering.attached(link)

    def _record_forbidden(self, link: Link) -> None:
        """Record that the peer has no right to the address of this link."""
        cause, place = RefusalCause.NOT_ALLOWED_TO_SEND, link.target.address
        if link.is_sender:
            cause, place = RefusalCause.NOT_ALLOWED_TO_RECEIVE, link.source.address
        self._peer.forbidden(cause, place or "")

    def detached(self, link: Link, *, closed: bool, lost: bool = False, condition: Condition | None = None) -> None:
        """Process the end of a link. `closed` ends a durable subscription; `lost`: see `OutgoingLink.ended`."""
        if self._peering is not None and link not in self._attached:
            self._peering.detached(link, condition)
            return
        attachment = self._forget(link)
        if attachment is None:
            return
        owner = attachment.owner
        if isinstance(owner, OutgoingLink):
            owner.ended(closed=closed, lost=lost)
        elif isinstance(owner, IncomingLink | ServiceLink | InterceptedOrigin):
            owner.ended()
        else:
            owner.ended(lost=lost)

    def stop_sending(self) -> None:
        """Stop sending at once, before our close has reached the peer."""
        for outgoing in self.outgoing:
            outgoing.ended(closed=False)

    def end(self, *, lost: bool) -> None:
        """End all links, also if one raises. `lost`: the connection broke, or the peer closed it with an error."""
        with ExitStack() as steps:
            if self._peering is not None and self._router.network is not None:
                steps.callback(self._router.network.ended, self._peering)
            for link in list(self._attached):
                steps.callback(self.detached, link, closed=False, lost=lost)
        self._disconnect = _ignore  # else the session of an ended connection waits for the garbage collection

    def detach_forbidden(self, grant: Grant) -> None:
        """Detach the links that the new grant does not allow; a router without its right is disconnected."""
        if self._peering is not None and not grant.may_route:
            self._disconnect(f"the new token does not allow to link routers over {NETWORK!r}")
        for link, attachment in list(self._attached.items()):
            if attachment.allowed is not None and not attachment.allowed(grant):
                self._detach(link, denied("the new token does not allow this"))

    def detach_readdressed(self) -> None:
        """Detach the links to addresses that have another type now."""
        for link, attachment in list(self._attached.items()):
            if attachment.configured is None:
                continue
            address, before = attachment.configured
            now = self._router.addresses.type_of(address)
            if now is not before:
                text = f"{address!r} was a {before.value}, and is a {now.value} now"
                self._detach(link, Condition("amqp:resource-deleted", text))
                self._driver.flush_soon()

    # --- the peer sends -----------------------------------------------------------------------------------------

    def _attach_sender(self, link: Link) -> None:
        if link.target.kind is TerminusKind.COORDINATOR:
            self._attach_coordinator(link)
            return
        if not self._peer.closing and self._intercept_sender(link):
            return
        address, target = parse_sender(link)
        if address in SERVICES:
            self._attach_service(link, address)
            return
        peer, router = self._peer, self._router
        grant = peer.grant
        dynamic = target.address if target.dynamic else None
        allowed = None
        if grant is not None and not grant.user:
            peer.require(False, "send, before a token was put to $cbs, to", address or "the anonymous relay")
        if grant is not None and address is not None:
            peer.require(dynamic is not None or grant.may_send(address), "send to", address)
            allowed = partial(_may_send, address) if dynamic is None else None
        if address is not None and router.addresses.type_of(address) is AddressType.SUBSCRIPTION:
            raise AttachRefused("amqp:not-allowed", f"{address!r} is a subscription: send to its topic")
        relay = peer.interceptor.relay(address)
        incoming = IncomingLink(
            self._engine,
            link,
            router,
            self._driver,
            peer.publisher,
            address,
            grant,
            relay,
            peer.user,
            forbidden=partial(peer.forbidden, RefusalCause.NOT_ALLOWED_TO_SEND),
            transactions=self._transactions,
        )
        configured = None
        if dynamic is not None and TEMPORARY_QUEUE in target.capabilities:
            router.subscriptions.live.make_temporary_queue(dynamic, peer.user)
        elif dynamic is None and address is not None and relay is None:
            configured = address, router.addresses.type_of(address)
        self._add(link, LinkAttachment(incoming, address, allowed, configured, dynamic))
        self._engine.accept(link, target=target)
        incoming.top_up()

    def _intercept_sender(self, link: Link) -> bool:
        """Let the interceptor serve the link. Return False to leave it to the session."""
        peer = self._peer
        requests = peer.interceptor.sender(self._engine, link, self._driver, peer.publisher)
        if requests is None:
            return False
        self._add(link, LinkAttachment(requests, link.target.address))
        self._engine.accept(link, max_message_size=requests.message_bytes_max)
        requests.top_up()
        return True

    def _attach_coordinator(self, link: Link) -> None:
        """Accept the control link of transactions (part 4, section 4.2)."""
        from edge.broker.amqp.coordinator import CoordinatorLink  # noqa: PLC0415 - few clients have transactions

        peer = self._peer
        if peer.grant is not None and not peer.grant.user:
            peer.require(False, "declare transactions, before a token was put to $cbs, over", link.name)
        coordinator = CoordinatorLink(
            self._engine,
            link,
            self._router,
            self._driver,
            self._transactions,
            name=peer.name,
            user=peer.user,
            detach=self._detach,
        )
        self._add(link, LinkAttachment(coordinator, COORDINATOR))
        self._engine.accept(link, target=coordinator.target)
        coordinator.top_up()

    def _attach_service(self, link: Link, service: str) -> None:
        peer = self._peer
        if peer.grant is not None and service == MANAGEMENT:
            peer.require(peer.grant.may_manage, "manage over", service)
        incoming = ServiceLink(
            self._engine,
            link,
            self._router,
            self._driver,
            service,
            name=peer.name,
            replies=self._replies,
            grant=peer.grant,
            put_token=self._put_token,
            administration=self._administration,
            containers=self._containers,
        )
        self._add(link, LinkAttachment(incoming, service))
        self._engine.accept(link)
        incoming.top_up()

    # --- the peer receives --------------------------------------------------------------------------------------

    def _attach_receiver(self, link: Link) -> None:
        peer, router = self._peer, self._router
        if not peer.closing and self._intercept_receiver(link):
            return
        wanted = parse_receiver(link, peer.subscriber, router.addresses.type_of, router.durable_subscriptions)
        own = link.source.dynamic or any(each.dynamic == wanted.address for each in self._attached.values())
        configured = allowed = None
        if not (own or wanted.service):
            if peer.grant is not None:
                allowed = partial(_may_receive, wanted.address, wanted.options.browse)
                peer.require(allowed(peer.grant), "receive from", wanted.address)
            configured = wanted.address, router.addresses.type_of(wanted.address)
        outgoing = OutgoingLink(
            self._engine,
            link,
            router,
            self._driver,
            peer.name,
            durable=wanted.durable,
            clock_ns=self._clock_ns,
            selector=wanted.selector,
            shared=self._competes(wanted),
            forget=self._forget,
            user=peer.user,
            transactions=self._transactions,
        )
        options = msgspec.structs.replace(wanted.options, owned=own or bool(wanted.service), client=peer.container_id)
        resumed = options.durable_name is not None and options.durable_name in router.durable_subscriptions
        outgoing.subscribe(wanted.address, options)
        self._add(link, LinkAttachment(outgoing, wanted.service or wanted.address, allowed, configured))
        if wanted.service and link.target.address is not None:
            self._replies[link.target.address] = wanted.address
        elif not (resumed or options.shared or options.share_name is not None):
            self._feed_retained(outgoing, wanted.address)
        kept_s = min(options.timeout_s, router.durable_subscriptions.unused_s)
        outgoing.answer(with_timeout(wanted.source, kept_s))

    def _intercept_receiver(self, link: Link) -> bool:
        """Let the interceptor serve the link. Return False to leave it to the session."""
        peer = self._peer
        outgoing = peer.interceptor.receiver(self._engine, link, self._driver, peer.name, self._clock_ns)
        if outgoing is None:
            return False
        self._add(link, LinkAttachment(outgoing, link.source.address))
        self._engine.accept(link)
        outgoing.flow()
        return True

    def _competes(self, wanted: ReceiverTarget) -> bool:
        """Return True if other consumers get the messages that this receiver does not select."""
        if wanted.address in self._router.subscriptions.live.temporary_queues:
            return True
        return self._router.addresses.type_of(wanted.address).is_queue and not wanted.options.browse

    def _feed_retained(self, outgoing: OutgoingLink, address: str) -> None:
        """Send retained messages to a new receiver of a topic (as in MQTT 5 section 3.3.1.3)."""
        router = self._router
        if router.addresses.type_of(address) is AddressType.TOPIC:
            outgoing.feed(map(self._worthwhile, router.retained.walk(address)))

    def _worthwhile(self, run: Run | None) -> Run | None:
        """Return the run, unless it has expired."""
        router = self._router
        return (
            None
            if run is None or router.deadletters.has_outlived_ttl(run, router.addresses.policy(run.address))
            else run
        )

    # --- inside -------------------------------------------------------------------------------------------------

    def _add(self, link: Link, attachment: LinkAttachment) -> None:
        """Add the link. An older link of the container with this name and role is stolen (section 2.6.1)."""
        peer = self._peer
        if peer.container_id:
            named = LinkName(peer.user, peer.container_id, link.name, link.is_sender), partial(self._steal, link)
            self._containers.take_link(*named)
            attachment = attachment._replace(named=named)
        link.bind(attachment.owner)
        self._attached[link] = attachment

    def _detach(self, link: Link, condition: Condition, *, closed: bool = True) -> None:
        self._engine.detach(link, closed=closed, condition=condition)
        self.detached(link, closed=False)

    def _steal(self, link: Link) -> None:
        self._detach(link, STOLEN, closed=False)
        self._driver.flush_soon()

    def _forget(self, link: Link) -> LinkAttachment | None:
        """Remove the link, and delete the node that it created (section 3.5.10)."""
        link.bind(None)
        attachment = self._attached.pop(link, None)
        if attachment is None:
            return None
        if link.is_sender:
            self._ended_sent += attachment.owner.delivered
        else:
            self._ended_received += attachment.owner.delivered
        if attachment.named is not None:
            self._containers.release_link(*attachment.named)
        if link.is_sender:
            self._replies.pop(link.target.address or "", None)
        if attachment.dynamic is not None and attachment.dynamic in self._router.subscriptions.live.temporary_queues:
            self._router.subscriptions.end_temporary_queue(attachment.dynamic)
        return attachment


def _may_send(address: str, grant: Grant) -> bool:
    return grant.may_send(address)


def _may_receive(address: str, browse: bool, grant: Grant) -> bool:
    return (browse and grant.may(Operation.VIEW, address)) or grant.may_receive(address)


def _ignore(_reason: str) -> None:
    """Do nothing: the connection has ended."""
