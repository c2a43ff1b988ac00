"""Calls of Proton's C library outside the hot loops: read and write values, conditions and termini.

The functions take and return `cffi` pointers, typed `Any`. None of them keeps a pointer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from cproton import ffi, lib

from bridge.amqp_values import DecodeError, DescribedValue, Symbol, Symbols, Ulong, decode, encode
from bridge.engine.link import symbols
from bridge.engine.states import Condition, DeliveryState, Detail, TransactionalState
from bridge.engine.terminus import Terminus, TerminusKind

log = logging.getLogger(__name__)

SCRATCH_BYTES = 65_536

_EXPIRY = {
    "link-detach": lib.PN_EXPIRE_WITH_LINK,
    "session-end": lib.PN_EXPIRE_WITH_SESSION,
    "connection-close": lib.PN_EXPIRE_WITH_CONNECTION,
    "never": lib.PN_EXPIRE_NEVER,
}
_EXPIRY_NAMES = {number: name for name, number in _EXPIRY.items()}
_DISTRIBUTION = {None: 0, "copy": lib.PN_DIST_MODE_COPY, "move": lib.PN_DIST_MODE_MOVE}
_DISTRIBUTION_NAMES = {number: name for name, number in _DISTRIBUTION.items()}


class _Scratch(threading.local):
    """One buffer per thread: one per connection would be too many for 8 000, and cffi calls release the GIL."""

    def __init__(self) -> None:
        self.chars = ffi.new("char[]", SCRATCH_BYTES)
        self.view = ffi.buffer(self.chars)
        self.tag = ffi.new("char[8]")
        self.tag_view = ffi.buffer(self.tag)
        self.tag_bytes = ffi.new("pn_bytes_t *")
        self.tag_bytes.start = self.tag


scratch = _Scratch()


_ADDRESS = ffi.typeof("uintptr_t")


def address_of(pointer: Any) -> int:
    """Return the address of a Proton object, as a fast dictionary key. It is unique until the object is freed."""
    return int(ffi.cast(_ADDRESS, pointer))


def _trace(_: Any, message: str) -> None:
    log.debug("%s", message)


_TRACER = ffi.new_handle({"_tracer": _trace})  # `cproton` looks for this key; one handle serves every transport


def redirect_log(transport: Any) -> None:
    """Log Proton's warnings about a peer's bytes at debug level; by default they go to stderr."""
    record = lib.pn_transport_attachments(transport)
    lib.pn_record_def_py(record)
    lib.pn_record_set_py(record, _TRACER)
    lib.pn_transport_set_tracer(transport, lib.pn_pytracer)


def text(chars: Any) -> str | None:
    """Return a C string; bytes that are not UTF-8 are replaced."""
    return str(ffi.string(chars).decode("utf-8", "replace")) if chars else None


def read_data(data: Any) -> Any:
    """Return the (first) value of a pn_data_t; None when it has none or it cannot be decoded."""
    raw = read_raw(data)
    if not raw:
        return None
    try:
        value, _ = decode(raw)
    except DecodeError:
        return None
    return value


def read_raw(data: Any) -> bytes:
    """Return the encoded content of a pn_data_t; empty when it has none."""
    size = lib.pn_data_encoded_size(data) if data else 0  # NULL: the field is absent
    if size <= 0:
        return b""
    buffer = ffi.new("char[]", size)
    written = lib.pn_data_encode(data, buffer, size)
    return bytes(ffi.buffer(buffer, max(written, 0)))


def read_map(data: Any) -> Mapping[Any, Any]:
    value = read_data(data)
    return value if isinstance(value, dict) else {}


SMALL_DATA_BYTES = 256
"""Encoded size up to which the memory of values is not counted."""

NODE_BYTES = 150
"""Memory of a value within a list or map, in Proton and Python, however small: a null of one byte becomes two nodes."""


def encoded_bytes(data: Any) -> int:
    """Return the encoded size of a pn_data_t."""
    return max(lib.pn_data_encoded_size(data), 0) if data else 0


def data_bytes(data: Any) -> int:
    """Return the memory of the values in a pn_data_t; 0 when they are few and small."""
    size = encoded_bytes(data)
    if size <= SMALL_DATA_BYTES:
        return 0
    value = read_data(data)
    return int(2 * size + NODE_BYTES * (size if value is None else _count_values(value)))


def _count_values(value: Any) -> int:
    count, unseen = 0, [value]
    while unseen:
        item = unseen.pop()
        count += 1
        if isinstance(item, dict):
            unseen += item
            unseen += item.values()
        elif isinstance(item, list | tuple):
            unseen += item
        elif isinstance(item, DescribedValue):
            unseen += (item.descriptor, item.value)
    return count


def write_data(data: Any, value: Any) -> None:
    """Write `value` into a pn_data_t; an empty value leaves it empty (null on the wire)."""
    if not value:
        return
    raw = encode(value)
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, ffi.from_buffer(raw), len(raw))


def write_map(data: Any, value: Mapping[Any, Any] | None) -> None:
    """Write a map with symbols as keys (fields, section 2.8.3) into a pn_data_t."""
    write_data(data, {Symbol(key) if isinstance(key, str) else key: item for key, item in (value or {}).items()})


def read_condition(condition: Any) -> Condition | None:
    name = text(lib.pn_condition_get_name(condition)) if lib.pn_condition_is_set(condition) else None
    if not name:
        return None
    return Condition(name, text(lib.pn_condition_get_description(condition)) or "")


def write_condition(condition: Any, value: Condition | None) -> None:
    if value is not None:
        lib.pn_condition_set_name(condition, value.name.encode("ascii", "replace"))
        lib.pn_condition_set_description(condition, value.description.encode("utf-8", "replace"))
        if value.info:
            write_map(lib.pn_condition_info(condition), {key: Symbol(item) for key, item in value.info})


def read_terminus(terminus: Any) -> Terminus:
    kind = TerminusKind(lib.pn_terminus_get_type(terminus))
    if kind is TerminusKind.NONE:
        return Terminus()
    return Terminus(
        kind=kind,
        address=text(lib.pn_terminus_get_address(terminus)),
        dynamic=lib.pn_terminus_is_dynamic(terminus),
        durability=lib.pn_terminus_get_durability(terminus),
        expiry=_EXPIRY_NAMES.get(lib.pn_terminus_get_expiry_policy(terminus), "session-end"),
        timeout_s=lib.pn_terminus_get_timeout(terminus),
        distribution_mode=_DISTRIBUTION_NAMES.get(lib.pn_terminus_get_distribution_mode(terminus)),
        outcomes=symbols(read_data(lib.pn_terminus_outcomes(terminus))),
        capabilities=symbols(read_data(lib.pn_terminus_capabilities(terminus))),
        filters=read_map(lib.pn_terminus_filter(terminus)),
        properties=read_map(lib.pn_terminus_properties(terminus)),
    )


def write_terminus(terminus: Any, value: Terminus) -> None:
    lib.pn_terminus_set_type(terminus, int(value.kind))
    if value.kind is TerminusKind.NONE:
        return
    if value.address is not None:
        lib.pn_terminus_set_address(terminus, value.address.encode("utf-8", "replace"))
    lib.pn_terminus_set_dynamic(terminus, value.dynamic)
    lib.pn_terminus_set_durability(terminus, value.durability)
    if value.expiry != "session-end":  # the default, section 3.5.3
        lib.pn_terminus_set_expiry_policy(terminus, _EXPIRY[value.expiry])
    lib.pn_terminus_set_timeout(terminus, value.timeout_s)
    lib.pn_terminus_set_distribution_mode(terminus, _DISTRIBUTION[value.distribution_mode])
    write_data(lib.pn_terminus_capabilities(terminus), Symbols(value.capabilities))
    if value.kind is TerminusKind.SOURCE:
        write_map(lib.pn_terminus_filter(terminus), value.filters)
        write_data(lib.pn_terminus_outcomes(terminus), Symbols(value.outcomes))
    write_map(lib.pn_terminus_properties(terminus), value.properties)


def answer_drain(link: Any) -> None:
    """Make Proton send the flow that answers a drain without credit. A receiver may revoke its credit and drain in one
    flow (section 2.6.7) and wait for the answer, but Proton answers only for a sender with credit to return.

    So this gives the link one credit and returns it at once; the peer never sees that credit. `pn_link_drain` asserts
    that the link is a receiver, but Python's extensions are compiled without assertions.
    """
    lib.pn_link_drain(link, 1)
    lib.pn_link_drained(link)


def read_remote_state(delivery: Any) -> tuple[DeliveryState, Detail]:
    """Return the peer's state of a delivery, with its detail. Unknown states count as NONE."""
    number = lib.pn_delivery_remote_state(delivery)
    if number == DeliveryState.ACCEPTED:
        return DeliveryState.ACCEPTED, None
    disposition = lib.pn_delivery_remote(delivery)
    if number == DeliveryState.REJECTED:
        return DeliveryState.REJECTED, read_condition(lib.pn_disposition_condition(disposition))
    if number == DeliveryState.MODIFIED:
        annotations = read_raw(lib.pn_disposition_annotations(disposition)) or None
        if lib.pn_disposition_is_undeliverable(disposition):
            return DeliveryState.MODIFIED_UNDELIVERABLE, annotations
        return DeliveryState.MODIFIED_FAILED if lib.pn_disposition_is_failed(
            disposition
        ) else DeliveryState.MODIFIED, annotations
    if number in (DeliveryState.DECLARED, DeliveryState.TRANSACTIONAL):
        name, outcome = _read_transactional(disposition)
        declared = number == DeliveryState.DECLARED
        return DeliveryState(number), name if declared else TransactionalState(name, *_read_outcome(outcome))
    known = number in (DeliveryState.RECEIVED, DeliveryState.RELEASED)
    return DeliveryState(number) if known else DeliveryState.NONE, None


def transaction_of(delivery: Any) -> bytes:
    """Return the txn-id of a transactional delivery; empty where it is missing."""
    return _read_transactional(lib.pn_delivery_remote(delivery))[0]


def _read_transactional(disposition: Any) -> tuple[bytes, Any]:
    """Return the txn-id of a state, empty where it is missing, and the outcome behind it."""
    fields = read_data(lib.pn_disposition_data(disposition))
    fields = [*fields, None, None] if isinstance(fields, list) else [None, None]
    return fields[0] if isinstance(fields[0], bytes) else b"", fields[1]


_OUTCOMES: Mapping[Any, DeliveryState] = {
    DeliveryState.ACCEPTED: DeliveryState.ACCEPTED,
    DeliveryState.REJECTED: DeliveryState.REJECTED,
    DeliveryState.RELEASED: DeliveryState.RELEASED,
    DeliveryState.MODIFIED: DeliveryState.MODIFIED,
    "amqp:accepted:list": DeliveryState.ACCEPTED,
    "amqp:rejected:list": DeliveryState.REJECTED,
    "amqp:released:list": DeliveryState.RELEASED,
    "amqp:modified:list": DeliveryState.MODIFIED,
}
"""Outcomes by descriptor (section 3.4)."""
_ERROR = 0x1D
"""Descriptor of an error (section 2.8.14)."""


def _read_outcome(value: Any) -> tuple[DeliveryState, Condition | bytes | None]:
    """Return the outcome within a transactional state, with the condition of `rejected`. An unknown one counts as NONE;
    annotations are dropped."""
    if not isinstance(value, DescribedValue) or not isinstance(value.value, list):
        return DeliveryState.NONE, None
    if not isinstance(value.descriptor, int | str):
        return DeliveryState.NONE, None
    state, fields = _OUTCOMES.get(value.descriptor, DeliveryState.NONE), [*value.value, None, None, None]
    if state is DeliveryState.REJECTED and isinstance(fields[0], DescribedValue):
        error = fields[0].value
        name, words = [*error, None, None][:2] if isinstance(error, list) else (None, None)
        return state, Condition(str(name), str(words or "")) if name else None
    if state is not DeliveryState.MODIFIED:
        return state, None
    if fields[1] is True:
        return DeliveryState.MODIFIED_UNDELIVERABLE, None
    return DeliveryState.MODIFIED_FAILED if fields[0] is True else DeliveryState.MODIFIED, None


def _write_fields(delivery: Any, detail: Detail) -> None:
    """Write the fields of `declared` or of a transactional state."""
    fields: list[Any] = []
    if isinstance(detail, TransactionalState):
        outcome: list[Any] = []
        if detail.outcome is DeliveryState.REJECTED and isinstance(detail.detail, Condition):
            outcome = [DescribedValue(Ulong(_ERROR), [Symbol(detail.detail.name), detail.detail.description])]
        fields = [detail.transaction]
        if detail.outcome is not DeliveryState.NONE:
            fields.append(DescribedValue(Ulong(int(detail.outcome) & 0xFF), outcome))
    elif isinstance(detail, bytes):
        fields = [detail]
    data = lib.pn_disposition_data(lib.pn_delivery_local(delivery))
    raw = encode(fields)
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, ffi.from_buffer(raw), len(raw))


def write_local_state(delivery: Any, state: DeliveryState, detail: Detail) -> None:
    """Set the state of an incoming delivery (NONE: none); the caller settles it."""
    if state is DeliveryState.NONE:
        return
    if state in (DeliveryState.DECLARED, DeliveryState.TRANSACTIONAL):
        _write_fields(delivery, detail)
    lib.pn_delivery_update(delivery, int(state) & 0xFF)
    if state is DeliveryState.REJECTED and isinstance(detail, Condition):
        write_condition(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)), detail)
    elif state in (DeliveryState.MODIFIED, DeliveryState.MODIFIED_FAILED, DeliveryState.MODIFIED_UNDELIVERABLE):
        disposition = lib.pn_delivery_local(delivery)
        lib.pn_disposition_set_failed(disposition, state is not DeliveryState.MODIFIED)
        lib.pn_disposition_set_undeliverable(disposition, state is DeliveryState.MODIFIED_UNDELIVERABLE)
        if isinstance(detail, bytes):
            lib.pn_data_decode(lib.pn_disposition_annotations(disposition), ffi.from_buffer(detail), len(detail))
