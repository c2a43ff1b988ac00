"""AMQP claims-based security: tokens for a peer's addresses, sent to its `$cbs` node.

A token is put for an address before a link to it is attached, and renewed before it expires, as a peer ends the links
of an address with an expired token. A refused token is sent again after `RETRY_S`; other addresses are not affected. If
the peer answers nothing, the connection ends and the dialer tries the next endpoint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import DecodeError
from bridge.engine import DeliveryState, Detached, Dispositions, Engine, Link, Transfers, words
from bridge.engine.terminus import source, target
from bridge.forwarders.shared_access import Policy, token

log = logging.getLogger(__name__)

NODE: Final = "$cbs"
TOKEN_TYPE: Final = "servicebus.windows.net:sastoken"  # noqa: S105 - a type's name
RETRY_S: Final = 10.0
"""Seconds until a refused token is sent again."""
RENEWED_AT: Final = 0.75
"""Share of a token's lifetime after which it is renewed, so that a refusal can be retried before it ends."""
ANSWER_TIMEOUT_S: Final = 30.0
"""Seconds in which the peer has to answer at least one request; silence is noticed within twice that time. An answer
takes a round trip and a signature check, so this allows for a poor cellular link and a busy peer."""
ANSWERS: Final = 64
"""Credit for answers; there is one per request."""
_SUCCESS: Final = range(200, 300)


class Claims(Protocol):
    """Authorization of links by address. Methods that return bool return False for a link that is not theirs."""

    @property
    def deadline(self) -> float | None:
        """Time of the next `retry`."""
        ...

    def begin(self, engine: Engine, cut: Callable[[str], None], now: float) -> None:
        """Attach links: the connection is open."""
        ...

    def end(self) -> None:
        """Drop all rights: the connection is over."""
        ...

    def granted(self, address: str) -> bool:
        """Return True when links to an address may be attached; otherwise request the right."""
        ...

    def flush(self) -> None:
        """Send requests as far as there is credit."""
        ...

    def retry(self, now: float) -> None:
        """Send the requests that are due, and end the connection when nothing is answered."""
        ...

    def attached(self, link: Link) -> bool:
        """Handle a link that the peer attached."""
        ...

    def detached(self, event: Detached) -> bool:
        """Handle a link that the peer ended."""
        ...

    def received(self, event: Transfers, now: float) -> bool:
        """Handle answers."""
        ...

    def settled(self, event: Dispositions) -> bool:
        """Handle dispositions of requests."""
        ...


class NoClaims:
    """Claims of a peer that needs none: SASL decides which peers may attach."""

    deadline: float | None = None

    def begin(self, engine: Engine, cut: Callable[[str], None], now: float) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def granted(self, address: str) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing."""

    def retry(self, now: float) -> None:
        """Do nothing."""

    def attached(self, link: Link) -> bool:
        return False

    def detached(self, event: Detached) -> bool:
        return False

    def received(self, event: Transfers, now: float) -> bool:
        return False

    def settled(self, event: Dispositions) -> bool:
        return False


class SharedAccess:
    """Claims of one connection, with tokens signed by the key of a shared access policy."""

    def __init__(self, host: str, policy: Policy, lifetime_s: float, time_s: Callable[[], float]) -> None:
        """`host`: host of the namespace, part of the resource names. `time_s`: seconds since 1970."""
        self._host = host
        self._policy = policy
        self._lifetime_s = lifetime_s
        self._time_s = time_s
        self._engine: Engine | None = None
        self._sender: Link | None = None
        self._receiver: Link | None = None
        self._cut: Callable[[str], None] | None = None
        self._tags = count()
        self._wanted: dict[str, None] = {}
        self._asked: dict[str, str] = {}
        """Addresses by the message-id of the request."""
        self._due: dict[str, float] = {}
        """Times of the next token, by address."""
        self._granted: set[str] = set()
        self._look_at: float | None = None
        """Time of the next check that the peer answers; None: the connection is not open."""
        self._silent = False
        """Requests were pending at the last check, and no answer has come since."""

    @property
    def deadline(self) -> float | None:
        due = min(self._due.values(), default=None)
        return due if self._look_at is None or (due is not None and due < self._look_at) else self._look_at

    def begin(self, engine: Engine, cut: Callable[[str], None], now: float) -> None:
        self._engine, self._cut = engine, cut
        self._look_at = now + ANSWER_TIMEOUT_S
        self._sender = engine.attach_sender(f"{engine.container_id}>{NODE}", target(NODE))
        self._receiver = engine.attach_receiver(
            f"{engine.container_id}<{NODE}", source(NODE), target=target(self._reply_to), snd_settle_mode=1
        )
        self._sender.bind(self)
        self._receiver.bind(self)

    def end(self) -> None:
        self._engine = self._cut = self._look_at = None

    def granted(self, address: str) -> bool:
        known = address in self._wanted or address in self._due or address in self._asked.values()
        if not known and address not in self._granted:
            self._wanted[address] = None
            self.flush()
        return address in self._granted

    def flush(self) -> None:
        while self._engine is not None and self._sender is not None and self._wanted and self._sender.credit > 0:
            address = next(iter(self._wanted))
            del self._wanted[address]
            name = f"sb://{self._host}/{address.strip('/')}"
            number = next(self._tags)
            self._asked[f"{number}"] = address
            self._engine.send(self._sender, number, self._request(f"{number}", name))

    def retry(self, now: float) -> None:
        for address in [address for address, due in self._due.items() if due <= now]:
            del self._due[address]
            self._wanted[address] = None
        self.flush()
        if self._look_at is not None and self._look_at <= now:
            self._look(now)

    def attached(self, link: Link) -> bool:
        if link.context is not self:
            return False
        if link is self._receiver and self._engine is not None:
            self._engine.grant(link, ANSWERS)
        return True

    def detached(self, event: Detached) -> bool:
        if event.link.context is not self:
            return False
        if self._cut is not None:
            self._cut(f"the peer does not take tokens at {NODE}: {words(event.condition)}")
        return True

    def received(self, event: Transfers, now: float) -> bool:
        if event.link.context is not self:
            return False
        for message in event.messages:
            self._answered(message, now)
        if self._engine is not None:
            if not event.settled:
                self._engine.settle(event.link, event.deliveries, DeliveryState.ACCEPTED)
            self._engine.grant(event.link, ANSWERS - event.link.credit)
        return True

    def settled(self, event: Dispositions) -> bool:
        if event.link.context is not self:
            return False
        for tag, _, remotely_settled, _ in event.items:
            if not remotely_settled and self._engine is not None:
                self._engine.settle_sent(event.link, tag)
        return True

    # --- inside -----------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        if self._silent and self._cut is not None:
            self._cut(f"the peer has not answered a token at {NODE} for {ANSWER_TIMEOUT_S:g} s")
            return
        self._silent = bool(self._wanted or self._asked)
        self._look_at = now + ANSWER_TIMEOUT_S

    @property
    def _reply_to(self) -> str:
        return "claims"

    def _request(self, identifier: str, name: str) -> bytes:
        expires_s = math.ceil(self._time_s() + self._lifetime_s)
        application = {"operation": "put-token", "type": TOKEN_TYPE, "name": name}
        return b"".join(
            (
                plain.section(s.PROPERTIES, [identifier, None, NODE, None, self._reply_to]),
                plain.section(s.APPLICATION_PROPERTIES, application),
                plain.section(s.VALUE, token(self._policy, name, expires_s)),
            )
        )

    def _answered(self, message: bytes, now: float) -> None:
        try:
            values = {section.code: value for section, value in plain.contents(message, _LOOKED_AT)}
        except DecodeError as error:
            log.warning("an answer about a token cannot be read: %s", error)
            return
        properties, application = values.get(s.PROPERTIES), values.get(s.APPLICATION_PROPERTIES)
        correlation = properties[5] if isinstance(properties, list) and len(properties) > 5 else None
        address = self._asked.pop(str(correlation), None)
        if address is None:
            return
        self._silent = False
        status, why = _status(application)
        if status in _SUCCESS:
            self._granted.add(address)
            self._due[address] = now + RENEWED_AT * self._lifetime_s
        else:
            self._due[address] = now + RETRY_S
            log.warning(
                "the peer refuses the token for %r: %s %s; next attempt in %g s; check the connector's credentials and "
                "this gateway's clock", address, status, why, RETRY_S,
            )  # fmt: skip


_LOOKED_AT: Final = frozenset((s.PROPERTIES, s.APPLICATION_PROPERTIES))


def _status(application: Any) -> tuple[int, str]:
    found = application if isinstance(application, dict) else {}
    status = found.get("status-code")
    return status if isinstance(status, int) else 0, str(found.get("status-description") or "")
