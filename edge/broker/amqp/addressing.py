"""What a peer's attach asks for: its terminus read as an address, a subscription name and options. Pure functions.

Raises `AttachRefused` with the condition the attach is refused with (AMQP 1.0 section 2.6.3).
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
from edge.broker.model.authorization import MANAGEMENT, TEMPORARY_PREFIX
from edge.broker.model.interfaces import Refusal
from edge.broker.model.topics import is_filter
from edge.broker.router.router import SubscribeOptions

SUBSCRIPTION_SEPARATOR: Final = "::"
"""``topic::name`` is the durable subscription `name` of the topic, shared by all that attach to it."""

CONSUMER_SEPARATOR: Final = "|"
"""JMS clients tell the consumers of a shared subscription apart behind it in the link name; of one that is no single
client's, ``name|global`` stands for the subscription itself."""

TEMPORARY_QUEUE: Final = "temporary-queue"
"""Capability of a target: the dynamic node keeps what comes, and its consumers compete, as those of JMS expect."""

TOKENS: Final = "$cbs"
LAST_WILL: Final = "$lwt"
"""Address of last wills in EnMasse; here it would be a topic without readers."""
SERVICES: Final = (MANAGEMENT, TOKENS)
"""Names behind which no messages are kept: the broker itself answers."""
_SELECTOR: Final = ("apache.org:selector-filter:string", 0x0000468C00000004)
_NO_LOCAL: Final = ("apache.org:no-local-filter:list", 0x0000468C00000003)

_NEVER: Final = "never"
_DETACHED: Final = "link-detach"
"""Expiry policies of a terminus (section 3.5.6): when its timeout begins to count."""

_LIFETIME_POLICY: Final = "lifetime-policy"
_DELETE_ON_CLOSE: Final = 0x2B
"""Descriptor of the one lifetime a dynamic node has (section 3.5.10)."""

_URL: Final = re.compile(r"amqps?://[^/]*/?")
"""What comes before the address where a client attaches to a whole URL, as uamqp and others do."""

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
    Refusal.FORMAT_INVALID: "amqp:decode-error",
}
"""Why something was refused, in AMQP's own error conditions (sections 2.8.15 to 2.8.17)."""


class AttachRefused(Exception):
    """The attach cannot be served; `condition` says why on the wire."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(description)
        self.condition = Condition(name, description)


class ReceiverTarget(msgspec.Struct, frozen=True):
    """What a receiver attached to."""

    address: str
    options: SubscribeOptions
    source: Terminus
    """The source to answer with: what is really in place."""
    selector: MessageSelector | None = None
    service: str = ""
    """The service whose answers are received; `address` is where they are sent."""

    @property
    def durable(self) -> bool:
        return self.options.durable_name is not None


def local_address(address: str) -> str:
    """An address without the scheme and the host of the broker, where a client says them."""
    url = _URL.match(address)
    return address if url is None else address[url.end() :]


def temporary_address() -> str:
    """A name for a dynamic node, a topic of its own (section 3.5.3)."""
    return TEMPORARY_PREFIX + uuid4().hex


def sending_address(link: Link) -> tuple[str | None, Terminus]:
    """The address a sender attached to, None for the anonymous relay; and the target to answer with."""
    target = link.target
    if target.kind is TerminusKind.COORDINATOR:
        raise AttachRefused("amqp:not-implemented", "transactions are not supported")
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
    """The address of one message on the anonymous relay. Raises `AttachRefused`."""
    if address is None:
        raise AttachRefused("amqp:invalid-field", "a message without 'to' on an anonymous link")
    address = local_address(address)
    _check(address)
    if is_filter(address):
        raise AttachRefused("amqp:invalid-field", f"{address!r} cannot be sent to")
    return address


def reception(
    link: Link, container_id: str, kind_of: KindOf, durable: Mapping[str, DurableSubscription]
) -> ReceiverTarget:
    """Return what a receiver attached to. `kind_of` gives the type of an address (`ConfiguredAddresses.type_of`),
    `durable` the durable subscriptions there are."""
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
        raise AttachRefused("amqp:not-found", f"{whole!r} is a subscription: it is received from as <topic>::{whole}")
    if separator and (kind is not AddressType.TOPIC or not name):
        raise AttachRefused("amqp:not-found", f"there is no subscription {whole!r}")
    if not name:  # a named subscription is a queue to some clients, and a topic to others
        _check_kind(source, address, kind)
    filters = {key: value for key, value in source.filters.items() if _described(value, _NO_LOCAL)}
    options = SubscribeOptions(no_local=bool(filters), browse=kind.is_queue and source.distribution_mode == "copy")
    if options.browse and is_filter(address):
        raise AttachRefused("amqp:not-implemented", "one queue is browsed at a time")
    selector = None
    for key, value in source.filters.items():
        if _described(value, _SELECTOR) and (kind is AddressType.TOPIC or kind.is_queue):
            selector, filters[key] = _selector(value.value), value
    if kind is AddressType.TOPIC:
        options = _topic_options(link, container_id, address, name, options)
        if name and selector is not None:
            raise AttachRefused("amqp:not-implemented", f"{whole!r} takes no selector: it is not this receiver's alone")
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
    """How long a durable subscription outlives its link; 0: for ever. A source that is to be durable and names no
    timeout is taken to be that: by section 3.5.3 it would end with the session, and nobody who asks for it means so."""
    return 0 if source.expiry == _NEVER else source.timeout_s


def kept_for(source: Terminus, timeout_s: int) -> Terminus:
    """The source of a durable subscription that is kept for so long (0: for ever), as it is in place: the time counts
    from when the link is detached, which is no later than the end of its session or connection."""
    return msgspec.structs.replace(source, expiry=_DETACHED, timeout_s=timeout_s) if timeout_s else source


def _durable_name(owner: str, subscription: str) -> str:
    return f"amqp/{owner}/{subscription}"


def _found(link: Link, container_id: str, durable: Mapping[str, DurableSubscription]) -> ReceiverTarget:
    """A receiver without a source asks what there is under the name of its link (section 2.6.3): so JMS clients find
    the durable subscription they unsubscribe from by closing that link."""
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
    raise AttachRefused("amqp:not-found", f"there is no subscription {subscription!r}")


def _dynamic(terminus: Terminus) -> tuple[str, Terminus]:
    """A node of our naming. It is there while its receiver is, so that is its life, whatever was asked for."""
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
        raise AttachRefused("amqp:invalid-field", "the address is no topic name")
    if address in SERVICES:
        raise AttachRefused("amqp:not-found", f"{address} is asked over a link of its own")
    if address == LAST_WILL:
        raise AttachRefused("amqp:not-implemented", f"a last will is in the properties of the open, not at {LAST_WILL}")
    levels = address.split("/")
    if "#" in levels[:-1] or any(len(level) > 1 and is_filter(level) for level in levels):
        raise AttachRefused("amqp:invalid-field", f"{address!r} is no topic filter")


def _check_kind(source: Terminus, address: str, kind: AddressType) -> None:
    """Who says that it consumes a queue, or a topic, as JMS clients do, is not given the other: it would miss what came
    before, or take away what is for others. Senders may say what they like: JMS clients guess it of where to reply."""
    if kind is AddressType.TOPIC and "queue" in source.capabilities:
        raise AttachRefused("amqp:not-found", f"there is no queue {address!r}: it is a topic")
    if kind.is_queue and "topic" in source.capabilities:
        raise AttachRefused("amqp:not-found", f"there is no topic {address!r}: it is a queue")


def _described(value: object, descriptors: tuple[str, int]) -> bool:
    return isinstance(value, DescribedValue) and value.descriptor in descriptors


def _selector(text: object) -> MessageSelector:
    if not isinstance(text, str):
        raise AttachRefused("amqp:invalid-field", "a selector that is no string")
    try:
        return MessageSelector(text)
    except SelectorError as error:
        raise AttachRefused("amqp:invalid-field", f"selector: {error}") from error
