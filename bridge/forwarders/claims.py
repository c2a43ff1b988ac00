"""The right to use a peer's addresses, put to its `$cbs` node as tokens (AMQP's claims-based security).

A token is put for an address before a link to it is attached, and put anew before it expires: a peer ends the links of
an address whose token has. What is refused is asked for again after a while; the other addresses go on. A peer that
answers nothing is no peer for tokens: the connection ends, and the next endpoint is tried.
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
"""How long a peer that has refused a token is left alone with it."""
RENEWED_AT: Final = 0.75
"""Of its life: what is refused then is tried again before it ends."""
ANSWER_TIMEOUT_S: Final = 30.0
"""How long a peer may leave every question unanswered, seconds; it is found out within twice as long. An answer takes
a round trip and a look at a key: this is a poor cellular link with a busy peer behind it."""
ANSWERS: Final = 64
"""Credit for answers; each is to one question."""
_SUCCESS: Final = range(200, 300)


class Claims(Protocol):
    """What says whether links to an address may be attached."""

    @property
    def deadline(self) -> float | None:
        """When a token is to be put again."""
        ...

    def begin(self, engine: Engine, cut: Callable[[str], None], now: float) -> None:
        """The connection is open."""
        ...

    def end(self) -> None:
        """It is over, and so are the rights."""
        ...

    def granted(self, address: str) -> bool:
        """Links to it may be attached. Where they may not, that is asked for."""
        ...

    def flush(self) -> None:
        """Put what is asked for, as far as there is credit."""
        ...

    def retry(self, now: float) -> None:
        """Put what is due, and end the connection where nothing is answered."""
        ...

    def attached(self, link: Link) -> bool:
        """The peer took a link; False when it is none of these."""
        ...

    def detached(self, event: Detached) -> bool:
        """It ended one; False when it is none of these."""
        ...

    def received(self, event: Transfers, now: float) -> bool:
        """Answers arrived; False when the link is none of these."""
        ...

    def settled(self, event: Dispositions) -> bool:
        """Questions arrived there; False when the link is none of these."""
        ...


class NoClaims:
    """Of a peer that asks for none: who may attach is said by SASL."""

    deadline: float | None = None

    def begin(self, engine: Engine, cut: Callable[[str], None], now: float) -> None:
        """Nothing to do."""

    def end(self) -> None:
        """Nothing to do."""

    def granted(self, address: str) -> bool:
        return True

    def flush(self) -> None:
        """Nothing to do."""

    def retry(self, now: float) -> None:
        """Nothing to do."""

    def attached(self, link: Link) -> bool:
        return False

    def detached(self, event: Detached) -> bool:
        return False

    def received(self, event: Transfers, now: float) -> bool:
        return False

    def settled(self, event: Dispositions) -> bool:
        return False


class SharedAccess:
    """Tokens signed with the key of a shared access policy; one for each connection."""

    def __init__(self, host: str, policy: Policy, lifetime_s: float, time_s: Callable[[], float]) -> None:
        """`host`: of the namespace, in the resources' names. `time_s`: seconds since 1970."""
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
        """Address by the message-id of the question."""
        self._due: dict[str, float] = {}
        """When the token of an address is to be put again."""
        self._granted: set[str] = set()
        self._look_at: float | None = None
        """When it is looked next whether the peer answers; None: the connection is not open."""
        self._silent = False
        """Something waited for an answer when it was last looked, and none has come since."""

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
            self._engine.send(self._sender, number, self._question(f"{number}", name))

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
            self._cut(f"the peer takes no tokens at {NODE}: {words(event.condition)}")
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
            self._cut(f"the peer has answered no token at {NODE} for {ANSWER_TIMEOUT_S:g} s")
            return
        self._silent = bool(self._wanted or self._asked)
        self._look_at = now + ANSWER_TIMEOUT_S

    @property
    def _reply_to(self) -> str:
        return "claims"

    def _question(self, identifier: str, name: str) -> bytes:
        expires_s = math.ceil(self._time_s() + self._lifetime_s)
        said = {"operation": "put-token", "type": TOKEN_TYPE, "name": name}
        return b"".join(
            (
                plain.section(s.PROPERTIES, [identifier, None, NODE, None, self._reply_to]),
                plain.section(s.APPLICATION_PROPERTIES, said),
                plain.section(s.VALUE, token(self._policy, name, expires_s)),
            )
        )

    def _answered(self, message: bytes, now: float) -> None:
        try:
            values = {section.code: value for section, value in plain.contents(message, _LOOKED_AT)}
        except DecodeError as error:
            log.warning("an answer about a token cannot be read: %s", error)
            return
        properties, said = values.get(s.PROPERTIES), values.get(s.APPLICATION_PROPERTIES)
        correlation = properties[5] if isinstance(properties, list) and len(properties) > 5 else None
        address = self._asked.pop(str(correlation), None)
        if address is None:
            return
        self._silent = False
        status, why = _status(said)
        if status in _SUCCESS:
            self._granted.add(address)
            self._due[address] = now + RENEWED_AT * self._lifetime_s
        else:
            self._due[address] = now + RETRY_S
            log.warning(
                "the peer refuses the token for %r: %s %s; tried again in %g s: see the connector's credentials, and "
                "this gateway's clock", address, status, why, RETRY_S,
            )  # fmt: skip


_LOOKED_AT: Final = frozenset((s.PROPERTIES, s.APPLICATION_PROPERTIES))


def _status(said: Any) -> tuple[int, str]:
    found = said if isinstance(said, dict) else {}
    status = found.get("status-code")
    return status if isinstance(status, int) else 0, str(found.get("status-description") or "")
