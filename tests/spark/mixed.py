"""A mixed fleet: messages of every form with known values, and all other rows that the hub lands.

Everything is a pure function of a seed. Two gateways are always connected, one was offline for a week, one has wrong
clocks. All of it happens around the hour in which Berlin changes to summer time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from cloud.place.place import LakeLocation
from tests.spark import bodies, lakes
from tests.spark.bodies import EPOCH, IN_2038, Body, Form, Sent
from tests.spark.sparkplug_node import Node

BEGIN: Final = datetime(2026, 3, 28, 22, 20, tzinfo=UTC)
END: Final = datetime(2026, 3, 29, 2, 40, tzinfo=UTC)
"""End of the messages; Berlin changes to summer time before it, at 01:00 UTC."""
WEEK: Final = timedelta(days=7)
HOUR: Final = timedelta(hours=1)
SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
TOLD_AT: Final = BEGIN - timedelta(hours=3)
"""Time of the report of wrong clocks: before the messages landed."""
_OUTAGES: Final = ((BEGIN + 70 * MINUTE, BEGIN + 95 * MINUTE), (BEGIN + 97 * MINUTE, BEGIN + 99 * MINUTE))
"""Outages of gateway `gw1` of tenant `acme`: the second begins before the first is drained and a minute has passed."""

Row = dict[str, Any]
Address = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Stamp:
    """A gateway's stamp of a message, and the result after its clock was judged.

    `received`: as written. `judged`, `quality`: reception and clock quality in `readings`. `delivered`: reception in
    delivery times; None if unknown.
    """

    received: datetime
    judged: datetime
    delivered: datetime | None
    written_quality: str = "good"
    quality: str = "good"


@dataclass(frozen=True, slots=True)
class Message:
    """A row of `telemetry` and its known values. `said_at`: the time in the message, if it has one."""

    tenant: str
    gateway: str
    epoch: str
    address: str
    device: str
    stamp: Stamp
    said_at: datetime | None
    ingested: datetime
    lane: str
    body: Body
    sequence: int = -1

    def row(self) -> Row:
        """Return the row that lands."""
        return {
            "tenant": self.tenant,
            "gateway": self.gateway,
            "epoch": self.epoch,
            "address": self.address,
            "sequence": self.sequence,
            "device": self.device,
            "event_time": self.said_at or self.stamp.received,
            "received_at": self.stamp.received,
            "ingested_at": self.ingested,
            "clock_quality": self.stamp.written_quality,
            "lane": self.lane,
            "content_type": self.body.content_type,
            "properties": None,
            "body": self.body.content,
            "ingest_date": self.ingested.date(),
        }


@dataclass(frozen=True, slots=True)
class Landing:
    """Rows that land between two passes."""

    messages: Sequence[Message]
    others: Mapping[str, Sequence[Row]]
    """Rows of other landed tables."""

    def parts(self, count: int = 2) -> Sequence[Landing]:
        """Split the rows by time; the first part has the rows of other tables.

        A birth stays before the data that follows it, because data that lands first uses the names of the earlier
        birth.
        """
        size = -(-len(self.messages) // count)
        parts = [self.messages[number * size : (number + 1) * size] for number in range(count)]
        return [Landing(part, {} if number else self.others) for number, part in enumerate(parts)]

    def write(self, lake: LakeLocation) -> None:
        """Append the rows to a lake, with one commit for each table."""
        messages = {"telemetry": [message.row() for message in self.messages]}
        for name, rows in (*self.others.items(), *messages.items()):
            if rows:
                lakes.write(lake, name, rows)


@dataclass(frozen=True, slots=True)
class _Device:
    tenant: str
    gateway: str
    name: str
    address: str
    form: Form
    every: timedelta
    begin: datetime = BEGIN
    end: datetime = END
    epoch: str = "e1"


def landings(seed: int, count: int, scale: float = 1.0) -> Sequence[Landing]:
    """Return everything that the fleet lands, in `count` parts; `scale` multiplies the messages."""
    randoms = random.Random(seed)
    of_devices = [*_connected(randoms, scale), *_offline(randoms, scale), *_wrong_clocks(randoms, scale)]
    sent = _numbered([*of_devices, *_sparkplug(randoms, scale)])
    lost = _lost(randoms, sent)
    landed = [message for message in sent if (*_address(message), message.sequence) not in lost]
    landed += _copies(randoms, landed)
    landed.sort(key=lambda message: message.ingested)
    others = {
        "clock_offsets": _offsets(),
        "ledger": _ledger(lost),
        "manifests": _manifests(randoms, sent),
        "gateway_status": _statuses(),
    }
    times = [landed[len(landed) * number // count].ingested for number in range(1, count)]
    cuts = [EPOCH, *times, landed[-1].ingested + WEEK]
    return [
        Landing(
            [message for message in landed if low <= message.ingested < high],
            {name: [row for row in rows if low <= row["ingested_at"] < high] for name, rows in others.items()},
        )
        for low, high in pairwise(cuts)
    ]


def _connected(randoms: random.Random, scale: float) -> Iterator[Message]:
    """Two gateways of one name and different tenants; the second is reinstalled halfway."""
    for tenant in ("acme", "globex"):
        half = BEGIN + (END - BEGIN) / 2
        for form in bodies.FORMS.values():
            device = _Device(tenant, "gw1", f"{form.__name__}-1", f"plant/{form.__name__}", form, 190 * SECOND / scale)
            if tenant == "globex":
                yield from _sent(randoms, replace(device, end=half))
                device = replace(device, begin=half, epoch="e2")
            yield from _sent(randoms, device)
        # More than two hundred values an hour, and an address with an empty last level.
        fast = _Device(tenant, "gw1", "bare-2", "plant/fast/", bodies.bare, 9 * SECOND)
        yield from _sent(randoms, replace(fast, end=BEGIN + 90 * MINUTE))
    large = _Device("acme", "gw1", "large", "plant/large", lambda *_: bodies.TOO_LARGE, END - BEGIN)
    yield from _sent(randoms, large)


def _sent(
    randoms: random.Random,
    device: _Device,
    land: Callable[[datetime], tuple[datetime, str]] | None = None,
    stamp: Callable[[datetime, datetime], Stamp] | None = None,
) -> Iterator[Message]:
    at, number = device.begin + timedelta(microseconds=randoms.randrange(1, 10**6)), 0
    while at < device.end:
        measured = at - timedelta(microseconds=randoms.randrange(900_000))
        ingested, lane = (land or _landed(randoms, device))(at)
        known = (stamp or (lambda true, _: Stamp(true, true, true)))(at, ingested)
        said = measured if number % 5 == 4 else None
        content = device.form(
            randoms, Sent(measured, known.judged, ingested, device.address.rstrip("/").split("/")[-1])
        )
        yield Message(
            device.tenant,
            device.gateway,
            device.epoch,
            device.address,
            device.name,
            known,
            said,
            ingested,
            lane,
            content,
        )
        at += device.every * randoms.uniform(0.8, 1.2)
        number += 1


def _landed(randoms: random.Random, device: _Device) -> Callable[[datetime], tuple[datetime, str]]:
    """Return a function for landing times: soon unless the uplink is down; some live messages take over a minute."""

    def land(at: datetime) -> tuple[datetime, str]:
        for began, until in _OUTAGES if device.tenant == "acme" else ():
            if began <= at < until:
                return until + (at - began) / 20 + 2 * SECOND, "backlog"
        slow = randoms.random() < 0.02
        return at + timedelta(seconds=randoms.choice((60, 61, 75)) if slow else randoms.uniform(0.2, 3)), "live"

    return land


def _offline(randoms: random.Random, scale: float) -> Iterator[Message]:
    """A week of an offline gateway that lands within ten minutes."""
    began, back = BEGIN - WEEK, BEGIN + 150 * MINUTE

    def land(at: datetime) -> tuple[datetime, str]:
        return back + (at - began) / (7 * 24 * 6), "backlog"

    for form in (bodies.bare, bodies.timed, bodies.senml_relative, bodies.machine, bodies.wrong_clock):
        device = _Device("acme", "gw2", f"{form.__name__}-2", f"remote/{form.__name__}", form, 4 * HOUR / scale, began)
        yield from _sent(randoms, replace(device, end=BEGIN - HOUR), land)


def _sparkplug(randoms: random.Random, scale: float) -> Iterator[Message]:
    """Nodes and a device: one with occasional births, one with a late birth, one without."""
    for name, kind, late in (
        ("press", "N", False),
        ("press/motor", "D", False),
        ("late", "N", True),
        ("lost", "N", False),
    ):
        node, at, number = Node(f"plant/{name}", is_born=name != "lost"), BEGIN + SECOND, 0
        while at < END:
            measured, lag = at - SECOND / 2, timedelta(seconds=randoms.uniform(0.2, 3))
            what = "DATA" if name == "lost" or number % 12 else "BIRTH"
            if what == "BIRTH" and number and late:
                what = "DATA"
            if number % 12 == 11 and kind == "N" and not late:
                what = "DEATH"
            body = (
                node.birth(randoms, measured)
                if what == "BIRTH"
                else node.will(measured)
                if what == "DEATH"
                else node.data(randoms, measured)
            )
            address = f"spBv1.0/plant/{kind}{what}/{name}"
            ingested = at + (2 * HOUR if what == "BIRTH" and late else lag)
            stamp = Stamp(at, at, at)
            yield Message("globex", "gw1", "e1", address, "scada", stamp, None, ingested, "live", body)
            at += 200 * SECOND / scale * randoms.uniform(0.8, 1.2)
            number += 1


def _wrong_clocks(randoms: random.Random, scale: float) -> Iterator[Message]:
    """Gateways with clocks in 1970 or 2038; the offset is measured, bounded, unknown, or never reported."""

    def measured(at: datetime, _: datetime) -> Stamp:
        return Stamp(at - _MEASURED, at, at, "unknown", "measured")

    def bounded(at: datetime, _: datetime) -> Stamp:
        stamp = at - 4 * MINUTE
        return Stamp(stamp, stamp + _BOUNDS[0], None, "unknown", "bounded")

    def untold(at: datetime, ingested: datetime) -> Stamp:
        if randoms.random() < 0.2:  # close enough
            return Stamp(at, at, at if ingested - at <= MINUTE else None, "unknown", "unknown")
        stamp = EPOCH + (at - BEGIN) if at.minute % 2 else IN_2038 + (at - BEGIN)
        return Stamp(stamp, stamp, None, "unknown", "unknown")

    def unsaid(at: datetime, _: datetime) -> Stamp:
        stamp = EPOCH + (at - BEGIN) if at.minute % 2 else IN_2038 + (at - BEGIN)
        return Stamp(stamp, stamp, stamp, "unknown", "unknown")

    for gateway, name, stamp in (
        ("clock", "measured", measured),
        ("clock", "bounded", bounded),
        ("clock", "untold", untold),
        ("silent", "unsaid", unsaid),
    ):
        for form in (bodies.bare, bodies.timed):
            address = f"clock/{name}/{form.__name__}"
            device = _Device("acme", gateway, f"{name}-{form.__name__}", address, form, 400 * SECOND / scale)
            yield from _sent(randoms, device, stamp=stamp)


_MEASURED: Final = -(IN_2038 - BEGIN)
"""Correction of the measured stamps."""
_BOUNDS: Final = (3 * MINUTE, 5 * MINUTE)


def _offsets() -> Sequence[Row]:
    micros = bodies.MICROSECOND
    measured, (low, high) = _MEASURED // micros, (bound // micros for bound in _BOUNDS)
    base: Row = {"tenant": "acme", "gateway": "clock", "began": TOLD_AT, "told_at": TOLD_AT, "heard_at": TOLD_AT}
    base |= {"ingested_at": TOLD_AT, "ingest_date": TOLD_AT.date()}
    told = [lakes.clock_offset(**base | {"told_at": IN_2038})]
    for form in ("bare", "timed"):
        of: Row = {"address": f"clock/measured/{form}", "offset_low_us": measured, "offset_high_us": measured}
        told += [lakes.clock_offset(0, 10**6, known="measured", **base | of)] * 2  # repeated after a crash of the hub
        of = {"address": f"clock/bounded/{form}", "offset_low_us": low, "offset_high_us": high, "stretch": 2}
        told.append(lakes.clock_offset(0, 10**6, known="never", **base | of))
    return told


def _address(message: Message) -> Address:
    return message.tenant, message.gateway, message.epoch, message.address


def _numbered(messages: Iterable[Message]) -> list[Message]:
    """Number the messages of each address in the order of their reception."""
    streams: dict[Address, list[Message]] = defaultdict(list)
    for message in messages:
        streams[_address(message)].append(message)
    return [replace(message, sequence=number) for stream in streams.values() for number, message in enumerate(stream)]


def _lost(randoms: random.Random, sent: Sequence[Message]) -> dict[tuple[str, str, str, str, int], str | None]:
    """Choose messages that never land, with their reason in the ledger or None."""
    lost: dict[tuple[str, str, str, str, int], str | None] = {}
    for message in sent:
        if message.address == "plant/flat" and 20 <= message.sequence < 28:
            lost[(*_address(message), message.sequence)] = "expired" if message.sequence < 25 else None
        elif randoms.random() < 0.015 and "BIRTH" not in message.address:
            lost[(*_address(message), message.sequence)] = randoms.choice((None, "evicted", "expired"))
    return lost


def _copies(randoms: random.Random, landed: Sequence[Message]) -> Iterator[Message]:
    """Messages that the hub lands again after a crash, immediately or much later."""
    for message in landed:
        if message.address.endswith(("NDATA/lost", "NDATA/late")):
            continue  # rows of a message without a birth depend on the passes between its copies: see `test_oracle`
        if randoms.random() < 0.02:
            yield message
        elif randoms.random() < 0.01:
            yield replace(message, ingested=message.ingested + randoms.choice((SECOND, HOUR)))


def _ledger(lost: Mapping[tuple[str, str, str, str, int], str | None]) -> Sequence[Row]:
    rows: list[Row] = []
    for (tenant, gateway, epoch, address, sequence), reason in lost.items():
        if reason is not None:
            of: Row = {"tenant": tenant, "gateway": gateway, "epoch": epoch, "address": address, "reason": reason}
            of |= {"ingested_at": BEGIN + HOUR, "ingest_date": BEGIN.date()}
            rows += [lakes.ledger(sequence, sequence, **of)] * (1 + sequence % 2)
    # Overlapping ranges of both reasons, some with messages that have landed.
    of = {"tenant": "acme", "gateway": "gw1", "address": "plant/flat", "ingested_at": BEGIN + 2 * HOUR}
    rows += [lakes.ledger(18, 22, **of), lakes.ledger(22, 24, **of | {"reason": "evicted"})]
    return rows


def _manifests(randoms: random.Random, sent: Sequence[Message]) -> Sequence[Row]:
    """Return hourly statements of gateways: correct ones, ones with too many messages, missing and repeated ones."""
    hours: dict[tuple[Address, datetime], list[int]] = defaultdict(list)
    for message in sent:
        if message.gateway not in ("clock", "silent") and message.address != "plant/senml":
            hour = message.stamp.received.replace(minute=0, second=0, microsecond=0)
            hours[_address(message), hour].append(message.sequence)
    rows = []
    for ((tenant, gateway, epoch, address), hour), sequences in hours.items():
        if hour > END - 2 * HOUR and randoms.random() < 0.3:
            continue
        first, last = min(sequences), max(sequences)
        if hour > END - HOUR and randoms.random() < 0.5:
            last += 4  # accepted, and still at the gateway
        stated = max(hour + HOUR, BEGIN + 10 * MINUTE) + 5 * SECOND
        of: Row = {"tenant": tenant, "gateway": gateway, "epoch": epoch, "address": address, "hour": hour}
        of |= {"until": hour + HOUR, "ingested_at": stated, "ingest_date": stated.date(), "store_epoch": epoch}
        rows += [lakes.manifest(first, last, **of)] * randoms.choice((1, 1, 1, 2))
    return rows


def _statuses() -> Sequence[Row]:
    """Backlogs: `gw1` of `acme` has none, that of `globex` has some; `gw2` reported too early, others never."""
    at, later = BEGIN + 30 * MINUTE, END + 2 * HOUR
    return [
        lakes.status(at, 900, tenant="acme"),
        lakes.status(later, 0, tenant="acme"),
        lakes.status(later + SECOND, None, tenant="acme"),
        lakes.status(later, 3, tenant="globex"),
        lakes.status(at, 0, tenant="acme", gateway="gw2"),
        lakes.status(at, None, tenant="acme", gateway="silent"),
    ]
