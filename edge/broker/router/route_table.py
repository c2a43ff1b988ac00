"""Routes by address: made from the rule and the subscriptions when the first run arrives."""

from __future__ import annotations

from collections.abc import Callable

from edge.broker.limits import ADDRESS_REMEMBERED_CHARACTERS_MAX, NAMES_REMEMBERED_MAX
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.authorization import TEMPORARY_PREFIX, is_temporary
from edge.broker.model.interfaces import AddressError, Origin, Refusal
from edge.broker.model.remembered_names import RememberedNames
from edge.broker.retention.quotas import QuotaAccount, Quotas
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.connection_states import ConnectionStateRoute, ConnectionStates, is_state_topic
from edge.broker.router.flows import AddressFlows
from edge.broker.router.landing.route import RequestRecorder, with_receipts
from edge.broker.router.logs import Logs
from edge.broker.router.networking.host import DirectNetwork
from edge.broker.router.routes import (
    AnycastRoute,
    MulticastRoute,
    OwnRoute,
    QueueRoute,
    RefusingRoute,
    Route,
    TemporaryRoute,
    TopicRoute,
)
from edge.broker.router.subscriptions import SubscriptionRegistry

RESERVED = "$SYS/"
"""Prefix of the broker's own names."""


class RoutesMade(RememberedNames[Route]):
    """Routes made so far, by address. `forgotten` is called before they are cleared."""

    def __init__(self, forgotten: Callable[[], None]) -> None:
        super().__init__()
        self._forgotten = forgotten
        self._of_prefixes: dict[str, TopicRoute] = {}
        """Routes of all addresses with a prefix (`RouteTable.prefix`)."""

    def known_prefix(self, address: str) -> str:
        """Return the prefix of an address that has a known route; empty without one."""
        routes, end = self._of_prefixes, 0
        while routes and (end := address.find("/", end) + 1):
            if address[:end] in routes:
                return address[:end]
        return ""

    def of_prefix(self, address: str) -> TopicRoute | None:
        """Return the route of an address by its prefix, or None."""
        return self._of_prefixes.get(self.known_prefix(address))

    def note_prefix(self, prefix: str, route: TopicRoute) -> None:
        """Note the route of all addresses with this prefix; an empty prefix is ignored."""
        if 0 < len(prefix) <= ADDRESS_REMEMBERED_CHARACTERS_MAX:
            if len(self._of_prefixes) >= NAMES_REMEMBERED_MAX:
                self._of_prefixes.clear()
            self._of_prefixes[prefix] = route

    def clear(self) -> None:
        """Forget all routes."""
        self._forgotten()
        super().clear()
        self._of_prefixes.clear()


class RouteTable:
    """Routes by address. The caller clears `made` after changes of rules or subscriptions."""

    def __init__(
        self,
        made: RoutesMade,
        addresses: ConfiguredAddresses,
        subscriptions: SubscriptionRegistry,
        logs: Logs,
        quotas: Quotas,
        states: ConnectionStates,
    ) -> None:
        self.made = made
        """Routes made so far; `make` adds missing ones."""
        self.flows = AddressFlows()
        """Counts of messages by rule."""
        self._addresses = addresses
        self._subscriptions = subscriptions
        self._logs = logs
        self._quotas = quotas
        self._states = states
        self._recorder: RequestRecorder | None = None
        """Takes requests for receipts; None: no address has receipts."""
        self._network: DirectNetwork | None = None
        self._owners: dict[str, Origin] = {}
        """Only origin that may send, by prefix of the addresses."""

    def reserve(self, prefix: str, owner: Origin) -> None:
        """Let only this origin send to addresses that begin with `prefix`, which ends with a slash."""
        self._owners[prefix] = owner
        self.made.clear()

    def follow_network(self, network: DirectNetwork) -> None:
        """Send multicast messages to consumers at other routers from now on."""
        self._network = network
        self.made.clear()

    def record_requests(self, recorder: RequestRecorder) -> None:
        """Have the requests for receipts recorded at addresses with receipts."""
        self._recorder = recorder
        self.made.clear()

    def make(self, address: str, user: str) -> Route:
        """Make the route of an address by the present rules; `user` is charged for a new queue."""
        route: Route | None = self.made.of_prefix(address)
        if route is None:
            try:
                route = self._route(address, user)
                if self._recorder is not None and self._has_receipts(address):
                    route = with_receipts(route, self._recorder)
                owner = self._owner(address)
                route = route if owner is None else OwnRoute(route, owner)
            except AddressError as error:
                return RefusingRoute(error.refusal)
        self.made.note(address, route)
        return route

    def prefix(self, address: str) -> str:
        """Return the prefix, with its slash, of all addresses with the same route as this one at present; empty if it
        has its own route. Temporary and reserved addresses have none, nor have those with receipts."""
        known = self.made.known_prefix(address)
        if known:
            return known
        levels = address.split("/")
        if address.startswith(TEMPORARY_PREFIX) or self._owner(address) is not None:
            return ""
        if self._addresses.table.rule(address).type is not AddressType.TOPIC or self._has_receipts(address):
            return ""
        table, subscriptions = self._addresses.table, self._subscriptions
        parts = (table, subscriptions.durable, subscriptions.live)
        count = max(part.deciding_levels(address) for part in parts)
        return "/".join([*levels[:count], ""]) if count < len(levels) else ""

    def schedulable_type(self, address: str) -> AddressType | None:
        """Return the type of a queue or topic that clients may send to; None for any other address."""
        kind = self._addresses.table.rule(address).type
        if address.startswith(RESERVED) or is_temporary(address) or self._owner(address) is not None:
            return None
        return kind if kind.is_queue or kind is AddressType.TOPIC else None

    def _has_receipts(self, address: str) -> bool:
        return self._addresses.policy(address).receipts is not None

    def _owner(self, address: str) -> Origin | None:
        """Return the only origin that may send to an address; None: any with the right."""
        return next((owner for prefix, owner in self._owners.items() if address.startswith(prefix)), None)

    def _route(self, address: str, user: str) -> Route:
        rule, competing, live = (
            self._addresses.table.rule(address),
            self._subscriptions.competing,
            self._subscriptions.live,
        )
        flow = self.flows.of(rule.pattern)
        route: Route
        if is_state_topic(address):
            route = ConnectionStateRoute(self._states, live.sinks(address))
        elif address.startswith(RESERVED):
            route = RefusingRoute(Refusal.NOT_AUTHORIZED)
        elif is_temporary(address):
            route = TemporaryRoute([sink for sink in live.match(address) if sink.pattern == address])
        elif rule.type is AddressType.SUBSCRIPTION:
            route = RefusingRoute(Refusal.ADDRESS_INVALID)
        elif rule.type.is_queue:
            log = competing.queue_log(address, user)
            route = QueueRoute(flow, log, self._open_account(rule, log))
        elif rule.type is AddressType.ANYCAST:
            route = AnycastRoute(flow, competing.anycast_group(address))
        elif rule.type is AddressType.MULTICAST:
            remote = () if self._network is None else self._network.sinks(address)
            route = MulticastRoute(flow, [*live.sinks(address), *remote])
        else:
            route = self._topic_route(address, rule)
            self.made.note_prefix(self.prefix(address), route)
        return route

    def account(self, address: str) -> QuotaAccount | None:
        """Return the quota account of a stored address; None for an address that is not stored."""
        return self._quotas.get(self._addresses.table.rule(address).pattern)

    def _topic_route(self, address: str, rule: AddressRule) -> TopicRoute:
        flow = self.flows.of(rule.pattern)
        lowest_qos = self._subscriptions.durable.lowest_qos(address)
        live = self._subscriptions.live.sinks(address)
        if lowest_qos is None:
            return TopicRoute(flow, live)
        log = self._logs.of_topics(rule)
        return TopicRoute(flow, live, log, self._open_account(rule, log), keeps_qos0=lowest_qos == 0)

    def _open_account(self, rule: AddressRule, log: int) -> QuotaAccount:
        return self._quotas.open(rule.pattern, self._addresses.policy_of_rule(rule.pattern), log)
