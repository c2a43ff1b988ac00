"""Rights as sentences, tests of rights, and the right that a refused client needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge.appliance.accounts.documents import RightsVerdict
from edge.broker.limits import REFUSAL_TEXT_CHARACTERS_MAX
from edge.broker.model.authorization import EVERYTHING, AccessRule, Operation, allowing_rule
from edge.broker.model.refusals import RefusalCause, RefusedClient
from edge.broker.security.rights import format_rights

_VERBS: Final = {
    Operation.SEND: "send to",
    Operation.RECV: "receive from",
    Operation.VIEW: "see",
    Operation.MANAGE: "change",
    Operation.RELAY: "relay messages of other gateways to",
}
_OPERATIONS: Final = {
    RefusalCause.NOT_ALLOWED_TO_SEND: Operation.SEND,
    RefusalCause.NOT_ALLOWED_TO_RECEIVE: Operation.RECV,
}
_SHARE: Final = "$share/"


def rights_in_words(rules: Sequence[AccessRule], user: str) -> list[str]:
    """Return a sentence for each address of each rule."""
    return [_sentence(rule, pattern, user) for rule in rules for pattern in rule.addresses]


def _sentence(rule: AccessRule, pattern: str, user: str) -> str:
    verbs = [verb for operation, verb in _VERBS.items() if operation in rule.operations]
    if pattern == EVERYTHING and not {Operation.SEND, Operation.RECV} & rule.operations:
        return f"may {' and '.join(verbs)} everything of the gateway"
    where = pattern.replace("%u", user)
    if where == EVERYTHING:
        where = "all addresses"
    elif where.endswith("/#"):
        where = f"{where[:-2]} and everything below it"
    return f"may {' and '.join(verbs)} {where}"


def judge_rights(
    rules: Sequence[AccessRule], user: str, client: str, operation: Operation, address: str
) -> RightsVerdict:
    """Return whether a user with these rules may do something at an address or filter, and why."""
    name = address_of_share(address)
    right = exact_right(operation, address)
    rule = allowing_rule(rules, operation, name, user, client)
    if rule is not None:
        return RightsVerdict(allowed=True, why=f"its right {format_rights([rule])[0]} allows it", right=right)
    verb = _VERBS[operation]
    others = [text for each in rules if operation in each.operations for text in format_rights([each])]
    has = (
        f"its rights to {verb.partition(' ')[0]} are {', '.join(others[:5])}"
        if others
        else f"it has no right to {verb} anything"
    )
    return RightsVerdict(allowed=False, why=f"no right covers {name[:100]}: {has}", right=right)


def exact_right(operation: Operation, address: str) -> str:
    """Return the right to do exactly this; empty if no right can say it."""
    name = address_of_share(address)
    if not name or "%u" in name or "%c" in name or not name.isprintable():
        return ""  # %u would stand for the user
    return f"{operation.value}:{name}"


def missing_right(entry: RefusedClient) -> str:
    """Return the right that would have allowed what was refused; empty if none would."""
    operation = _OPERATIONS.get(entry.key.cause)
    if operation is None or not entry.key.user or len(entry.address) >= REFUSAL_TEXT_CHARACTERS_MAX:
        return ""  # the journal cuts longer addresses
    return exact_right(operation, entry.address)


def address_of_share(address: str) -> str:
    """Return the filter of a shared subscription, or the address itself."""
    return address.split("/", 2)[2] if address.startswith(_SHARE) and address.count("/") > 1 else address
