"""Peer with the documented AMQP 1.0 rules of Azure Service Bus and Event Hubs, built on Proton's reactor.

SASL ANONYMOUS, then a token for each entity at `$cbs` before a link to it, until the token expires. Messages have a
size limit; idle links are detached; throttling is a rejection with its own error. Messages that are not durable count
as lost, and are reported.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, quote_plus

from proton import Condition, Delivery, Endpoint, Event, Link, Message
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector

from tests.support.processes import free_port

POLICY, KEY = "Send", "c2VjcmV0IGtleSBvZiBhIHBvbGljeQ=="
MESSAGE_BYTES_MAX = 256 * 1024
"""Limit of the standard tier."""
SWEEP_S = 0.05


class ServiceBus(MessagingHandler):  # type: ignore[misc]
    """Runs in its own thread; its fields may be read from any thread."""

    def __init__(self) -> None:
        super().__init__(auto_accept=False, auto_settle=False)
        self.port = free_port()
        self.messages: list[Message] = []
        self.tokens: list[str] = []
        """Resources with an accepted token, in order."""
        self.refused: list[str] = []
        """Resources with a rejected token."""
        self.unauthorized = 0
        """Links that were attached, or kept, without a valid token."""
        self.throttled: deque[str] = deque()
        """Errors for the next messages, which are rejected with one each."""
        self.throttled_at: list[float] = []
        self.arrived_at: list[float] = []
        self.forced = 0
        """Idle links that were detached."""
        self._rights: dict[str, float] = {}
        self._links: set[Link] = set()
        self._answers: dict[str, Link] = {}
        self._injector = EventInjector()
        self._ready = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[ServiceBus]:
        thread = threading.Thread(target=lambda: Container(self).run())
        thread.start()
        try:
            assert self._ready.wait(30), "it listens"
            yield self
        finally:
            self._injector.trigger(ApplicationEvent("end"))
            thread.join(30)
            self._injector.close()
        assert not thread.is_alive()

    def detach_idle_links(self) -> None:
        """Detach links as after ten minutes without a message."""
        self._injector.trigger(ApplicationEvent("idle"))

    # --- Proton's events --------------------------------------------------------------------------------------

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._container.selectable(self._injector)
        self._acceptor = self._container.listen(f"127.0.0.1:{self.port}")
        self._container.schedule(SWEEP_S, self)
        self._ready.set()

    def on_end(self, _: Event) -> None:
        self._acceptor.close()
        for link in list(self._links):
            link.connection.close()
        self._container.stop()

    def on_idle(self, _: Event) -> None:
        for link in [link for link in self._links if not self._of_claims(link)]:
            self._detach(link, "amqp:link:detach-forced", "The link is force detached by the broker as it was idle.")
            self.forced += 1

    def on_timer_task(self, _: Event) -> None:
        """End links to entities with an expired token."""
        for link in list(self._links):
            if not self._of_claims(link) and self._rights.get(self._entity(link), 0.0) < time.time():
                self.unauthorized += 1
                self._detach(link, "amqp:unauthorized-access", "ExpiredToken")
        self._container.schedule(SWEEP_S, self)

    def on_link_opening(self, event: Event) -> None:
        link = event.link
        link.source.address, link.target.address = link.remote_source.address, link.remote_target.address
        link.max_message_size = MESSAGE_BYTES_MAX
        self._links.add(link)
        link.open()
        if self._of_claims(link):
            if link.is_sender:
                self._answers[link.remote_target.address] = link
        elif self._rights.get(self._entity(link), 0.0) < time.time():
            self.unauthorized += 1
            self._detach(link, "amqp:unauthorized-access", "'Send' claim(s) are required to perform this operation.")

    def on_link_closed(self, event: Event) -> None:
        self._links.discard(event.link)

    def on_disconnected(self, event: Event) -> None:
        self._links = {link for link in self._links if link.connection != event.connection}

    def on_message(self, event: Event) -> None:
        delivery, message = event.delivery, event.message
        if self._of_claims(event.link):
            self._put(message)
            self._say(delivery, Delivery.ACCEPTED)
        elif self.throttled:
            self.throttled_at.append(time.monotonic())
            delivery.local.condition = Condition(self.throttled.popleft(), "Please wait 10 seconds and try again.")
            self._say(delivery, Delivery.REJECTED)
        else:
            self.messages.append(message)
            self.arrived_at.append(time.monotonic())
            self._say(delivery, Delivery.ACCEPTED)

    # --- rules ------------------------------------------------------------------------------------------------

    def _put(self, message: Message) -> None:
        said: dict[str, Any] = message.properties
        name, text = said["name"], message.body
        good = said["operation"] == "put-token" and said["type"] == "servicebus.windows.net:sastoken"
        expires_s = signed_until(text, name) if good else None
        status, why = (401, "InvalidSignature: The token has an invalid signature.")
        if expires_s is not None and expires_s > time.time():
            self._rights[name.removeprefix("sb://127.0.0.1/")] = expires_s
            self.tokens.append(name)
            status, why = 202, "Accepted"
        else:
            self.refused.append(name)
        answer = Message(properties={"status-code": status, "status-description": why})
        answer.correlation_id = message.id
        self._answers[message.reply_to].send(answer)

    @staticmethod
    def _of_claims(link: Link) -> bool:
        return "$cbs" in (link.remote_source.address, link.remote_target.address)

    @staticmethod
    def _entity(link: Link) -> str:
        address: str = (link.remote_target if link.is_receiver else link.remote_source).address
        return address.strip("/")

    def _detach(self, link: Link, name: str, why: str) -> None:
        self._links.discard(link)
        if link.state & Endpoint.LOCAL_ACTIVE:
            link.condition = Condition(name, why)
            link.close()

    @staticmethod
    def _say(delivery: Delivery, state: int) -> None:
        delivery.update(state)
        delivery.settle()


def signed_until(token: str, resource: str) -> int | None:
    """Return when a token for a resource ends, or None if it is not valid."""
    kind, _, rest = token.partition(" ")
    fields = {name: values[0] for name, values in parse_qs(rest).items()}
    if kind != "SharedAccessSignature" or fields.get("skn") != POLICY or not resource.startswith(fields["sr"]):
        return None
    signed = f"{quote_plus(fields['sr'])}\n{fields['se']}".encode()
    wanted = base64.b64encode(hmac.new(KEY.encode(), signed, hashlib.sha256).digest()).decode()
    return int(fields["se"]) if hmac.compare_digest(wanted, fields["sig"]) else None
