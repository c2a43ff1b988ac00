"""Who may do what with which address: rules, and what they grant one connection. Pure; it knows no secret.

Everything a rule does not allow is denied. A rule's address is a topic filter in which ``%u`` stands for the user and
``%c`` for the client id (AMQP: the container id). Verdicts are kept for each connection, so that what is asked for
every run costs one look into a dict.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from edge.broker.limits import GRANT_ADDRESS_CHARACTERS_MAX, GRANT_VERDICTS_MAX
from edge.broker.model.topics import covers, matches

log = logging.getLogger(__name__)

EVERYTHING: Final = "#"
MANAGEMENT: Final = "$management"
"""The address of management itself, for a rule about nothing else."""
TEMPORARY_PREFIX: Final = "temp/"
"""Dynamic nodes of AMQP clients are below this (section 3.5.3), named by 128 bits of chance: see `is_temporary`."""
_TEMPORARY: Final = re.compile(TEMPORARY_PREFIX + "[0-9a-f]{32}")
_SHARE: Final = "$share/"
_MARKS: Final = re.compile("%[uc]")
_WIDENING: Final = frozenset("+#/")


class Operation(enum.Enum):
    """What may be done with an address (EnMasse's words)."""

    SEND = "send"
    RECV = "recv"
    VIEW = "view"
    MANAGE = "manage"
    RELAY = "relay"
    """Send messages of other gateways: the gateway and the device that they name are believed."""


class AccessRule(msgspec.Struct, frozen=True):
    """Allows some operations on every address one of the filters matches."""

    addresses: tuple[str, ...]
    operations: frozenset[Operation]


def is_temporary(address: str) -> bool:
    """The address is one of dynamic nodes. Whoever was told it may send there, and hears nothing of whether it is
    there; its owner's connection alone receives from it, filters do not reach it, and nothing of it is kept. Other
    names that begin so are addresses like all."""
    return address.startswith(TEMPORARY_PREFIX) and _TEMPORARY.fullmatch(address) is not None


def substitute(pattern: str, user: str, client: str) -> str | None:
    """The filter for this user and client; None when it would become another one.

    A name with wildcards or a level separator in it must not widen a rule: such a client is just not meant by it.
    """
    names = {"%u": user, "%c": client}
    used = {names[mark] for mark in _MARKS.findall(pattern)}
    if any(not name or not _WIDENING.isdisjoint(name) for name in used):
        return None
    return _MARKS.sub(lambda mark: names[mark[0]], pattern)


class Ended(enum.Enum):
    """Why a grant ends before its connection does."""

    CHANGED = "the user is unknown, or has changed"
    EXPIRED = "the token has expired"
    CERTIFICATE = "the certificate has been revoked"


def nothing() -> None:
    """Do nothing when a grant is replaced."""


class Grant:
    """What one user may do over one connection."""

    __slots__ = (
        "_filters",
        "_replaced",
        "client",
        "denied",
        "expires_at_s",
        "own_topic",
        "receives",
        "revoke",
        "rules",
        "sends",
        "user",
    )

    def __init__(
        self, user: str, client: str, rules: Sequence[AccessRule], revoke: Callable[[Ended], None] = lambda _: None
    ) -> None:
        """`revoke` is called when the user is gone, or may do something else now: close the connection."""
        self.user = user
        self.client = client
        self.revoke = revoke
        self.expires_at_s: float | None = None
        """When it ends by itself, UTC seconds."""
        self.own_topic = ""
        """Topic of the state of the client's own connection, which it may send whatever the rules say; empty: none."""
        self.denied = 0
        """Verdicts that were no; counted when made, not when looked up."""
        self._replaced: Callable[[], None] = nothing
        self.sends: dict[str, bool] = {}
        """Verdicts on sending, by address; ask `may_send` where it has none."""
        self.receives: dict[str, bool] = {}
        self.replace(user, rules)

    def replace(self, user: str, rules: Sequence[AccessRule]) -> None:
        """From now on these rules count, for this user."""
        self._replaced()
        self.user, self.rules = user, tuple(rules)
        self.sends.clear()
        self.receives.clear()
        self._filters: dict[Operation, list[str]] = {operation: [] for operation in Operation}
        for rule in rules:
            for pattern in rule.addresses:
                meant = substitute(pattern, user, self.client)
                if meant is not None:
                    for operation in rule.operations:
                        self._filters[operation].append(meant)

    def call_when_replaced(self, call: Callable[[], None]) -> None:
        """Have `call`, and nothing else, called when other rules count: earlier verdicts are void then."""
        self._replaced = call

    def end_at(self, at_s: float | None) -> None:
        """End by itself at this time, UTC seconds; None: never."""
        self.expires_at_s = at_s

    def allow_own_topic(self, topic: str) -> None:
        """Let the client send to the topic of its own connection's state, whatever the rules say."""
        self.own_topic = topic

    def may_send(self, address: str) -> bool:
        """True when messages may be sent to the address."""
        verdict = self.sends.get(address)
        if verdict is None:
            own = is_temporary(address) or address == self.own_topic
            verdict = own or self.may(Operation.SEND, address)
            self._note(self.sends, address, verdict, "send to")
        return verdict

    def may_send_below(self, prefix: str) -> bool:
        """True when messages may be sent to every address that begins with `prefix`, which ends with a slash: by one
        rule's filter (not kept)."""
        return any(_within(allowed, f"{prefix}#") for allowed in self._filters[Operation.SEND])

    def may_receive(self, pattern: str) -> bool:
        """True when all that the filter (or name, or shared subscription) matches may be received.

        It must be within one rule's filter: what only several rules together allow is not.
        """
        verdict = self.receives.get(pattern)
        if verdict is None:
            name = pattern.split("/", 2)[2] if pattern.startswith(_SHARE) and pattern.count("/") > 1 else pattern
            verdict = any(_within(allowed, name) for allowed in self._filters[Operation.RECV])
            self._note(self.receives, pattern, verdict, "receive from")
        return verdict

    def may(self, operation: Operation, address: str) -> bool:
        """True when a rule allows the operation on this address (not kept: for what is asked seldom)."""
        return any(matches(pattern, address) for pattern in self._filters[operation])

    @property
    def may_manage(self) -> bool:
        """True when addresses may be made, changed and deleted, and the uplink paused: by a rule about the space as a
        whole."""
        return self._may_all(Operation.MANAGE)

    @property
    def may_view(self) -> bool:
        """True when status, history and metrics may be seen: by a rule about the space as a whole. Who may change it
        may see it."""
        return self._may_all(Operation.VIEW) or self.may_manage

    @property
    def may_relay(self) -> bool:
        """True when messages may name another gateway and its device as their origin: by a rule about the space as a
        whole."""
        return self._may_all(Operation.RELAY)

    def _may_all(self, operation: Operation) -> bool:
        return any(pattern in (EVERYTHING, MANAGEMENT) for pattern in self._filters[operation])

    def _note(self, verdicts: dict[str, bool], address: str, verdict: bool, what: str) -> None:
        if not verdict:
            self.denied += 1
            first = self.denied == 1  # of a connection: a client must not fill the log
            level = logging.WARNING if first else logging.DEBUG
            log.log(level, "user %s as %s: must not %s %s", self.user, self.client or "-", what, address[:200])
        if len(address) > GRANT_ADDRESS_CHARACTERS_MAX:
            return
        if len(verdicts) >= GRANT_VERDICTS_MAX:
            verdicts.clear()
        verdicts[address] = verdict


def _within(allowed: str, pattern: str) -> bool:
    """Names with ``$`` are not matched by a filter that begins with a wildcard [MQTT-4.7.2-1], so not allowed by it."""
    hidden = pattern.startswith("$") and not allowed.startswith("$")
    return not hidden and covers(allowed, pattern)
