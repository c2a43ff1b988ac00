"""SUBSCRIBE and UNSUBSCRIBE of one client: which filters it may have, what it is told (MQTT 5 sections 3.8, 3.10)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from edge.broker.delivery.pattern import PatternSubscription
from edge.broker.limits import SUBSCRIPTIONS_PER_SESSION_MAX
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Refusal
from edge.broker.model.topics import widened
from edge.broker.mqtt.answers import REASONS
from edge.broker.mqtt.events import ConnectEvent, SubscribeEvent, SubscriptionRequest, UnsubscribeEvent
from edge.broker.mqtt.interception import Interceptor
from edge.broker.mqtt.session import MqttSession, Subscriber
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import AddressError

log = logging.getLogger(__name__)

EXPLAINED_MAX: Final = 3
"""Filters of one SUBSCRIBE whose refusal is told in words as well; the codes tell of all."""


class Subscribing:
    """One packet of a client. Who calls it saves the session, and answers then."""

    def __init__(
        self,
        session: MqttSession,
        sessions: SessionRegistry,
        interceptor: Interceptor,
        grant: Grant | None,
        terms: ConnectEvent,
    ) -> None:
        """`grant` is what the client may do, None: everything; `terms` say its version, and whether it is a bridge."""
        self.codes: list[ReasonCode] = []
        """One for each filter, in order."""
        self.wanting_retained: list[Subscriber] = []
        """New subscriptions that are to get what is retained."""
        self._session = session
        self._sessions = sessions
        self._interceptor = interceptor
        self._grant = grant
        self._terms = terms
        self._words: list[str] = []
        self._joining: list[PatternSubscription] = []
        """Subscriptions to many queues, which may take several turns of the loop to join."""

    @property
    def text(self) -> str:
        """Why filters were refused."""
        return "; ".join(self._words[:EXPLAINED_MAX])

    def subscribe(self, event: SubscribeEvent) -> None:
        """Join what may be joined."""
        for asked in event.requests:
            self.codes.append(self._one(self._as_its_version_means(self._of_bridge(asked)), event.identifier))

    def when_joined(self, tell: Callable[[], None]) -> None:
        """Call `tell` once each subscription of the packet is joined to everything that it matches."""
        if self._joining:
            self._joining.pop().when_joined(partial(self.when_joined, tell))
        else:
            tell()

    def unsubscribe(self, event: UnsubscribeEvent) -> None:
        """Leave what there is."""
        for pattern in event.filters:
            there = self._leave(pattern)
            self.codes.append(ReasonCode.SUCCESS if there else ReasonCode.NO_SUBSCRIPTION_EXISTED)

    def _one(self, request: SubscriptionRequest, identifier: int) -> ReasonCode:
        session, pattern = self._session, request.filter
        if len(session.subscribers) >= SUBSCRIPTIONS_PER_SESSION_MAX and pattern not in session.subscribers:
            self._words.append(f"{pattern}: a session has {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions at most")
            return ReasonCode.QUOTA_EXCEEDED
        code = self._interceptor.subscribe(request)
        if code is not None:
            return code
        if self._grant is not None and not self._grant.may_receive(pattern):
            self._words.append(f"{pattern}: not allowed to receive all that matches it")
            return ReasonCode.NOT_AUTHORIZED
        try:
            subscriber, new = self._sessions.subscribe(session, request, identifier)
        except AddressError as error:
            log.info("%s: subscription to %s refused: %s", session.client_id, pattern, error)
            self._words.append(f"{pattern}: {error}")
            invalid = error.refusal is Refusal.ADDRESS_INVALID  # a SUBACK knows no topic names (section 3.9.3)
            return ReasonCode.TOPIC_FILTER_INVALID if invalid else REASONS[error.refusal]
        if isinstance(joined := subscriber.durable or subscriber.live, PatternSubscription):
            self._joining.append(joined)
        wanted = request.retain_handling == 0 or (request.retain_handling == 1 and new)
        if wanted and not pattern.startswith("$share/"):
            self.wanting_retained.append(subscriber)
        return ReasonCode(request.qos)

    def _of_bridge(self, request: SubscriptionRequest) -> SubscriptionRequest:
        """Return the request with the options that a bridge before MQTT 5 means and cannot send: it wants nothing of
        what it published, and keeps the RETAIN flag. No Local is not for shared subscriptions [MQTT-3.8.3-4]."""
        if not self._terms.bridge:
            return request
        local = not request.filter.startswith("$share/")
        return msgspec.structs.replace(request, no_local=local, retain_as_published=True)

    def _as_its_version_means(self, request: SubscriptionRequest) -> SubscriptionRequest:
        """The request with the filter as it is matched. For MQTT 3.1 a wildcard may stand for names that begin with
        ``$`` too (`topics.widened`), where the gateway has it so and no rights say otherwise: theirs never does."""
        wide = widened(request.filter)
        if wide == request.filter:
            return request
        if self._terms.version == 3 and self._sessions.legacy_dollar_topics and self._grant is None:
            self._sessions.unsubscribe(self._session, request.filter)  # one filter is one subscription
            return msgspec.structs.replace(request, filter=wide)
        self._sessions.unsubscribe(self._session, wide)
        return request

    def _leave(self, pattern: str) -> bool:
        """False when there was no such subscription."""
        if widened(pattern) in self._session.subscribers:
            pattern = widened(pattern)
        if self._interceptor.unsubscribe(pattern):
            return True
        return self._sessions.unsubscribe(self._session, pattern)
