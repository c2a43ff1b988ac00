"""Service of the hub, between the gateways' connections (`bridge.intake`) and the landing (`cloud.hub.committer`).

It handles tenants, sessions and documents; it knows neither sockets nor disks. All methods run on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import msgspec

from bridge.batch import AddressRange, Batch
from bridge.desired import DesiredReport
from bridge.device_reports import REFUSED, DeviceReport
from bridge.hub_addresses import IDENTITY_SHARED, LEDGER, MANIFESTS
from bridge.intake import Intake, UnreadDelivery
from bridge.landing_receipt import ReceiptRequest
from bridge.lane import BatchLane
from bridge.limits import HELD_MESSAGE_BYTES, HELD_RANGE_BYTES
from bridge.plain import Arrival as PlainMessage
from bridge.reports import OLDER_COPY
from cloud.hub.batch_news import Hear
from cloud.hub.committer import Committer
from cloud.hub.documents import (
    CONNECTED,
    DISCONNECTED,
    DocumentError,
    clock_offset_rows,
    lake_row,
    ledger_ranges,
    manifest_rows,
    parse_lineage,
    presence_row,
    status_row,
)
from cloud.hub.fleet import FleetState
from cloud.hub.groups import (
    ClockOffsetRows,
    GatewaySession,
    GroupReport,
    Key,
    LandingGroup,
    LandingOutcome,
    LedgerDocument,
    Manifest,
    StoredState,
)
from cloud.hub.limits import CONNECTION_LINES_EVERY_S
from cloud.hub.metrics import Metrics
from cloud.hub.observed import danger_of, danger_of_status
from cloud.hub.pressure import LandingPressure, TenantPressure, TenantRate
from cloud.hub.takeovers import RemoteProgram
from cloud.hub.tenants import Tenants
from cloud.lake.landing import UnreadableContent
from cloud.lake.rows import ReceivedBatch

log = logging.getLogger(__name__)

SPACE: Final = "default"
"""Address space of plain messages, which do not name one."""


Copy = Callable[[str, str, Batch], None]
"""Called with tenant, gateway and batch, to copy it (`cloud.hub.copies`)."""


Reported = Callable[[Key, DesiredReport, Callable[[], None]], None]
"""Called with the configuration report of a gateway, and a function to call when it is stored."""


Requested = Callable[[Key, ReceiptRequest, Callable[[], None]], None]
"""Called with the request of a gateway for statements, and a function to call after the answer."""


ReportDevice = Callable[[Key, DeviceReport, Callable[[str | None], None]], None]
"""Called with the report of a gateway about a device, and a function that takes why the device is refused, or None."""


class ProblemReports(Protocol):
    """Takes the problems that gateways report."""

    def connected(self, key: Key) -> None:
        """Expect the first report of a new connection."""
        ...

    def reported(self, key: Key, problems: Sequence[Mapping[str, Any]]) -> None:
        """Take the problems of a gateway, as in its status."""
        ...


def _no_receipts(_key: Key, _request: ReceiptRequest, done: Callable[[], None]) -> None:
    """State nothing: this hub gives no receipts."""
    done()


def ignore_report(_key: Key, _report: DesiredReport, _kept: Callable[[], None]) -> None:
    """Ignore a report: the hub configures no gateways."""


def ignore_device(_key: Key, _report: DeviceReport, _answer: Callable[[str | None], None]) -> None:
    """Ignore a report: the hub has no registry of devices."""


def _ignore_end(_key: Key) -> None:
    """Ignore the end of a connection: no report about a device waits."""


def _no_news(_tenant: str, _gateway: str, _batch: Batch, _kept: Callable[[bool], None]) -> bool:
    """Find no news."""
    return False


def _copy_nothing(_tenant: str, _gateway: str, _batch: Batch) -> None:
    """Copy nothing."""


def _never(_seconds: float, _call: Callable[[], None]) -> None:
    """Never call: no quota has a rate."""


class HubService:
    """Implements `bridge.intake.IntakeService`."""

    def __init__(
        self,
        fleet: FleetState,
        committer: Committer,
        metrics: Metrics,
        *,
        now_us: Callable[[], int],
        clock: Callable[[], float],
        copy: Copy = _copy_nothing,
        hear: Hear = _no_news,
        configured: Reported = ignore_report,
        requested: Requested = _no_receipts,
        tenants: Tenants | None = None,
        later: Callable[[float, Callable[[], None]], object] = _never,
        problems: ProblemReports | None = None,
        devices: ReportDevice = ignore_device,
        left: Callable[[Key], None] = _ignore_end,
    ) -> None:
        """`now_us`: UTC microseconds; `clock`: monotonic seconds. `copy` and `queue_news` get batches before they land;
        `configured` gets configuration reports, `requested` requests for receipts; `later` calls a function after some
        seconds, for quotas with a rate; `problems` gets those in the status of gateways; `devices` gets reports about
        devices; `left` is called when the connection of a gateway has ended, or another one follows it."""
        self._fleet = fleet
        self._committer = committer
        self._metrics = metrics
        self._pressure = LandingPressure(lambda: self._committer.pressing_bytes, lambda: self._unread_bytes)
        self._now_us = now_us
        self._clock = clock
        self._copy = copy
        self._hear = hear
        self._configured = configured
        self._requested = requested
        self._quotas = tenants or Tenants()
        self._later = later
        self._problems = problems
        self._devices = devices
        self._left = left
        self._tenants: dict[str, TenantPressure] = {}
        self._rates: dict[str, TenantRate | None] = {}
        """Rates of all tenants seen, also without connections: a tenant that returns keeps its debt."""
        self._unread_bytes = 0
        """Undecoded bytes of all gateways."""
        self._introduced: WeakKeyDictionary[Intake, tuple[str, str]] = WeakKeyDictionary()
        """Tenant and remote address."""
        self._sessions: dict[Intake, GatewaySession] = {}
        self._intakes: dict[GatewaySession, Intake] = {}
        committer.reported.append(self._reported)

    def register_peer(self, intake: Intake, tenant: str, remote: str) -> None:
        """Register tenant and remote address of a connection before it is opened."""
        self._introduced[intake] = tenant, remote

    # --- IntakeService ----------------------------------------------------------------------------------------------

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        now_us = self._now_us()
        tenant, remote = self._introduced[intake]
        session = GatewaySession(tenant, gateway, remote)
        before = self._fleet.connect(session, now_us)
        self._sessions[intake], self._intakes[session] = session, intake
        self._pressure.add(intake)
        self._tenant_of(session).add(intake)
        if (rate := self._rate_of(tenant)) is not None:
            rate.add(intake)
        self._committer.connect(session)
        if self._problems is not None:
            self._problems.connected(session.key)
        self._committer.put_state(presence_row(session, CONNECTED, now_us))
        times = self._fleet.count_connect(session.key, self._clock(), CONNECTION_LINES_EVERY_S)
        if times:
            log.info("gateway %s connected from %s%s", gateway, session.remote, f" ({times} times)" * (times > 1))
        if before is not None:
            self._left(session.key)
            self._committer.disconnect(before, replaced=True)
            displaced = self._intakes[before]
            displaced.close(
                *self._takeover(session.key, _remote_program(displaced, before), _remote_program(intake, session))
            )

    def _takeover(self, key: Key, displaced: RemoteProgram, arrived: RemoteProgram) -> tuple[str, str]:
        """Count a takeover; return condition and description for the displaced connection."""
        addresses = self._fleet.takeovers.add(key, displaced, arrived)
        if addresses is None:
            return "amqp:connection:forced", "the gateway has connected again"
        return IDENTITY_SHARED, f"two machines use gateway {key[1]} (addresses {addresses})"

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        session = self._sessions.pop(intake, None)
        if session is None:
            return
        del self._intakes[session]
        self._pressure.remove(intake)
        self._forget_at_tenant(session, intake)
        now_us = self._now_us()
        newest = self._fleet.disconnect(session, now_us)
        self._committer.disconnect(session, replaced=not newest)
        if newest:
            self._left(session.key)
            self._committer.put_state(presence_row(session, DISCONNECTED, now_us))
            log.debug("gateway %s disconnected", gateway)

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, ends: Mapping[int, int], gateway: str) -> None:
        self._put(intake, (token,), batch, ends)

    def has_room(self, intake: Intake) -> bool:
        session = self._sessions.get(intake)
        own = self._tenants.get(session.tenant) if session is not None else None
        return self._pressure.has_room(intake) and (own is None or own.has_room(intake))

    def unread_changed(self, intake: Intake, by: int) -> None:
        self._unread_bytes += by
        session = self._sessions.get(intake)
        if by > 0 and session is not None and (rate := self._rate_of(session.tenant)) is not None:
            rate.count_received(by)
        self._update_pressure(intake)

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, PlainMessage]], gateway: str) -> None:
        named: list[tuple[int, PlainMessage]] = []
        for token, message in messages:
            if problem := _problem(message, gateway):
                self._fleet.totals.rejected += 1
                intake.reject(token, *problem)
            else:
                named.append((token, message))
        for epoch, group in groupby(named, key=lambda entry: entry[1].epoch or ""):
            together = list(group)
            self._put(intake, [token for token, _ in together], make_batch(epoch, [message for _, message in together]))

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None:
        session = self._sessions.get(intake)
        known = self._fleet.gateways.get(session.key) if session is not None else None
        if session is None or known is None:
            return
        now_us = self._now_us()
        try:
            row = status_row(session, document, now_us)
        except DocumentError as error:
            log.warning("gateway %s: invalid status: %s", gateway, error)
            return
        problems = row.pop("problems")
        known.last_seen = now_us
        before, known.status = known.status, _status_for_api(row)
        soon = before is None or danger_of_status(before).kind != danger_of_status(known.status).kind
        self._committer.put_state(lake_row(row))
        if known.is_stored:
            self._committer.record_observed(session.key, known.observation(), soon=soon)
        else:  # `_restore` records it
            self._committer.record_seen(session.key)
        if self._problems is not None and problems is not None:
            self._problems.reported(session.key, problems)

    def ledger_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        session = self._sessions.get(intake)
        if session is None:
            return
        if "lineage" in document:
            self._lineage_arrived(session, intake, token, document)
            return
        try:
            ranges = ledger_ranges(session, document, self._now_us())
        except DocumentError as error:
            content = msgspec.json.encode(document)
            self.unreadable_arrived(intake, token, UnreadDelivery(LEDGER, None, content, str(error)), gateway)
            return
        self._committer.put(session, LedgerDocument(ranges), partial(self._answer, intake, (token,)))

    def manifests_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        session = self._sessions.get(intake)
        if session is None:
            return
        content: Manifest | ClockOffsetRows
        try:
            if "stretches" in document:
                content = ClockOffsetRows(clock_offset_rows(session, document, self._now_us()))
            else:
                content = Manifest(manifest_rows(session, document))
        except DocumentError as error:
            unread = UnreadDelivery(MANIFESTS, None, msgspec.json.encode(document), str(error))
            self.unreadable_arrived(intake, token, unread, gateway)
            return
        self._committer.put(session, content, partial(self._answer, intake, (token,)))

    def desired_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        session = self._sessions.get(intake)
        if session is None:
            return
        try:
            report = msgspec.convert(document, DesiredReport)
        except msgspec.ValidationError as error:
            log.warning("gateway %s: invalid configuration report: %s", gateway, error)
            intake.reject(token, "amqp:decode-error", str(error))
            return
        self._configured(session.key, report, lambda: intake.accept((token,)))

    def device_reported(self, intake: Intake, token: int, body: bytes, gateway: str) -> None:
        session = self._sessions.get(intake)
        if session is None:
            return
        try:
            report = msgspec.json.decode(body, type=DeviceReport)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            log.warning("gateway %s: invalid report of a device: %s", gateway, error)
            intake.reject(token, "amqp:decode-error", str(error))
            return

        def answer(why: str | None) -> None:
            if why is None:
                intake.accept((token,))
            else:
                intake.reject(token, REFUSED, why)

        self._devices(session.key, report, answer)

    def receipts_requested(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        session = self._sessions.get(intake)
        if session is None:
            return
        try:
            request = msgspec.convert(document, ReceiptRequest)
        except msgspec.ValidationError as error:
            log.warning("gateway %s: invalid request for receipts: %s", gateway, error)
            intake.reject(token, "amqp:decode-error", str(error))
            return
        self._requested(session.key, request, lambda: intake.accept((token,)))

    def unreadable_arrived(self, intake: Intake, token: int, unread: UnreadDelivery, gateway: str) -> None:
        session = self._sessions.get(intake)
        if session is None:
            return
        log.error(
            "gateway %s: unreadable delivery on link %s moved to quarantine: %s", gateway, unread.link, unread.why
        )
        kept = UnreadableContent(*session.key, unread.link, unread.delivery, unread.why, unread.content, self._now_us())
        self._committer.put(session, kept, partial(self._answer, intake, (token,)))
        self._update_pressure(intake)

    def _lineage_arrived(self, session: GatewaySession, intake: Intake, token: int, document: dict[str, Any]) -> None:
        try:
            found = parse_lineage(document)
        except DocumentError as error:
            log.warning("gateway %s: invalid lineage: %s", session.gateway, error)
            intake.reject(token, "amqp:decode-error", str(error))
            return

        def answer(verdict: LandingOutcome, words: str) -> None:
            if verdict is LandingOutcome.OLDER:
                log.warning("gateway %s has an older copy of its store and must start a new epoch", session.gateway)
                intake.reject(token, OLDER_COPY, words)
            else:
                session.store_epoch = found.epoch
                self._answer(intake, (token,), verdict, words)

        self._committer.put(session, found, answer)

    def close_all(self, condition: str, description: str) -> None:
        """Close every connection."""
        for intake in list(self._sessions):
            intake.close(condition, description)

    def waiting_bytes(self, tenant: str) -> int:
        """Return the bytes that the gateways of a tenant have sent and that have not landed."""
        own = self._tenants.get(tenant)
        return own.waiting_bytes if own is not None else 0

    # --- pressure ---------------------------------------------------------------------------------------------------

    def _tenant_of(self, session: GatewaySession) -> TenantPressure:
        own = self._tenants.get(session.tenant)
        if own is None:
            waiting_bytes = self._quotas.of(session.tenant).waiting_bytes
            own = self._tenants[session.tenant] = TenantPressure(waiting_bytes, self._waiting)
        return own

    def _rate_of(self, tenant: str) -> TenantRate | None:
        """Return the rate of a tenant; None without a limit."""
        if tenant not in self._rates:
            rate = self._quotas.of(tenant).bytes_per_second
            count_refusal = partial(self._quotas.count_refusal, tenant, "bytesPerSecond")
            share = partial(self._fleet.share_of, tenant)
            self._rates[tenant] = TenantRate(rate, self._clock, self._later, count_refusal, share) if rate else None
        return self._rates[tenant]

    def _forget_at_tenant(self, session: GatewaySession, intake: Intake) -> None:
        own = self._tenant_of(session)
        own.remove(intake)
        if (rate := self._rate_of(session.tenant)) is not None:
            rate.remove(intake)
        if not own:
            del self._tenants[session.tenant]

    def _waiting(self) -> int:
        """Return the pending bytes of all gateways, decoded or not."""
        return self._committer.pressing_bytes + self._unread_bytes

    def _update_pressure(self, intake: Intake) -> None:
        """Update back-pressure after the pending data of a connection changed."""
        self._pressure.update_for(intake)
        session = self._sessions.get(intake)
        if session is not None:
            self._tenants[session.tenant].update_some()

    # --- committer --------------------------------------------------------------------------------------------------

    def _reported(self, group: LandingGroup, report: GroupReport) -> None:
        """Record the results of a landed group; its answers follow."""
        for key, stored in report.stored.items():
            self._restore(key, stored)
        for key in report.refused:
            self._refuse(key)
        self._fleet.landed(group, report, self._clock())
        if report.landed.rows:
            self._metrics.landing_seconds.observe(report.seconds)
        for tenant in self._tenants.values():
            if tenant.pressed:
                tenant.update()
        self._pressure.resume_decoding()

    def _restore(self, key: Key, stored: StoredState) -> None:
        """Take over what the registry has of a gateway that has connected, and record a status that came before."""
        gateway = self._fleet.restore(key, *stored)
        if gateway is not None:
            before = danger_of(stored.observed)
            soon = stored.observed is None or before.kind != danger_of_status(gateway.status).kind
            self._committer.record_observed(key, gateway.observation(), soon=soon)

    def _refuse(self, key: Key) -> None:
        """Close the connection of a gateway that its tenant has no room for."""
        session, why = self._fleet.refuse(key), self._quotas.count_refusal(key[0], "gateways")
        if session is None:
            return
        log.warning("gateway %s refused: %s", session.gateway, why)
        self._intakes[session].close("amqp:resource-limit-exceeded", why)

    def _put(self, intake: Intake, tokens: Sequence[int], batch: Batch, ends: Mapping[int, int] | None = None) -> None:
        session = self._sessions.get(intake)
        if session is None:
            return
        self._fleet.record_seen(session.key, self._now_us())
        self._committer.record_seen(session.key)
        self._copy(session.tenant, session.gateway, batch)
        received = ReceivedBatch(*session.key, batch, session.store_epoch, ends or {})
        combined = _BatchAnswer(partial(self._answer, intake, tokens))
        has_news = self._hear(session.tenant, session.gateway, batch, combined.kept)
        self._committer.put(session, received, combined.landed if has_news else combined.answer)
        self._update_pressure(intake)

    def _answer(self, intake: Intake, tokens: Sequence[int], verdict: LandingOutcome, words: str) -> None:
        if verdict is LandingOutcome.LANDED:
            intake.accept(tokens)  # the only place where a gateway gets an acknowledgement: on disk
        else:
            self._fleet.totals.released += len(tokens)
            intake.release(tokens, words)


class _BatchAnswer:
    """Answer to a batch with news: waits for the landing and for the news."""

    __slots__ = ("_kept", "_verdict", "answer")

    def __init__(self, answer: Callable[[LandingOutcome, str], None]) -> None:
        self.answer: Final = answer
        self._kept: bool | None = None
        self._verdict: tuple[LandingOutcome, str] | None = None

    def landed(self, verdict: LandingOutcome, words: str) -> None:
        """Record the outcome of the landing."""
        self._verdict = verdict, words
        self._answer_when_complete()

    def kept(self, kept: bool) -> None:
        """Record whether the news is stored."""
        self._kept = kept
        self._answer_when_complete()

    def _answer_when_complete(self) -> None:
        if self._verdict is None or self._kept is None:
            return
        verdict, words = self._verdict
        if verdict is LandingOutcome.LANDED and not self._kept:
            verdict, words = LandingOutcome.RELEASED, "its news of commands and devices cannot be stored now"
        self.answer(verdict, words)


def _remote_program(intake: Intake, session: GatewaySession) -> RemoteProgram:
    """Return the remote program of a session. An older gateway does not name its run, so its address identifies it."""
    address = session.remote.rpartition(":")[0] or session.remote
    return RemoteProgram(intake.instance or address, address)


def make_batch(epoch: str, messages: Sequence[PlainMessage]) -> Batch:
    """Make a batch of plain messages that carry their names: one run each, and a range for each dense sequence of one
    address."""
    ranges: list[AddressRange] = []
    for message in messages:
        sequence, address = message.sequence or 0, message.run.address
        if ranges and ranges[-1].address == address and ranges[-1].first + ranges[-1].count == sequence:
            last = ranges.pop()
            ranges.append(AddressRange(address, last.base, last.first, last.count + 1))
        else:
            ranges.append(AddressRange(address, sequence, sequence, 1))
    runs = [message.run for message in messages]
    return Batch(
        space=SPACE,
        epoch=epoch,
        lane=BatchLane.LIVE,
        ranges=ranges,
        run_lengths=[1] * len(runs),
        devices=[run.device for run in runs],
        received_at=[run.received_at for run in runs],
        flags=[run.flags for run in runs],
        properties=[run.properties for run in runs],
        bodies=[run.bodies[0] for run in runs],
        size=sum(run.size + HELD_MESSAGE_BYTES + HELD_RANGE_BYTES for run in runs),
        expanded=sum(run.size + len(run.device) for run in runs),
    )


def _problem(message: PlainMessage, gateway: str) -> tuple[str, str] | None:
    """Return (condition, description) if a plain message cannot land exactly once; else None."""
    if message.epoch is None or message.sequence is None or not message.run.address:
        wanted = "the annotations x-opt-waypost-epoch, -address or -sequence are missing"
        return "amqp:precondition-failed", wanted
    if message.gateway is not None and message.gateway != gateway:
        return "amqp:unauthorized-access", f"this connection is gateway {gateway!r}, not {message.gateway!r}"
    return None


def _status_for_api(row: dict[str, Any]) -> dict[str, Any]:
    """Return a status for the API: times in milliseconds, without tenant and gateway."""
    shown = {name: value for name, value in row.items() if name not in ("tenant", "gateway")}
    for name in ("reported_at", "backlog_oldest_at"):
        if shown[name] is not None:
            shown[name] //= 1_000
    return shown
