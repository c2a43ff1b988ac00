"""Reports of devices about artefacts, read from the batches of gateways. Pure.

A report is known by its address: ``…/DEVICE/artefact-report``, so a device reports for another one only if its gateway
lets it send there. An event of Hono's device API is one by its content type, and its publisher is the device.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from bridge.amqp_values import DecodeError
from bridge.artefacts.limits import NAME_LENGTH_MAX
from bridge.artefacts.report import REPORT_LEVEL, REPORT_TYPE, UpdateMessage
from bridge.batch import Batch
from bridge.limits import DEVICE_CHARACTERS_MAX
from bridge.message import AMQP, Run, Stored
from bridge.publisher import device_of
from cloud.hub.device_updates.limits import REASON_CHARACTERS_MAX, REPORT_BYTES_MAX
from cloud.hub.registry.device_updates import DeviceUpdate
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
    return any(piece.address.endswith(_SUFFIX) or piece.address.startswith(_EVENTS) for piece in batch.ranges)


def read_reports(tenant: str, gateway: str, batch: Batch, now_us: int) -> list[DeviceUpdate]:
    """Return the reports in a batch. Messages that are none are ignored here; they land as all others."""
    found: list[DeviceUpdate] = []
    for stored in batch.stored():
        run = stored.run
        if run.address.endswith(_SUFFIX):
            device = run.address.split("/")[-2]
            name = device
        elif run.address.startswith(_EVENTS) and any(_MARK in body for body in run.bodies):
            device = device_of(run.device)
            name = device_name(tenant, run.address.removeprefix(_EVENTS), device)
        else:
            continue
        if 0 < len(name) <= DEVICE_CHARACTERS_MAX and name.isprintable():
            source = _ReportSource(tenant, gateway, batch.epoch, device, name)
            found += _read(source, stored, now_us)
    return found


def device_name(tenant: str, devices_of: str, device: str) -> str:
    """Return the name of a device in the reports of a hub's tenant. `devices_of`: its tenant in the device registry."""
    return device if devices_of == tenant else f"{device}@{devices_of}"


class _ReportSource(NamedTuple):
    tenant: str
    gateway: str
    epoch: str
    device: str
    """Device that the text of a report has to name."""
    name: str
    """Its name at the hub."""

    def stream(self, address: str) -> str:
        """Return the name of the sequence in which its reports are numbered."""
        text = "\0".join((self.gateway, self.epoch, address))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_STREAM_LENGTH]


def _read(source: _ReportSource, stored: Stored, now_us: int) -> Iterator[DeviceUpdate]:
    run = stored.run
    received_us = run.received_at // 1_000 or now_us
    for i in range(len(run.bodies)):
        message = _message(run, i)
        if message is None or message.device != source.device:
            continue
        yield DeviceUpdate(
            tenant=source.tenant,
            name=message.artefact,
            version=message.version,
            device=source.name,
            state=message.state.value,
            reason=line(message.reason)[:REASON_CHARACTERS_MAX],
            gateway=source.gateway,
            stream=source.stream(run.address),
            sequence=stored.sequence + i,
            reported_at=min(received_us, now_us),  # a clock that is ahead must not hold up later reports
            changed_at=now_us,
        )


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
        log.info("message at %s is not a report about an artefact: %s", run.address, error)
        return None
    words = (message.artefact, message.version)
    return message if all(0 < len(each) <= NAME_LENGTH_MAX and each.isprintable() for each in words) else None
