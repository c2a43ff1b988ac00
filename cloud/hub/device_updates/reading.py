"""Reports of devices about artefacts, read from the batches of gateways. Pure.

A report is known by its address, ``…/DEVICE/artefact-report``, or as an event of Hono's device API by its content type.
Its publisher must be the device: gateways name the publisher, and what a device writes into address or text proves
nothing. A relay's messages name the device in their origin.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from bridge.amqp_values import DecodeError
from bridge.artefacts.limits import NAME_LENGTH_MAX
from bridge.artefacts.report import REPORT_LEVEL, REPORT_TYPE, UpdateMessage, UpdateState
from bridge.batch import Batch
from bridge.limits import DEVICE_CHARACTERS_MAX
from bridge.message import AMQP, CLOCK_GOOD, Run, Stored
from bridge.message_origin import find_origin
from bridge.publisher import device_of, is_relay
from cloud.hub.device_updates.limits import REASON_CHARACTERS_MAX, REPORT_BYTES_MAX
from cloud.hub.registry.device_updates import DeviceUpdate, device_name
from edge.broker.message.translation import parse_message
from edge.output.text import line

log = logging.getLogger(__name__)

_SUFFIX: Final = f"/{REPORT_LEVEL}"
_EVENTS: Final = "event/"
"""Begin of the addresses of events of Hono's device API; the tenant of the devices follows."""
_MARK: Final = REPORT_TYPE.encode()
_CONTENT_TYPE: Final = 6
_STREAM_LENGTH: Final = 32


def has_reports(batch: Batch) -> bool:
    """Return whether a batch may contain reports."""
    events = False
    for piece in batch.ranges:
        if piece.address.endswith(_SUFFIX):
            return True
        events = events or piece.address.startswith(_EVENTS)
    return events and any(_MARK in body for body in batch.bodies)


def read_reports(tenant: str, gateway: str, batch: Batch, now_us: int) -> list[DeviceUpdate]:
    """Return the reports in a batch: the newest one, and the newest failure, of each stream, device and version, by
    sequence. Messages that are none are ignored here; they land as all others."""
    found: dict[tuple[str | bool, ...], DeviceUpdate] = {}
    for stored in batch.stored():
        run = stored.run
        if run.address.endswith(_SUFFIX) or run.address.startswith(_EVENTS):
            source = _ReportSource(tenant, gateway, batch.epoch, run.address)
            for each in _read(source, stored, now_us):
                key = (each.stream, *each[:4], each.state == UpdateState.ROLLED_BACK.value)
                found.pop(key, None)  # to the end: sequences of a stream rise within a batch
                found[key] = each
    return list(found.values())


class _ReportSource(NamedTuple):
    tenant: str
    gateway: str
    epoch: str
    address: str

    def name(self, device: str) -> str | None:
        """Return the name at the hub of a device that reports here; None if the address is that of another one."""
        if self.address.startswith(_EVENTS):
            name = device_name(self.tenant, self.address.removeprefix(_EVENTS), device)
        else:
            name = device if self.address.split("/")[-2] == device else ""
            name = name.removesuffix(f"@{self.tenant}")  # a client of the device API that publishes as any other
        return name if 0 < len(name) <= DEVICE_CHARACTERS_MAX and name.isprintable() else None

    @property
    def stream(self) -> str:
        """Name of the sequence in which its reports are numbered."""
        text = "\0".join((self.gateway, self.epoch, self.address))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_STREAM_LENGTH]


def _read(source: _ReportSource, stored: Stored, now_us: int) -> Iterator[DeviceUpdate]:
    run, stream = stored.run, source.stream
    known = run.received_at and run.flags & CLOCK_GOOD  # else its clock may be years behind, and failures look old
    received_us = run.received_at // 1_000 if known else now_us
    for i in range(len(run.bodies)):
        publisher = _publisher(run, i)
        name = source.name(publisher) if publisher is not None else None
        message = _message(run, i) if name is not None else None
        if name is None or message is None or message.device != publisher:
            continue
        yield DeviceUpdate(
            tenant=source.tenant,
            name=message.artefact,
            version=message.version,
            device=name,
            state=message.state.value,
            reason=line(message.reason)[:REASON_CHARACTERS_MAX],
            gateway=source.gateway,
            stream=stream,
            sequence=stored.sequence + i,
            reported_at=min(received_us, now_us),  # a clock that is ahead must not hold up later reports
            changed_at=now_us,
        )


def _publisher(run: Run, i: int) -> str | None:
    """Return the device that has published a message; None if it is unknown."""
    if not is_relay(run.device):
        return device_of(run.device)
    origin = find_origin(run.flags, run.properties, run.bodies[i])
    return origin.device if origin is not None else None


def _message(run: Run, i: int) -> UpdateMessage | None:
    """Return the report in a message; None if it is none."""
    try:
        body = run.bodies[i]
        if run.flags & AMQP:
            found = parse_message(body)
            fields = [*found.properties, *[None] * (_CONTENT_TYPE + 1)]
            if run.address.startswith(_EVENTS) and str(fields[_CONTENT_TYPE]) != REPORT_TYPE:
                return None
            body = found.body
        if len(body) > REPORT_BYTES_MAX:
            return None
        message = msgspec.json.decode(body, type=UpdateMessage)
    except (DecodeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.debug("message at %s is not a report about an artefact: %s", run.address, error)
        return None
    words = (message.artefact, message.version)
    return message if all(0 < len(each) <= NAME_LENGTH_MAX and each.isprintable() for each in words) else None
