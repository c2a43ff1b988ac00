"""Problems of a gateway, collected from its parts into one list."""

from __future__ import annotations

import datetime
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from edge.appliance.clients.refusals import refusal_problems
from edge.appliance.clients.silence import SilentClient, silence_problems
from edge.appliance.clock import ClockQuality
from edge.appliance.connector_health import ConnectorHealth, peer_words
from edge.appliance.first_boot.journal import FirstBootState, refusal_of, state_of
from edge.appliance.muting.mutes import ProblemMutes
from edge.appliance.problems import (
    memory_problems,
    name_problems,
    room_problems,
    scheduled_problem,
    store_problems,
    token_problem,
    unrouted_problem,
)
from edge.appliance.program import as_called
from edge.broker.configuration import BrokerConfiguration
from edge.broker.delivery import LogSubscription
from edge.broker.router.peer_connector import PeerConnector
from edge.broker.router.uplinks import Uplinks
from edge.broker.server import Broker
from edge.broker.store.sqlite import SqliteStore
from edge.broker.store.wear import BlockDevice
from edge.health.certificates import certificate_problems
from edge.health.counter_rise import CounterRise
from edge.health.logins import login_problems
from edge.health.loop_lag import LoopLag
from edge.health.problems import FoundProblem, HealthChecks, HealthProblem, Severity
from edge.health.process import FILES_CHECK_S, descriptor_problems, directory_problems, log_problems
from edge.health.stall_detector import StallDetector
from edge.health.storage_life import read_storage_life, storage_problems
from edge.output.text import word

SUBSCRIPTIONS_CHECKED: Final = 500
"""Subscriptions checked at a time, about 1 ms; the next check continues with the following ones."""


class GatewayHealth:
    """Find the problems of one running gateway. Call `start`, later `stop`."""

    def __init__(
        self,
        *,
        broker: Broker,
        store: SqliteStore,
        uplinks: Uplinks,
        clock: ClockQuality,
        data: Path,
        development: bool,
        room_hours: Callable[[], float | None],
        configuration: Callable[[], BrokerConfiguration],
        tokens: Callable[[], str | None],
        users: Callable[[], str | None],
        renewal: Callable[[], str | None] = lambda: None,
        revocations: Callable[[], str | None] = lambda: None,
        silent: Callable[[], Sequence[SilentClient]] = tuple,
        artefacts: Callable[[], Iterable[FoundProblem]] = tuple,
        tenants: Callable[[], Iterable[FoundProblem]] = tuple,
        mutes: ProblemMutes | None = None,
        system: BlockDevice | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`development`: the configuration comes from options, not from applied resources. `room_hours`: hours until
        the store is full. `configuration`: the current one. The others return the reason of a failure, or None:
        `tokens` cannot be checked, changes of `users` cannot be read, `renewal` of the gateway's certificate is
        refused, the list of `revocations` cannot be fetched. `artefacts`: problems of software for devices;
        `tenants`: those of further address spaces. `mutes`: None for none. `system`: device of the system, if it is
        known."""
        self.lag = LoopLag()
        self._broker = broker
        self._store = store
        self._uplinks = uplinks
        self._clock = clock
        self._data = data
        self._development = development
        self._configuration = configuration
        self._tokens = tokens
        self._users = users
        self._renewal = renewal
        self._revocations = revocations
        self._silent = silent
        self._artefacts = artefacts
        self._tenants = tenants
        self._mutes = mutes
        self._system = system
        self._monotonic_s = monotonic_s
        self._rising = CounterRise(monotonic_s)
        self._refused = CounterRise(monotonic_s)
        self._names_refused = CounterRise(monotonic_s)
        self._shed = CounterRise(monotonic_s)
        self._logins = CounterRise(monotonic_s)
        self._logs = StalledLogs(broker, monotonic_s)
        self._connectors = ConnectorHealth(uplinks, room_hours, monotonic_s)
        self.first_boot = FirstBootState()
        """State of the settings of the card, read seldom."""
        self._files: list[FoundProblem] = []
        self._files_at = float("-inf")
        self._health = HealthChecks(
            (
                self.store, self.room, self.names, self.scheduled, self.memory, self.logs, self.housekeeping,
                self.credentials, self._connectors.problems, self.losses, self.unrouted, self.certificates,
                self.machine, self.lag.problems, log_problems, self.files, self.refused_devices, self.silent_devices,
                self.artefacts, self.tenants,
            )
        )  # fmt: skip

    def start(self) -> None:
        """Start to measure the loop's lag."""
        self.lag.start()

    def stop(self) -> None:
        """Stop measuring."""
        self.lag.stop()

    def problems(self) -> list[HealthProblem]:
        """Return the current problems with their mutes, and with commands as this user calls the program."""
        found = [
            msgspec.structs.replace(one, what=as_called(one.what), next_step=as_called(one.next_step))
            for one in self._health.problems()
        ]
        return found if self._mutes is None else self._mutes.apply(found)

    # --- sources ----------------------------------------------------------------------------------------------

    def store(self) -> Iterator[FoundProblem]:
        yield from store_problems(self._store.medium.problems)

    def room(self) -> Iterator[FoundProblem]:
        quotas = self._broker.router.quotas
        rooms = quotas.usage()
        yield from room_problems(
            rooms,
            space_bytes=quotas.space_bytes,
            at_floor=quotas.closed,
            floor_bytes=quotas.floor_bytes,
            lately=self._refused.lately({room.address: room.refused for room in rooms if room.refused}),
        )

    def names(self) -> Iterator[FoundProblem]:
        names = list(self._broker.router.names)
        refused = {one.kind.value: one.refused for one in names if one.refused}
        yield from name_problems(names, self._names_refused.lately(refused))

    def scheduled(self) -> Iterator[FoundProblem]:
        refused = self._broker.router.scheduled.refused
        if refused:
            yield scheduled_problem(refused)

    def memory(self) -> Iterator[FoundProblem]:
        admission = self._broker.admission
        counters = {"shed": admission.figures.shed, "refused": admission.figures.refused}
        yield from memory_problems(
            bytes_max=admission.budget.gateway.bytes_max,
            exceeded=admission.resident.exceeded,
            lately=self._shed.lately({name: count for name, count in counters.items() if count}),
        )

    def logs(self) -> Iterator[FoundProblem]:
        yield from self._logs.problems()

    def housekeeping(self) -> Iterator[FoundProblem]:
        for part, kind in self._broker.failing.items():
            what = f"it fails with {kind} at each run"
            yield FoundProblem(f"housekeeping: {part}", what, "a bug in Waypost: see the log, and report it")

    def credentials(self) -> Iterator[FoundProblem]:
        overdue = self._tokens()
        if overdue is not None:
            yield token_problem(overdue)
        yield from login_problems(self._broker.gate, self._logins)
        users = self._users()
        if users is not None:
            yield FoundProblem(
                "users", users, "changes of users take effect when it can be read: `waypost doctor` with --data"
            )

    def losses(self) -> Iterator[FoundProblem]:
        """Yield losses and failures of the last minute, found by counters that rose."""
        peers = {uplink.connector.name: peer_words(uplink) for uplink in self._uplinks}
        counters = {f"rejected {uplink.connector.name}": uplink.figures.messages_rejected for uplink in self._uplinks}
        counters |= {f"ledger {reason}": count for reason, count in self._store.ledger.entered.items()}
        counters |= {f"not taken {name}": count for name, count in self._not_taken().items()}
        counters |= {"restarts": self._broker.router.feeds.restarts, "connections": self._broker.listeners.refused}
        lately = self._rising.lately({name: count for name, count in counters.items() if count})
        for name, peer in peers.items():
            if f"rejected {name}" in lately:
                what = f"{peer} rejected messages within the last minute: they went to the dead letters"
                yield FoundProblem(
                    f"connector {name}", what, "see the reason in the log, and the dead letters of the addresses"
                )
        for name in sorted(name.removeprefix("not taken ") for name in lately if name.startswith("not taken ")):
            what = "messages of its peer were acknowledged within the last minute, but could not be stored"
            yield FoundProblem(f"forwarder {name}", what, "see the reason in the log", Severity.WARNING)
        reasons = sorted(name.removeprefix("ledger ") for name in lately if name.startswith("ledger "))
        if reasons:
            what = f"messages were discarded within the last minute: {', '.join(reasons)}"
            yield FoundProblem("losses", what, "the ledger names them: waypost store info", Severity.WARNING)
        if "restarts" in lately:
            what = "a subscription failed within the last minute, and reads the store again"
            yield FoundProblem("subscriptions", what, "a bug in Waypost: see the log, and report it")
        if "connections" in lately:
            what = "connections were refused within the last minute: the maximum number is open"
            yield FoundProblem("connections", what, "find clients with many connections; or raise limits.connections")

    def _not_taken(self) -> dict[str, int]:
        """Count messages that arrived and were rejected, by connector and forwarder."""
        peers = [uplink for uplink in self._uplinks if isinstance(uplink, PeerConnector)]
        return {f"{one.connector.name}/{name}": count for one in peers for name, count in one.refused_here.items()}

    def unrouted(self) -> Iterator[FoundProblem]:
        """Yield the notice for topics with messages and without a subscriber."""
        router = self._broker.router
        addresses = sorted(one.address for one in router.unrouted if router.is_unrouted(one.address))
        if addresses:
            applied = f"waypost bridge forward {{}} --data {word(self._data)}"
            yield unrouted_problem(addresses, "waypost run with --forward {}" if self._development else applied)

    def refused_devices(self) -> Iterator[FoundProblem]:
        """Yield a notice for each device that is refused again and again."""
        yield from refusal_problems(self._broker.refusals, time.time)

    def silent_devices(self) -> Iterator[FoundProblem]:
        """Yield a notice for each device that is silent for longer than usual."""
        yield from silence_problems(self._silent())

    def artefacts(self) -> Iterator[FoundProblem]:
        """Yield why software for devices is not here."""
        yield from self._artefacts()

    def tenants(self) -> Iterator[FoundProblem]:
        """Yield the problems of further address spaces."""
        yield from self._tenants()

    def certificates(self) -> Iterator[FoundProblem]:
        trouble = self._broker.listeners.certificate_trouble
        if trouble is not None:
            yield FoundProblem(
                "certificate", trouble, "put a certificate and its key there; they are loaded automatically"
            )
        revocations = self._broker.listeners.revocations
        if revocations is not None and (trouble := revocations.trouble) is not None:
            step = "put the authority's current list there; it is loaded automatically"
            yield FoundProblem("revocations", trouble, step, Severity.ERROR if revocations.closed else Severity.WARNING)
        trouble = self._broker.listeners.status_trouble
        if trouble is not None:
            what = f"the last request about a client certificate had no answer: {trouble}"
            step = "see that the gateway reaches the responder of the authority (listeners.tls.clientOcsp)"
            yield FoundProblem("ocsp", what, step, Severity.WARNING)
        refused = self._renewal()
        if refused is not None:
            what = f"the hub does not renew this gateway's certificate: {refused}"
            yield FoundProblem(
                "identity", what, "at the hub: waypost gateway list; a new token there, then waypost enrol here"
            )

        if (trouble := self._revocations()) is not None:
            what = f"the hub's list of revoked certificates cannot be renewed: {trouble}"
            step = "see the hub's log; the gateway uses its list until that ends, and then sends nothing"
            yield FoundProblem("identity", what, step, Severity.WARNING)

    def machine(self) -> Iterator[FoundProblem]:
        self._clock()
        if self._clock.stepped_lately:
            what = "it was set within the last minute: times of messages before and after it cannot be compared"
            yield FoundProblem(
                "clock", what, "nothing, if a time service did it; else see what sets it", Severity.WARNING
            )

    def files(self) -> Iterator[FoundProblem]:
        """Yield problems with files; they are checked every `FILES_CHECK_S`."""
        now = self._monotonic_s()
        if now - self._files_at >= FILES_CHECK_S:
            self._files_at, self._files = now, list(self._check_files())
        yield from self._files

    def _check_files(self) -> Iterator[FoundProblem]:
        configuration = self._configuration()
        tls = [connector.tls for connector in configuration.connectors if connector.tls is not None]
        shown = {own.certificate for own in tls} | {own.ca for own in tls}
        if configuration.tls is not None:
            shown |= {configuration.tls.certificate, configuration.tls.client_ca}
        utc = datetime.datetime.now(datetime.UTC)
        yield from certificate_problems(sorted(path for path in shown if path is not None), utc)
        yield from directory_problems(self._data)
        yield from self._first_boot()
        yield from self._storage()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY:
            yield from descriptor_problems(len(os.listdir("/proc/self/fd")), limit)

    def _storage(self) -> Iterator[FoundProblem]:
        """Yield problems of the medium of the data, and of the system's if it is another (`data.disk`).

        Nothing is written to the latter, so a failing one keeps no client from being served yet: a warning at most.
        Programs are still read from it, so it has to be replaced as well.
        """
        data, system = self._store.medium.device, self._system
        if data is not None:
            yield from storage_problems(data.name, read_storage_life(data.folder))
        if system is not None and system != data:
            for found in storage_problems(system.name, read_storage_life(system.folder)):
                yield found._replace(severity=max(found.severity, Severity.WARNING, key=lambda each: each.rank))

    def _first_boot(self) -> Iterator[FoundProblem]:
        self.first_boot = state_of(self._data)
        if self.first_boot.trouble:
            yield FoundProblem("first boot", self.first_boot.trouble, self.first_boot.next_step, Severity.WARNING)
        if (refusal := refusal_of(self._data)) is not None:
            why = " ".join(refusal.why.split())
            yield FoundProblem("card settings", why, refusal.next_step, Severity.WARNING)


class StalledLogs:
    """Find backlogs that do not shrink although a consumer would take them."""

    def __init__(self, broker: Broker, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._standing = StallDetector(monotonic_s)
        self._pending: Iterator[tuple[str, LogSubscription]] = iter(())
        self._found: dict[str, FoundProblem] = {}

    def problems(self) -> Iterator[FoundProblem]:
        """Check the next `SUBSCRIPTIONS_CHECKED` subscriptions; yield the problems of all."""
        looked_at = list(islice(self._pending, SUBSCRIPTIONS_CHECKED))
        if not looked_at:
            self._pending = iter(self._all())
            looked_at = list(islice(self._pending, SUBSCRIPTIONS_CHECKED))
        for name, subscription in looked_at:
            found = self._check_log(name, subscription)
            if found is None:
                self._found.pop(name, None)
            else:
                self._found[name] = found
        yield from self._found.values()

    def _all(self) -> list[tuple[str, LogSubscription]]:
        router = self._broker.router
        parts = (
            (f"{name} in {part.log}", part)
            for name, durable in router.durable_subscriptions.opened.items()
            for part in durable.parts
        )
        everything = [*((f"queue {address}", queue) for address, queue in router.queues.opened.items()), *parts]
        existing = {name for name, _ in everything}
        for name in [name for name in self._found if name not in existing]:
            del self._found[name]
        self._standing.keep(existing)
        return everything

    def _check_log(self, name: str, subscription: LogSubscription) -> FoundProblem | None:
        group, backlog, outstanding = subscription.group, subscription.backlog, subscription.outstanding
        progress = (subscription.window.next, backlog, outstanding)
        busy = bool(group) and (backlog > 0 and (group.credit > 0 or outstanding > 0))
        if not self._standing.is_stalled(name, progress, busy=busy):
            return None
        if group.credit > 0 and (subscription.order is None or not subscription.order.serves):
            if subscription.failures.parked:
                what = "no consumer takes the messages that wait: they are too large, or were released by all"
                step = "connect a consumer that takes them, or purge them: waypost store purge"
                return FoundProblem(name, what, step, Severity.WARNING)
            what = "messages wait and a consumer has credit for them, but none was delivered for a minute"
            return FoundProblem(name, what, "see the log for what cannot be read; run `waypost store verify`")
        if outstanding:
            what = "messages wait, and its consumers have settled none of their deliveries for a minute"
            return FoundProblem(name, what, "see that its consumers work and acknowledge", Severity.WARNING)
        what = "no connected consumer selects the messages that wait"
        return FoundProblem(name, what, "connect a consumer that selects them, or purge them", Severity.WARNING)
