"""AMQP claims-based security: tokens for a peer's addresses, sent to its `$cbs` node.

The token of an address is sent before a link to the address is attached. It is renewed before it expires, because a
peer detaches links with an expired token. A refused token is sent again after `RETRY_S`; other addresses are not
affected. If the peer does not answer at all, the connection ends and the dialer tries the next endpoint.
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
from bridge.engine import DeliveryState, Detached, Dispositions, Engine, Link, Transfers, describe_condition
from bridge.engine.terminus import source, target
from bridge.forwarders.shared_access import Policy, token

log = logging.getLogger(__name__)

NODE: Final = "$cbs"
TOKEN_TYPE: Final = "servicebus.windows.net:sastoken"  # noqa: S105 - a type's name
RETRY_S: Final = 10.0
"""Seconds until a refused token is sent again."""
RENEWED_AT: Final = 0.75
"""Share of its lifetime after which a token is renewed. The rest leaves time to retry a refused renewal."""
ANSWER_TIMEOUT_S: Final = 30.0
"""Time limit in seconds for an answer to any pending request. It is checked at this interval, so a silent peer is
detected within twice the time. The value allows for a poor cellular link and a busy peer."""
ANSWERS: Final = 64
"""Link credit for answers; each request has one answer."""
_SUCCESS: Final = range(200, 300)


class Claims(Protocol):
    """Authorization of links by address. Event handlers return False for a link that belongs to another owner."""

    @property
    def deadline(self) -> float | None:
        """Time of the next `retry`."""
        ...

    def begin(self, engine: Engine, disconnect: Callable[[str], None], now: float) -> None:
        """Attach the links for tokens after the connection opened. `disconnect` ends it for a reason."""
        ...

    def end(self) -> None:
        """Forget all authorizations after the connection ended."""
        ...

    def authorize(self, address: str) -> bool:
        """Return True when links to an address may be attached. Otherwise send a token for it."""
        ...

    def flush(self) -> None:
        """Send queued requests while there is link credit."""
        ...

    def retry(self, now: float) -> None:
        """Send the tokens that are due, and end the connection if the peer is silent."""
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
    """Claims for a peer without claims-based security: links need no token."""

    deadline: float | None = None

    def begin(self, engine: Engine, disconnect: Callable[[str], None], now: float) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def authorize(self, address: str) -> bool:
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
        self._disconnect: Callable[[str], None] | None = None
        self._tags = count()
        self._queued: dict[str, None] = {}
        self._pending: dict[str, str] = {}
        """Addresses by the message-id of the request."""
        self._due: dict[str, float] = {}
        """Times of the next token, by address."""
        self._granted: set[str] = set()
        self._check_at: float | None = None
        """Time of the next check that the peer answers; None: the connection is not open."""
        self._silent = False
        """True while requests that were pending at the last check have no answer."""

    @property
    def deadline(self) -> float | None:
        due = min(self._due.values(), default=None)
        return due if self._check_at is None or (due is not None and due < self._check_at) else self._check_at

    def begin(self, engine: Engine, disconnect: Callable[[str], None], now: float) -> None:
        self._engine, self._disconnect = engine, disconnect
        self._check_at = now + ANSWER_TIMEOUT_S
        self._sender = engine.attach_sender(f"{engine.container_id}>{NODE}", target(NODE))
        self._receiver = engine.attach_receiver(
            f"{engine.container_id}<{NODE}", source(NODE), target=target(self._reply_to), snd_settle_mode=1
        )
        self._sender.bind(self)
        self._receiver.bind(self)

    def end(self) -> None:
        self._engine = self._disconnect = self._check_at = None

    def authorize(self, address: str) -> bool:
        known = address in self._queued or address in self._due or address in self._pending.values()
        if not known and address not in self._granted:
            self._queued[address] = None
            self.flush()
        return address in self._granted

    def flush(self) -> None:
        while self._engine is not None and self._sender is not None and self._queued and self._sender.credit > 0:
            address = next(iter(self._queued))
            del self._queued[address]
            name = f"sb://{self._host}/{address.strip('/')}"
            number = next(self._tags)
            self._pending[f"{number}"] = address
            self._engine.send(self._sender, number, self._request(f"{number}", name))

    def retry(self, now: float) -> None:
        for address in [address for address, due in self._due.items() if due <= now]:
            del self._due[address]
            self._queued[address] = None
        self.flush()
        if self._check_at is not None and self._check_at <= now:
            self._check_silence(now)

    def attached(self, link: Link) -> bool:
        if link.context is not self:
            return False
        if link is self._receiver and self._engine is not None:
            self._engine.grant(link, ANSWERS)
        return True

    def detached(self, event: Detached) -> bool:
        if event.link.context is not self:
            return False
        if self._disconnect is not None:
            self._disconnect(f"the peer detached the link for tokens ({NODE}): {describe_condition(event.condition)}")
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

    def _check_silence(self, now: float) -> None:
        if self._silent and self._disconnect is not None:
            self._disconnect(f"the peer did not answer a token request ({NODE}) within {ANSWER_TIMEOUT_S:g} s")
            return
        self._silent = bool(self._queued or self._pending)
        self._check_at = now + ANSWER_TIMEOUT_S

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
            values = {section.code: value for section, value in plain.contents(message, _SECTIONS_READ)}
        except DecodeError as error:
            log.warning("cannot decode the answer to a token request: %s", error)
            return
        properties, application = values.get(s.PROPERTIES), values.get(s.APPLICATION_PROPERTIES)
        correlation = properties[5] if isinstance(properties, list) and len(properties) > 5 else None
        address = self._pending.pop(str(correlation), None)
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
                "the peer rejected the token for %r: %s %s; next attempt in %g s; check the connector's credentials "
                "and this gateway's clock", address, status, why, RETRY_S,
            )  # fmt: skip


_SECTIONS_READ: Final = frozenset((s.PROPERTIES, s.APPLICATION_PROPERTIES))


def _status(application: Any) -> tuple[int, str]:
    found = application if isinstance(application, dict) else {}
    status = found.get("status-code")
    return status if isinstance(status, int) else 0, str(found.get("status-description") or "")
