"""Process SUBSCRIBE and UNSUBSCRIBE of one client (MQTT 5 sections 3.8, 3.10)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from edge.broker.delivery.pattern import PatternSubscription
from edge.broker.limits import SUBSCRIPTIONS_PER_SESSION_MAX
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.authorization import OWN_ADDRESSES, Grant
from edge.broker.model.interfaces import Refusal
from edge.broker.model.topics import widen
from edge.broker.mqtt.answers import REASONS
from edge.broker.mqtt.events import ConnectEvent, SubscribeEvent, SubscriptionRequest, UnsubscribeEvent
from edge.broker.mqtt.interception import Interceptor
from edge.broker.mqtt.session import MqttSession, Subscriber
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import AddressError

log = logging.getLogger(__name__)

EXPLAINED_MAX: Final = 3
"""Refused filters of one SUBSCRIBE that the Reason String explains; every filter has a reason code."""


class Subscribing:
    """One SUBSCRIBE or UNSUBSCRIBE. The caller saves the session, then answers."""

    def __init__(
        self,
        session: MqttSession,
        sessions: SessionRegistry,
        interceptor: Interceptor,
        grant: Grant | None,
        terms: ConnectEvent,
        forbidden: Callable[[str], None],
    ) -> None:
        """`grant`: rights of the client, None: all. `terms`: its CONNECT, for the version and the bridge flag.
        `forbidden` is called with each filter that the client has no right to."""
        self.codes: list[ReasonCode] = []
        """A code for each filter, in order."""
        self.wanting_retained: list[Subscriber] = []
        """New subscriptions that get retained messages."""
        self._session = session
        self._sessions = sessions
        self.interceptor = interceptor
        self._grant = grant
        self._terms = terms
        self._forbidden = forbidden
        self._words: list[str] = []
        self._joining: list[PatternSubscription] = []
        """Subscriptions to many queues, which join over several turns of the loop."""

    @property
    def text(self) -> str:
        """Reason String: why filters were refused."""
        return "; ".join(self._words[:EXPLAINED_MAX])

    def subscribe(self, event: SubscribeEvent) -> None:
        """Subscribe to the filters of one event."""
        for request in event.requests:
            adapted = self._adapt_to_version(self._add_bridge_options(request))
            self.codes.append(self._subscribe_one(adapted, event.identifier))

    def when_joined(self, done: Callable[[], None]) -> None:
        """Call `done` once all subscriptions of the packet have joined all queues that they match."""
        if self._joining:
            self._joining.pop().when_joined(partial(self.when_joined, done))
        else:
            done()

    def unsubscribe(self, event: UnsubscribeEvent) -> None:
        """Unsubscribe from the filters of one event."""
        for pattern in event.filters:
            found = self._unsubscribe_one(pattern)
            self.codes.append(ReasonCode.SUCCESS if found else ReasonCode.NO_SUBSCRIPTION_EXISTED)

    def _subscribe_one(self, request: SubscriptionRequest, identifier: int) -> ReasonCode:
        session, pattern = self._session, request.filter
        if len(session.subscribers) >= SUBSCRIPTIONS_PER_SESSION_MAX and pattern not in session.subscribers:
            self._words.append(f"{pattern}: limit of {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions reached")
            return ReasonCode.QUOTA_EXCEEDED
        code = self.interceptor.subscribe(request)
        if code is not None:
            return code
        if pattern.startswith(OWN_ADDRESSES):
            self._words.append(f"{pattern}: it is not answered here, or not yet")
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        if self._grant is not None and not self._grant.may_receive(pattern):
            self._words.append(f"{pattern}: no right to receive all matching messages")
            self._forbidden(pattern)
            return ReasonCode.NOT_AUTHORIZED
        try:
            subscriber, new = self._sessions.subscribe(session, request, identifier)
        except AddressError as error:
            log.info("%s: subscription to %s refused: %s", session.client_id, pattern, error)
            self._words.append(f"{pattern}: {error}")
            invalid = error.refusal is Refusal.ADDRESS_INVALID  # SUBACK has no Topic Name invalid (section 3.9.3)
            return ReasonCode.TOPIC_FILTER_INVALID if invalid else REASONS[error.refusal]
        if isinstance(joined := subscriber.durable or subscriber.live, PatternSubscription):
            self._joining.append(joined)
        wanted = request.retain_handling == 0 or (request.retain_handling == 1 and new)
        if wanted and not pattern.startswith("$share/"):
            self.wanting_retained.append(subscriber)
        return ReasonCode(request.qos)

    def _add_bridge_options(self, request: SubscriptionRequest) -> SubscriptionRequest:
        """Add the options of a bridge, which it cannot send before MQTT 5: No Local and Retain As Published.

        No Local is not allowed for shared subscriptions [MQTT-3.8.3-4].
        """
        if not self._terms.bridge:
            return request
        local = not request.filter.startswith("$share/")
        return msgspec.structs.replace(request, no_local=local, retain_as_published=True)

    def _adapt_to_version(self, request: SubscriptionRequest) -> SubscriptionRequest:
        """Return the request with the filter as it is matched.

        Wildcards of MQTT 3.1 clients also match names that begin with ``$`` (`topics.widened`), if the gateway is
        configured so and has no rights: wildcards of rights never match them.
        """
        wide = widen(request.filter)
        if wide == request.filter:
            return request
        if self._terms.version == 3 and self._sessions.legacy_dollar_topics and self._grant is None:
            self._sessions.unsubscribe(self._session, request.filter)  # one filter is one subscription
            return msgspec.structs.replace(request, filter=wide)
        self._sessions.unsubscribe(self._session, wide)
        return request

    def _unsubscribe_one(self, pattern: str) -> bool:
        """Remove a subscription; return False without one."""
        if widen(pattern) in self._session.subscribers:
            pattern = widen(pattern)
        if self.interceptor.unsubscribe(pattern):
            return True
        return self._sessions.unsubscribe(self._session, pattern)
