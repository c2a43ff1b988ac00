"""Parse the terminus of an attach into an address, a subscription name and options, without I/O.

Functions raise `AttachRefused` with the condition for the peer (AMQP 1.0 section 2.6.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

import msgspec

from bridge.amqp_values import DescribedValue, Symbol, Ulong
from bridge.engine import Condition, Link, Terminus, TerminusKind
from edge.broker.delivery.durable import DurableSubscription
from edge.broker.limits import ADDRESS_BYTES_MAX
from edge.broker.message.selector import MessageSelector, SelectorError
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import MANAGEMENT, OWN_ADDRESSES, TEMPORARY_PREFIX
from edge.broker.model.interfaces import Refusal
from edge.broker.model.topics import is_filter
from edge.broker.router.router import SubscribeOptions

SUBSCRIPTION_SEPARATOR: Final = "::"
"""``topic::name`` is the durable subscription `name` of a topic, shared by all receivers that attach to it."""

CONSUMER_SEPARATOR: Final = "|"
"""In link names of JMS clients it separates the subscription from a consumer number. ``name|global`` is a shared
subscription that does not belong to a single client."""

TEMPORARY_QUEUE: Final = "temporary-queue"
"""Capability of a target: the dynamic node stores messages for competing consumers, as JMS expects."""

TOKENS: Final = "$cbs"
COORDINATOR: Final = "$coordinator"
"""Name of the transaction coordinator in the figures of links; it has no address."""
LAST_WILL: Final = "$lwt"
"""Address of last wills in EnMasse; not supported here."""
SERVICES: Final = (MANAGEMENT, TOKENS)
"""Addresses of services of the broker itself, which store no messages."""
_SELECTOR: Final = ("apache.org:selector-filter:string", 0x0000468C00000004)
_NO_LOCAL: Final = ("apache.org:no-local-filter:list", 0x0000468C00000003)

_NEVER: Final = "never"
_DETACHED: Final = "link-detach"
"""Expiry policies of a terminus (section 3.5.6): when its timeout starts."""

_LIFETIME_POLICY: Final = "lifetime-policy"
_DELETE_ON_CLOSE: Final = 0x2B
"""Descriptor of the only supported lifetime of a dynamic node (section 3.5.10)."""

_URL: Final = re.compile(r"amqps?://[^/]*/?")
"""Scheme and host of an address that is a URL, as uamqp and other clients send it."""

KindOf = Callable[[str], AddressType]

CONDITIONS: Final = {
    Refusal.NOT_AUTHORIZED: "amqp:unauthorized-access",
    Refusal.NO_CONSUMER: "amqp:not-found",
    Refusal.NO_CONSUMER_CONNECTED: "amqp:not-found",
    Refusal.FULL: "amqp:resource-limit-exceeded",
    Refusal.NAMES: "amqp:resource-limit-exceeded",
    Refusal.STORE_FAILED: "amqp:internal-error",
    Refusal.ADDRESS_INVALID: "amqp:invalid-field",
    Refusal.TOO_LARGE: "amqp:link:message-size-exceeded",
    Refusal.REJECTED: "amqp:precondition-failed",
    Refusal.RELEASED: "amqp:precondition-failed",
    Refusal.DELIVERY_FAILED: "amqp:precondition-failed",
    Refusal.UNDELIVERABLE: "amqp:precondition-failed",
    Refusal.NO_ANSWER: "amqp:precondition-failed",
    Refusal.PATH_LOST: "amqp:precondition-failed",
    Refusal.FORMAT_INVALID: "amqp:decode-error",
}
"""AMQP error condition of each refusal (sections 2.8.15 to 2.8.17)."""


class AttachRefused(Exception):
    """The attach is refused with this error `condition`."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(description)
        self.condition = Condition(name, description)


class ReceiverTarget(msgspec.Struct, frozen=True):
    """Address and options of a receiver."""

    address: str
    options: SubscribeOptions
    source: Terminus
    """The actual source, for the answer to the attach."""
    selector: MessageSelector | None = None
    service: str = ""
    """Service that sends its answers to `address`; empty for other receivers."""

    @property
    def durable(self) -> bool:
        return self.options.durable_name is not None


def local_address(address: str) -> str:
    """Return an address without scheme and host of the broker."""
    url = _URL.match(address)
    return address if url is None else address[url.end() :]


def temporary_address() -> str:
    """Return a new name for a dynamic node, which is a topic (section 3.5.3)."""
    return TEMPORARY_PREFIX + uuid4().hex


def parse_sender(link: Link) -> tuple[str | None, Terminus]:
    """Return the address of a sender other than to the coordinator, None for the anonymous relay, and the target for
    the answer."""
    target = link.target
    if target.kind is not TerminusKind.TARGET:
        raise AttachRefused("amqp:invalid-field", "a sender without a target")
    if target.dynamic:
        return _dynamic(target)
    if target.address is None:
        return None, target
    address = local_address(target.address)
    if address in SERVICES:
        return address, target
    _check(address)
    if is_filter(address) or SUBSCRIPTION_SEPARATOR in address:
        raise AttachRefused("amqp:invalid-field", f"{address!r} cannot be sent to")
    return address, target


def check_to(address: str | None) -> str:
    """Return the address of a message on the anonymous relay. Raises `AttachRefused`."""
    if address is None:
        raise AttachRefused("amqp:invalid-field", "a message without 'to' on an anonymous link")
    address = local_address(address)
    _check(address)
    if is_filter(address):
        raise AttachRefused("amqp:invalid-field", f"{address!r} cannot be sent to")
    return address


def parse_receiver(
    link: Link, container_id: str, kind_of: KindOf, durable: Mapping[str, DurableSubscription]
) -> ReceiverTarget:
    """Return address and options of a receiver.

    `kind_of` returns the type of an address (`ConfiguredAddresses.type_of`). `durable`: all durable subscriptions.
    """
    source = link.source
    if source.kind is not TerminusKind.SOURCE:
        return _found(link, container_id, durable)
    if source.dynamic:
        address, answer = _dynamic(source)
        return ReceiverTarget(address, SubscribeOptions(owned=True), answer)
    whole = local_address(source.address or "")
    if whole in SERVICES:
        return ReceiverTarget(temporary_address(), SubscribeOptions(owned=True), source, service=whole)
    address, separator, name = whole.partition(SUBSCRIPTION_SEPARATOR)
    _check(address)
    kind = kind_of(address)
    if kind is AddressType.SUBSCRIPTION:
        raise AttachRefused("amqp:not-found", f"{whole!r} is a subscription: receive from <topic>::{whole}")
    if separator and (kind is not AddressType.TOPIC or not name):
        raise AttachRefused("amqp:not-found", f"subscription {whole!r} not found")
    if not name:  # clients declare a named subscription as a queue or as a topic
        _check_kind(source, address, kind)
    filters = {key: value for key, value in source.filters.items() if _described(value, _NO_LOCAL)}
    options = SubscribeOptions(no_local=bool(filters), browse=kind.is_queue and source.distribution_mode == "copy")
    if options.browse and is_filter(address):
        raise AttachRefused("amqp:not-implemented", "only a single queue can be browsed, not a filter")
    selector = None
    for key, value in source.filters.items():
        if _described(value, _SELECTOR) and (kind is AddressType.TOPIC or kind.is_queue):
            selector, filters[key] = _selector(value.value), value
    if kind is AddressType.TOPIC:
        options = _topic_options(link, container_id, address, name, options)
        if name and selector is not None:
            raise AttachRefused("amqp:not-implemented", f"no selector on {whole!r}: the subscription is shared")
        if not name:
            options = msgspec.structs.replace(options, selector="" if selector is None else selector.text)
    return ReceiverTarget(address, options, msgspec.structs.replace(source, filters=filters), selector)


def _topic_options(
    link: Link, container_id: str, address: str, name: str, options: SubscribeOptions
) -> SubscribeOptions:
    replace = msgspec.structs.replace
    source = link.source
    if name:
        whole = f"{address}{SUBSCRIPTION_SEPARATOR}{name}"
        return replace(options, durable_name=whole, shared=True, all_qos=True, timeout_s=_timeout_s(source))
    shared = "shared" in source.capabilities
    subscription = link.name.split(CONSUMER_SEPARATOR, 1)[0] if shared else link.name
    owner = "" if "global" in source.capabilities else container_id
    if source.durability > 0 or source.expiry == _NEVER:
        name = _durable_name(owner, subscription)
        return replace(options, durable_name=name, shared=shared, all_qos=True, timeout_s=_timeout_s(source))
    return replace(options, share_name=f"amqp/{owner}/{subscription}/{address}") if shared else options


def _timeout_s(source: Terminus) -> int:
    """Return how long a durable subscription outlives its link; 0: no limit.

    A durable source without a timeout has no limit. By section 3.5.3 it would end with the session, which no client
    intends.
    """
    return 0 if source.expiry == _NEVER else source.timeout_s


def with_timeout(source: Terminus, timeout_s: int) -> Terminus:
    """Return the actual source of a durable subscription with this timeout (0: no limit).

    The time counts from the detach of the link, which is not later than the end of its session or connection.
    """
    return msgspec.structs.replace(source, expiry=_DETACHED, timeout_s=timeout_s) if timeout_s else source


def _durable_name(owner: str, subscription: str) -> str:
    return f"amqp/{owner}/{subscription}"


def _found(link: Link, container_id: str, durable: Mapping[str, DurableSubscription]) -> ReceiverTarget:
    """Find the durable subscription of a receiver without a source by the name of its link (section 2.6.3).

    JMS clients do so to unsubscribe: they close the link afterwards.
    """
    subscription, _, rest = link.name.partition(CONSUMER_SEPARATOR)
    owner = "" if rest == "global" else container_id
    for name in (_durable_name(container_id, link.name), _durable_name(owner, subscription)):
        found = durable.get(name)
        if found is None:
            continue
        if found.consumers:
            raise AttachRefused("amqp:resource-locked", f"subscription {subscription!r} is in use")
        declaration = found.declaration
        options = SubscribeOptions(
            durable_name=name,
            all_qos=declaration.all_qos,
            no_local=declaration.not_from is not None,
            selector=declaration.selector,
            timeout_s=declaration.timeout_s,
        )
        selector = MessageSelector(declaration.selector) if declaration.selector else None
        filters = {"selector": DescribedValue(Symbol(_SELECTOR[0]), selector.text)} if selector is not None else {}
        kind, pattern = TerminusKind.SOURCE, declaration.pattern
        answer = Terminus(kind=kind, address=pattern, durability=2, expiry=_NEVER, filters=filters)
        return ReceiverTarget(pattern, options, answer, selector)
    raise AttachRefused("amqp:not-found", f"subscription {subscription!r} not found")


def _dynamic(terminus: Terminus) -> tuple[str, Terminus]:
    """Return address and terminus of a dynamic node. It is deleted with its link, whatever lifetime was requested."""
    address = temporary_address()
    properties = dict(terminus.properties)
    if _LIFETIME_POLICY in properties:
        properties[_LIFETIME_POLICY] = DescribedValue(Ulong(_DELETE_ON_CLOSE), [])
    return address, msgspec.structs.replace(terminus, address=address, properties=properties)


def _check(address: str) -> None:
    if not address:
        raise AttachRefused("amqp:invalid-field", "an empty address")
    if len(address) > ADDRESS_BYTES_MAX or len(address.encode("utf-8", "replace")) > ADDRESS_BYTES_MAX:
        raise AttachRefused("amqp:invalid-field", f"an address has at most {ADDRESS_BYTES_MAX} bytes")
    if "\0" in address:
        raise AttachRefused("amqp:invalid-field", "the address is not a valid topic name")
    if address in SERVICES:
        raise AttachRefused("amqp:not-found", f"{address} needs a link of its own")
    if address.startswith(OWN_ADDRESSES):
        raise AttachRefused("amqp:not-found", f"{address!r} is served over its own link, by gateways with artefacts")
    if address == LAST_WILL:
        raise AttachRefused("amqp:not-implemented", f"send a last will in the open, not to {LAST_WILL}")
    levels = address.split("/")
    if "#" in levels[:-1] or any(len(level) > 1 and is_filter(level) for level in levels):
        raise AttachRefused("amqp:invalid-field", f"{address!r} is not a valid topic filter")


def _check_kind(source: Terminus, address: str, kind: AddressType) -> None:
    """Refuse a receiver that declares a queue for a topic, or a topic for a queue, as JMS clients may.

    It would miss earlier messages, or take messages of other consumers. Senders are not checked, as JMS clients guess
    the type of a reply address.
    """
    if kind is AddressType.TOPIC and "queue" in source.capabilities:
        raise AttachRefused("amqp:not-found", f"{address!r} is a topic, not a queue")
    if kind.is_queue and "topic" in source.capabilities:
        raise AttachRefused("amqp:not-found", f"{address!r} is a queue, not a topic")


def _described(value: object, descriptors: tuple[str, int]) -> bool:
    return isinstance(value, DescribedValue) and value.descriptor in descriptors


def _selector(text: object) -> MessageSelector:
    if not isinstance(text, str):
        raise AttachRefused("amqp:invalid-field", "the selector is not a string")
    try:
        return MessageSelector(text)
    except SelectorError as error:
        raise AttachRefused("amqp:invalid-field", f"selector: {error}") from error
