"""Links of neighbours with messages: origins of messages that were published at other routers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bridge.amqp_values import DecodeError
from bridge.engine import Condition, DeliveryState, Detail, Link, Transfers
from bridge.message import AMQP, Run
from edge.broker.delivery import AnycastGroup
from edge.broker.limits import NETWORK_HOPS_MAX, SENDER_CREDIT
from edge.broker.message.translation import flags_of
from edge.broker.model.interfaces import Explanation, MessageCounts, Origin, Refusal
from edge.broker.router.networking.hops import PATH_LOST, MessageStart, PassedRun, read_start
from edge.broker.router.networking.peering import Peering

_REJECTED: Final = {
    Refusal.TOO_LARGE: "amqp:link:message-size-exceeded",
    Refusal.REJECTED: "amqp:precondition-failed",
}
"""Refusals that no other attempt changes. All others are temporary: the message is released."""
_MODIFIED: Final = {
    Refusal.RELEASED: DeliveryState.MODIFIED,
    Refusal.DELIVERY_FAILED: DeliveryState.MODIFIED_FAILED,
    Refusal.UNDELIVERABLE: DeliveryState.MODIFIED_UNDELIVERABLE,
}
_UNEXPLAINED: Final = Explanation()


class IngressGroup:
    """Consumers of one anycast address for messages of neighbours, and the links that wait for their credit."""

    def __init__(self, figures: MessageCounts, make: Callable[[Callable[[], None]], AnycastGroup]) -> None:
        """`figures` count the messages that arrive. `make` returns the consumers, and is given the function to call
        when their credit has changed."""
        self._figures = figures
        self._waiting: dict[AnycastIngress, None] = {}
        self.links: dict[AnycastIngress, None] = {}
        """Links with messages for it."""
        self.group = make(self.credit_changed)

    def offer(self, link: AnycastIngress, run: Run, tokens: Sequence[int]) -> Refusal | None:
        """Give a run to a consumer; see `AnycastGroup.offer`."""
        self._figures.received += len(run.bodies)
        return self.group.offer(link, run, tokens)

    def credit_for(self, link: AnycastIngress) -> int:
        """Return how many messages a link may have under way. Without credit it is notified once there is some."""
        credit = min(SENDER_CREDIT, self.group.credit)
        if not credit:
            self._waiting[link] = None
        return credit

    def credit_changed(self) -> None:
        """Notify the links that wait for credit."""
        if self._waiting and self.group.credit:
            waiting, self._waiting = self._waiting, {}
            for link in waiting:
                link.top_up()

    def forget(self, link: AnycastIngress) -> None:
        """Forget a link that has ended, and drop its messages that no consumer has yet: their sender knows."""
        self._waiting.pop(link, None)
        self.links.pop(link, None)
        self.group.withdraw(link)


class IngressLink(Origin):
    """Link with messages of one address."""

    def __init__(self, peering: Peering, link: Link, address: str) -> None:
        self.name = f"router {peering.peer_name}"
        self.address = address
        self._peering = peering
        self._link = link
        self._start = b""
        self._read = MessageStart(b"", (), False)
        """Beginning of the last message, and what it says: most messages have the same."""
        peering.ingress[self] = None

    # --- from the connection ------------------------------------------------------------------------------------

    def received(self, event: Transfers) -> None:
        """Publish the messages of one read in as few runs as possible."""
        self._peering.traffic.received += len(event.messages)
        self._peering.heard()
        bodies = self._peering.engine.strip_header(event.messages, self._start) if self._start else None
        if bodies is None or event.settled or not self._passes(self._read.hops):
            self._publish_each(event)
        else:
            run = self._run(AMQP if self._read.at_most_once else AMQP | 1)
            run.bodies = bodies
            self._take(run, event.deliveries)
        self.top_up()

    def _publish_each(self, event: Transfers) -> None:
        run: PassedRun | None = None
        tokens: list[int] = []
        for i, message in enumerate(event.messages):
            token = None if event.settled else event.deliveries[i]
            try:
                self._peering.engine.check_message(message)
                same = bool(self._start) and message.startswith(self._start)
                if not same:
                    size, self._read = read_start(message)
                    self._start = message[:size]
                body = message[len(self._start) :]
                flags = AMQP | flags_of(body, settled=self._read.at_most_once)
            except DecodeError as error:
                self._settle((token,), DeliveryState.REJECTED, Condition("amqp:decode-error", str(error)))
                continue
            if not self._admits(self._read.hops, token):
                continue
            if run is None or not same or run.flags != flags:
                self._take(run, tokens)
                run, tokens = self._run(flags), []
            run.bodies.append(body)
            if token is not None:
                tokens.append(token)
        self._take(run, tokens)

    def ended(self) -> None:
        """Forget the ended link."""
        self._peering.ingress.pop(self, None)

    def top_up(self) -> None:
        """Grant credit once half of what is allowed is used up."""
        raise NotImplementedError

    def publish(self, run: Run, tokens: Sequence[int]) -> None:
        """Publish a run."""
        raise NotImplementedError

    # --- inside -------------------------------------------------------------------------------------------------

    def _admits(self, hops: Sequence[str], token: int | None) -> bool:
        """Release a message that has passed this router, or too many."""
        if self._passes(hops):
            return True
        self._peering.network.counts.looped += 1
        self._settle((token,), DeliveryState.RELEASED, None)
        return False

    def _passes(self, hops: Sequence[str]) -> bool:
        return self._peering.network.name not in hops and len(hops) <= NETWORK_HOPS_MAX

    def _run(self, flags: int) -> PassedRun:
        start = self._read
        received_at, good = self._peering.network.stamp()
        return PassedRun(self.address, start.hops[0], flags | good, start.header, [], received_at, start.hops)

    def _take(self, run: PassedRun | None, tokens: Sequence[int]) -> None:
        if run is None:
            return
        if self._peering.tracer.active:
            count, route = len(run.bodies), ", ".join(run.hops)
            self._peering.trace(self.address, count, from_neighbour=True, route=route, payload_bytes=run.size)
        self.publish(run, tokens)

    def _grant(self, window: int) -> None:
        link = self._link
        if not link.closed and window > 0 and link.credit * 2 <= window and not self._peering.network.leaving:
            self._peering.engine.grant(link, window - link.credit)
            self._peering.wake()

    def _settle(self, tokens: Sequence[int | None], state: DeliveryState, detail: Detail) -> None:
        self._peering.engine.settle(self._link, [token for token in tokens if token is not None], state, detail)
        self._peering.wake()

    def abort(self) -> None:
        self._peering.disconnect("an unexpected error")


class AnycastIngress(IngressLink):
    """Link with messages of an anycast address to one router: this one, or one behind it."""

    def __init__(self, peering: Peering, link: Link, address: str, ingress: IngressGroup) -> None:
        super().__init__(peering, link, address)
        self._ingress = ingress
        self._explanations: dict[int, Explanation] = {}
        ingress.links[self] = None

    def publish(self, run: Run, tokens: Sequence[int]) -> None:
        why = self._ingress.offer(self, run, tokens)
        if why is not None:
            self.refused(tokens, why)

    def top_up(self) -> None:
        if self._link.credit * 2 <= SENDER_CREDIT:
            self._grant(self._ingress.credit_for(self))

    def ended(self) -> None:
        super().ended()
        self._ingress.forget(self)

    # --- from the group -----------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        if self._peering.tracer.active:
            self._peering.trace(self.address, len(tokens), from_neighbour=True, outcome="accepted")
        self._settle(tokens, DeliveryState.ACCEPTED, None)

    def explained(self, tokens: Sequence[int], explanation: Explanation) -> None:
        self._explanations.update(dict.fromkeys(tokens, explanation))

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self._peering.trace(self.address, len(tokens), from_neighbour=True, outcome=f"refused because {why.value}")
        for token in tokens if self._explanations else ():
            condition, description, annotations = self._explanations.pop(token, _UNEXPLAINED)
            if annotations and why in _MODIFIED:
                self._settle((token,), _MODIFIED[why], annotations)
            elif why is Refusal.REJECTED and condition:
                self._settle((token,), DeliveryState.REJECTED, Condition(condition, description))
            else:
                self._refuse((token,), why)
        if tokens and not self._explanations:
            self._refuse(tokens, why)  # settled ones are skipped

    def _refuse(self, tokens: Sequence[int], why: Refusal) -> None:
        if why is Refusal.PATH_LOST:
            self._settle(tokens, DeliveryState.MODIFIED_FAILED, PATH_LOST)
        elif why is Refusal.DELIVERY_FAILED or why is Refusal.UNDELIVERABLE:
            self._settle(tokens, _MODIFIED[why], None)
        elif why in _REJECTED:
            self._settle(tokens, DeliveryState.REJECTED, Condition(_REJECTED[why], why.value))
        else:
            self._settle(tokens, DeliveryState.RELEASED, None)


class MulticastTarget(Protocol):
    """Takes multicast messages of neighbours."""

    def multicast(self, origin: Origin, run: Run) -> None:
        """Deliver to consumers here, and pass on to the neighbours behind."""
        ...


class MulticastIngress(IngressLink):
    """Link with messages of a multicast address; each is answered at once, as at one router."""

    def __init__(self, peering: Peering, link: Link, address: str, target: MulticastTarget) -> None:
        super().__init__(peering, link, address)
        self._target = target
        self._held = False

    def publish(self, run: Run, tokens: Sequence[int]) -> None:
        self._target.multicast(self, run)
        self._settle(tokens, DeliveryState.ACCEPTED, None)

    def top_up(self) -> None:
        if not self._held:
            self._grant(SENDER_CREDIT)

    def accepted(self, tokens: Sequence[int]) -> None:
        """Do nothing: messages are answered at once."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Do nothing, likewise."""

    def pause_publishing(self) -> None:
        """Grant no credit until a subscriber has caught up."""
        self._held = True

    def resume_publishing(self) -> None:
        """Grant credit again."""
        self._held = False
        self.top_up()
