"""Routers that a message has passed, in its delivery annotations (AMQP 1.0 section 3.2.2).

They are the same for all messages of a run, so a run is read and written with one look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from bridge.amqp_values import Allowance, DecodeError, Symbol, decode, encode
from bridge.limits import HEADER_VALUES_MAX
from bridge.message import Run
from bridge.sections import DELIVERY_ANNOTATIONS, bare_message, section_at
from edge.broker.message.translation import amqp_messages

HOPS: Final = Symbol("x-opt-waypost-hops")
"""Names of the routers, separated by commas; the first is the one at which the message was published."""
AT_MOST_ONCE: Final = Symbol("x-opt-waypost-settled")
"""True: its publisher sent the message settled, so subscribers over MQTT get it as QoS 0."""
_PATH_LOST_KEY: Final = Symbol("x-opt-waypost-path-lost")
PATH_LOST: Final = encode({_PATH_LOST_KEY: True})
"""Annotations of an outcome between routers: the answer of a consumer cannot arrive (`Refusal.PATH_LOST`)."""
_PREFIXES_MAX: Final = 256


class PassedRun(Run, gc=False):
    """Run that has come from another router."""

    hops: tuple[str, ...] = ()
    """Routers that it has passed."""

    def part(self, start: int, stop: int) -> Run:
        """Return the messages ``start <= i < stop`` as a run; the run itself when these are all."""
        if start <= 0 and stop >= len(self.bodies):
            return self
        return PassedRun(
            self.address,
            self.device,
            self.flags,
            self.properties,
            self.bodies[start:stop],
            self.received_at,
            self.hops,
        )


class MessageStart(NamedTuple):
    """Beginning of a message of a neighbour: everything before its bare message."""

    header: bytes
    hops: tuple[str, ...]
    at_most_once: bool


def is_path_lost(annotations: bytes) -> bool:
    """Return True for `PATH_LOST`, however the neighbour has encoded it."""
    return len(annotations) < 2 * len(PATH_LOST) and _PATH_LOST_KEY.encode() in annotations


def hops_of(run: Run) -> tuple[str, ...]:
    """Return the routers that a run has passed; none for one that was published here."""
    return run.hops if isinstance(run, PassedRun) else ()


@lru_cache(maxsize=_PREFIXES_MAX)
def _annotations(hops: tuple[str, ...], at_most_once: bool) -> bytes:
    values = {HOPS: ",".join(hops), **({AT_MOST_ONCE: True} if at_most_once else {})}
    return b"\x00\x53" + bytes((DELIVERY_ANNOTATIONS,)) + encode(values)


def add_hops(messages: Sequence[bytes], hops: tuple[str, ...], *, at_most_once: bool) -> list[bytes]:
    """Return encoded messages with these hops; they have none yet."""
    section = _annotations(hops, at_most_once)
    first = messages[0]
    end = bare_message(first)[0]
    if end == 0:
        return [section + message if message[2] != 0x70 else _with(message, section) for message in messages]
    header = first[:end]
    start = header + section
    return [start + message[end:] if message.startswith(header) else _with(message, section) for message in messages]


def amqp_with_hops(run: Run, router: str, now_ns: int) -> list[bytes]:
    """Return the messages of a run as AMQP, with this router as the last that they have passed. `now_ns`: UTC."""
    messages = amqp_messages(run, now_ns=now_ns)
    return add_hops(messages, (*hops_of(run), router), at_most_once=run.qos == 0)


def _with(message: bytes, section: bytes) -> bytes:
    end = bare_message(message)[0]
    return message[:end] + section + message[end:]


def read_start(message: bytes) -> tuple[int, MessageStart]:
    """Return the size of the beginning of a message, and the beginning. Raises `DecodeError` without hops."""
    end, start = bare_message(message)
    if start == end:
        raise DecodeError("a message of a router without hops")
    values, _ = decode(message, section_at(message, end).value, Allowance(HEADER_VALUES_MAX))
    found = values.get(HOPS) if isinstance(values, dict) else None
    if not isinstance(found, str) or not found:
        raise DecodeError("a message of a router without hops")
    return start, MessageStart(message[:end], tuple(found.split(",")), values.get(AT_MOST_ONCE) is True)
