"""Authorization of operations on addresses: rules, and the grant of one connection. Pure; it holds no secret.

Everything that no rule allows is denied. The address of a rule is a topic filter in which ``%u`` is replaced by the
user and ``%c`` by the client id (AMQP: the container id). Verdicts are cached for each connection, so that a check for
each run costs one dict lookup.
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
"""Address for rules about management alone."""
NETWORK: Final = "$network"
"""Address for rules about links between routers."""
OWN_ADDRESSES: Final = "$artefacts/"
"""Beginning of addresses that the gateway itself answers over any protocol. Messages to them are never published."""
TEMPORARY_PREFIX: Final = "temp/"
"""Prefix of the dynamic nodes of AMQP clients (section 3.5.3). 128 random bits follow: see `is_temporary`."""
_TEMPORARY: Final = re.compile(TEMPORARY_PREFIX + "[0-9a-f]{32}")
_SHARE: Final = "$share/"
_MARKS: Final = re.compile("%[uc]")
_WIDENING: Final = frozenset("+#/")


class Operation(enum.Enum):
    """Operation on an address (the names are EnMasse's)."""

    SEND = "send"
    RECV = "recv"
    VIEW = "view"
    MANAGE = "manage"
    RELAY = "relay"
    """Send messages of other gateways. The gateway and the device named in them are trusted."""


class AccessRule(msgspec.Struct, frozen=True):
    """Rule that allows some operations on every address that one of the filters matches."""

    addresses: tuple[str, ...]
    operations: frozenset[Operation]


def is_temporary(address: str) -> bool:
    """Return True for the address of a dynamic node.

    Any client that knows the address may send to it, and does not learn whether the node exists. Only the connection
    of its owner receives from it. Filters do not match it, and its messages are not stored. Other names with the same
    prefix are ordinary addresses.
    """
    return address.startswith(TEMPORARY_PREFIX) and _TEMPORARY.fullmatch(address) is not None


def substitute(pattern: str, user: str, client: str) -> str | None:
    """Return the filter for this user and client; None when the result would be wider.

    A name that contains wildcards or a level separator must not widen a rule: the rule does not apply to that client.
    """
    names = {"%u": user, "%c": client}
    used = {names[mark] for mark in _MARKS.findall(pattern)}
    if any(not name or not _WIDENING.isdisjoint(name) for name in used):
        return None
    return _MARKS.sub(lambda mark: names[mark[0]], pattern)


class Ended(enum.Enum):
    """Reason for the end of a grant before the end of its connection."""

    CHANGED = "the user is unknown, or has changed"
    EXPIRED = "the token has expired"
    CERTIFICATE = "the certificate has been revoked"
    TOKEN = "the issuer has ended the token"  # noqa: S105 - a reason
    SIGNED_OUT = "the session has ended: sign in again"


def do_nothing() -> None:
    """Do nothing: the default callback for a replaced grant."""


class Grant:
    """Permissions of one user on one connection."""

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
        """`revoke` is called when the user was deleted or its rules changed, to close the connection."""
        self.user = user
        self.client = client
        self.revoke = revoke
        self.expires_at_s: float | None = None
        """Time of expiry, UTC seconds; None: never."""
        self.own_topic = ""
        """Topic of the client's own connection state. The client may always send to it; empty: none."""
        self.denied = 0
        """Negative verdicts, counted when computed and not on cache hits."""
        self._replaced: Callable[[], None] = do_nothing
        self.sends: dict[str, bool] = {}
        """Cached verdicts on sending, by address. `may_send` computes the missing ones."""
        self.receives: dict[str, bool] = {}
        self.replace(user, rules)

    def replace(self, user: str, rules: Sequence[AccessRule]) -> None:
        """Replace the user and the rules."""
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
        """Set the only callback for replaced rules. Earlier verdicts are void then."""
        self._replaced = call

    def end_at(self, at_s: float | None) -> None:
        """Set the time of expiry, UTC seconds; None: never."""
        self.expires_at_s = at_s

    def allow_own_topic(self, topic: str) -> None:
        """Allow the client to send to the topic of its own connection state, regardless of the rules."""
        self.own_topic = topic

    def may_send(self, address: str) -> bool:
        """Return True when the client may send to the address."""
        verdict = self.sends.get(address)
        if verdict is None:
            own = is_temporary(address) or address == self.own_topic
            verdict = own or self.may(Operation.SEND, address)
            self._note(self.sends, address, verdict, "send to")
        return verdict

    def may_send_below(self, prefix: str) -> bool:
        """Return True when one rule allows sending to every address below `prefix`, which ends with a slash (not
        cached)."""
        return any(_within(allowed, f"{prefix}#") for allowed in self._filters[Operation.SEND])

    def may_receive(self, pattern: str) -> bool:
        """Return True when the client may receive everything that the filter, name or shared subscription matches.

        One rule must cover all of it. Several rules are not combined.
        """
        verdict = self.receives.get(pattern)
        if verdict is None:
            name = pattern.split("/", 2)[2] if pattern.startswith(_SHARE) and pattern.count("/") > 1 else pattern
            verdict = any(_within(allowed, name) for allowed in self._filters[Operation.RECV])
            self._note(self.receives, pattern, verdict, "receive from")
        return verdict

    def may(self, operation: Operation, address: str) -> bool:
        """Return True when a rule allows the operation on this address. Not cached: for rare checks."""
        return any(matches(pattern, address) for pattern in self._filters[operation])

    @property
    def may_manage(self) -> bool:
        """True when the user may create, change and delete addresses and pause the uplink: by a rule for the whole
        space."""
        return self._may_all(Operation.MANAGE)

    @property
    def may_view(self) -> bool:
        """True when the user may see status, history and metrics: by a rule for the whole space. `may_manage` includes
        it."""
        return self._may_all(Operation.VIEW) or self.may_manage

    @property
    def may_relay(self) -> bool:
        """True when messages may name another gateway and its device as their origin: by a rule for the whole space."""
        return self._may_all(Operation.RELAY)

    @property
    def may_route(self) -> bool:
        """True when the user is a router of the network, by a rule with `relay` for the address ``$network`` itself. It
        sends to all direct addresses, and receives from them."""
        return NETWORK in self._filters[Operation.RELAY]

    def _may_all(self, operation: Operation) -> bool:
        return any(pattern in (EVERYTHING, MANAGEMENT) for pattern in self._filters[operation])

    def _note(self, verdicts: dict[str, bool], address: str, verdict: bool, what: str) -> None:
        if not verdict:
            self.denied += 1
            first = self.denied == 1  # one warning a connection, so that a client cannot fill the log
            level = logging.WARNING if first else logging.DEBUG
            log.log(level, "user %s as %s: must not %s %s", self.user, self.client or "-", what, address[:200])
        if len(address) > GRANT_ADDRESS_CHARACTERS_MAX:
            return
        if len(verdicts) >= GRANT_VERDICTS_MAX:
            verdicts.clear()
        verdicts[address] = verdict


def allowing_rule(
    rules: Sequence[AccessRule], operation: Operation, address: str, user: str, client: str
) -> AccessRule | None:
    """Return the part of a rule that allows an operation at an address, or at all addresses of a filter."""
    for rule in rules:
        for pattern in rule.addresses if operation in rule.operations else ():
            meant = substitute(pattern, user, client)
            if meant is not None and _within(meant, address):
                return AccessRule((pattern,), rule.operations)
    return None


def _within(allowed: str, pattern: str) -> bool:
    """Return True when `allowed` covers `pattern`. A leading wildcard does not match ``$`` names [MQTT-4.7.2-1]."""
    hidden = pattern.startswith("$") and not allowed.startswith("$")
    return not hidden and covers(allowed, pattern)
